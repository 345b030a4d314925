"""Which alerts begin, last and end: findings from the state of the dashboard's reader, then changes. No I/O."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, Literal
from urllib.parse import urlencode

from pipeline.command_line import command_text
from pipeline.dashboard.reader import TablesReader
from pipeline.dashboard.state import State
from pipeline.errors import PipelineError, printable
from pipeline.settings.model import AlertsSettings
from quota.current_rates import SensorRate
from quota.units import age_text, bound_text, rate_text

# Findings at one instant.

NEAR_BOUND: Final = "KquotaNearBound"
AT_BOUND: Final = "KquotaAtBound"
THROTTLED: Final = "KquotaThrottled"
STALLED: Final = "KquotaStalled"
DEAD_LETTERS: Final = "KquotaDeadLetters"
TIME_AHEAD: Final = "KquotaTimeAhead"
ALERTS: Final = (NEAR_BOUND, AT_BOUND, THROTTLED, STALLED, DEAD_LETTERS, TIME_AHEAD)
"""The names of all alerts."""

Key = tuple[str, ...]
"""The name of an alert, and what it is about: unlike labels, in full."""


@dataclass(frozen=True, slots=True)
class Words:
    """What people and programs read of an alert; annotations: what is so, and what to do."""

    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Finding:
    """One alert about one thing, now.

    Attributes:
        is_so: Whether it is true now. False: by little not. That neither begins an alert nor ends one.
        words: Makes its text; called when it is sent, not for the 10^5 findings that last.
        pending_ms: It must have been so for this long before the alert begins; 0 = at once.
    """

    key: Key
    is_so: bool
    words: Callable[[], Words] = Words
    pending_ms: int = 0


@dataclass(frozen=True, slots=True)
class Facts:
    """All that is known at an instant: at most one finding for each key, none if it is not true.

    Of the alerts with the names in `unknown` nothing is known now: they stay as they are.
    """

    findings: Sequence[Finding] = ()
    unknown: frozenset[str] = frozenset()


# Changes, from the findings before and now, and the instant.
#
# * a new finding is pending;
# * a pending alert fires after `pending_ms`, and is forgotten when the finding is gone or only near;
# * a firing alert ends when there was no finding, not even a near one, for `resolve_after_ms`.


@dataclass(frozen=True, slots=True)
class Watched:
    """What is remembered of one key, from when it is so first until its alert has ended.

    Attributes:
        since_ms: From when on it has been so; the alert's `startsAt`.
        told_ms: When it was last sent; None = it is pending.
        gone_ms: From when on it has not been so; None = it is so, or nearly. The alert's `endsAt`.
        labels: As they were when it began, so that an alert keeps its group; empty while it is pending.
        annotations: As last sent.
    """

    since_ms: int
    told_ms: int | None
    gone_ms: int | None
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_firing(self) -> bool:
        """Whether its alert has begun."""
        return self.told_ms is not None


Book = Mapping[Key, Watched]
"""What is remembered of all."""


@dataclass(frozen=True, slots=True)
class Change:
    """One message: an alert that began, lasts after the repeat interval, or ended."""

    status: Literal["firing", "resolved"]
    key: Key
    watched: Watched


def decide(
    book: Book,
    facts: Facts,
    now_ms: int,
    rules: AlertsSettings,
    is_silenced: Callable[[Key], bool] = lambda _: False,
) -> tuple[dict[Key, Watched], list[Change]]:
    """Judge all keys once. The book is what the last call returned; if the clock steps back, all takes longer.

    An alert that is silenced neither begins nor is sent again; if it still is so when the silence ends, it is sent.
    """
    findings = {finding.key: finding for finding in facts.findings}
    remembered: dict[Key, Watched] = {}
    changes: list[Change] = []
    for key in (*book, *(key for key in findings if key not in book)):
        before, finding = book.get(key), findings.get(key)
        is_unknown = finding is None and key[0] in facts.unknown
        after = before if is_unknown else _next(before, finding, now_ms)
        if after is None:
            continue
        if not is_unknown and _has_ended(after, now_ms, rules):
            changes.append(Change("resolved", key, after))
            continue
        if _is_due(after, finding, now_ms, rules) and not is_silenced(key):
            after = _sent(after, finding, now_ms)
            changes.append(Change("firing", key, after))
        remembered[key] = after
    return remembered, changes


def _next(before: Watched | None, finding: Finding | None, now_ms: int) -> Watched | None:
    """The remembered state, before the decision to send; None = nothing."""
    if before is None or not before.is_firing:
        return (before or Watched(now_ms, None, None)) if finding is not None and finding.is_so else None
    if finding is None:
        return before if before.gone_ms is not None else replace(before, gone_ms=now_ms)
    return before if before.gone_ms is None else replace(before, gone_ms=None)


def _sent(watched: Watched, finding: Finding | None, now_ms: int) -> Watched:
    if finding is None:
        return replace(watched, told_ms=now_ms)
    words = finding.words()
    labels = watched.labels if watched.is_firing else words.labels
    return Watched(watched.since_ms, now_ms, watched.gone_ms, labels, words.annotations)


def _has_ended(watched: Watched, now_ms: int, rules: AlertsSettings) -> bool:
    return watched.is_firing and watched.gone_ms is not None and now_ms - watched.gone_ms >= rules.resolve_after_ms


def _is_due(watched: Watched, finding: Finding | None, now_ms: int, rules: AlertsSettings) -> bool:
    if watched.told_ms is None:
        return finding is not None and now_ms - watched.since_ms >= finding.pending_ms
    return watched.gone_ms is None and now_ms - watched.told_ms >= rules.repeat_ms


# Recent dead letters, counted from `batches`: `dead_letters` has rows only for some.

_COLUMNS: Final = ("query_id", "batch_id", "processed_at_ms", "dead_count")


class RecentDeadLetters:
    """Counts over the last span. For one thread. The reader has looked before each `count`."""

    def __init__(self, reader: TablesReader, span_ms: int) -> None:
        self._reader = reader
        self._span_ms = span_ms
        self._refused: dict[tuple[str, int], tuple[int, int]] = {}
        self._has_looked_back = False

    def count(self, now_ms: int) -> int:
        """Elements and messages that were refused from `now_ms - span_ms` on."""
        rows = self._reader.batches
        if not self._has_looked_back:
            # The reader begins with the last minutes; messages refused before the start count, too.
            try:
                begin = ("processed_at_ms", ">=", now_ms - self._span_ms)
                rows = self._reader.tables["batches"].rows(_COLUMNS, [begin])
                self._has_looked_back = True
            except PipelineError:
                return 0
        of_rows = {(row["query_id"], row["batch_id"]): row for row in rows if row["dead_count"]}
        for key in of_rows.keys() - self._refused.keys():
            self._refused[key] = of_rows[key]["processed_at_ms"], of_rows[key]["dead_count"]
        begin_ms = now_ms - self._span_ms
        # None was refused after now: a clock that was ahead would make it recent until that time has come.
        refused = {key: (min(at_ms, now_ms), count) for key, (at_ms, count) in self._refused.items()}
        self._refused = {key: one for key, one in refused.items() if one[0] >= begin_ms or key in of_rows}
        return sum(count for at_ms, count in self._refused.values() if at_ms >= begin_ms)


# Names in messages: clients choose them, so they are made printable and short.

_MOST_SIGNS: Final = 100


def shown(text: str, most: int = _MOST_SIGNS) -> str:
    r"""Printable, and at most so many signs; a longer text is cut off and ends with `…`.

    >>> shown("a\nb"), shown("x" * 300, 4)
    ('a\\nb', 'xxx…')
    """
    # Cut before it is escaped, too: a name may have 32 767 bytes.
    escaped = printable(text[: most + 1])
    return escaped if len(escaped) <= most else f"{escaped[: most - 1]}…"


def client_text(user: str, client_id: str) -> str:
    """A client or a sensor in a sentence; `*` stands for all."""
    return f"{shown(user) or '*'}/{shown(client_id) or '*'}"


def link(external_url: str | None, user: str, client_id: str) -> dict[str, str]:
    """The annotation with the client's page on the dashboard; none without its address, or for very long names."""
    if external_url is None or len(user) + len(client_id) > _MOST_SIGNS:
        return {}
    return {"link": f"{external_url.rstrip('/')}/client?{urlencode({'user': user, 'client_id': client_id})}"}


_SEVERITY: Final = {NEAR_BOUND: "info", STALLED: "critical"}
"""All others are warnings."""
_NOT_TRUE_ANY_MORE_MS: Final = 15_000
"""A rate is over the last 12 s: when the newest batch is older, the rates of now are not known."""
_AHEAD_PENDING_MS: Final = 30_000
"""A step of less than the windows is made up for by then, and after a larger one a new time epoch has begun."""


def facts_of(state: State, dead_letters: int, is_idle: bool, rules: AlertsSettings) -> Facts:
    """All that is known at `state.now_ms`.

    Args:
        dead_letters: How many were refused in the last `rules.dead_letters_ms`.
        is_idle: The job was seen to wait for usage: that none comes is not a failure, and all rates are 0.
    """
    findings = [*_stalled(state, is_idle, rules)]
    if state.health.state == "unreadable":
        return Facts(findings, frozenset({NEAR_BOUND, AT_BOUND, THROTTLED, DEAD_LETTERS, TIME_AHEAD}))
    findings += _time_ahead(state, rules)
    findings += _throttled(state, rules)
    findings += _dead_letters(dead_letters, state, rules)
    age_ms = state.health.last_batch_age_ms
    is_old = age_ms is not None and age_ms > _NOT_TRUE_ANY_MORE_MS
    if not is_old:
        for name, percent in ((NEAR_BOUND, rules.near_bound_percent), (AT_BOUND, rules.at_bound_percent)):
            findings += _bounds(state, name, percent, rules)
    unknown = frozenset({NEAR_BOUND, AT_BOUND}) if is_old and not is_idle else frozenset[str]()
    return Facts(findings, unknown)


def _named(
    name: str, state: State, rules: AlertsSettings, labels: Mapping[str, str], annotations: Mapping[str, str]
) -> Words:
    cluster = {} if state.cluster is None else {"cluster": shown(state.cluster)}
    runbook = {} if rules.runbook_url is None else {"runbook_url": f"{rules.runbook_url}#{name.lower()}"}
    given = {"alertname": name, "severity": _SEVERITY.get(name, "warning"), **cluster, **labels}
    return Words(given, {**annotations, **runbook})


def _bounds(state: State, name: str, percent: int, rules: AlertsSettings) -> Iterator[Finding]:
    for one in state.sensors:
        used_percent = one.used * 100
        if used_percent < percent - rules.hysteresis_percent:
            return  # the nearest to their bounds come first
        if one.mode == "enforce":
            yield Finding(
                (name, one.quota_type, one.broker_id, one.sensor_user, one.sensor_client_id, *one.entity),
                used_percent >= percent,
                partial(_words_of_rate, name, state, one, rules),
                rules.pending_ms,
            )


def _words_of_rate(name: str, state: State, one: SensorRate, rules: AlertsSettings) -> Words:
    who = client_text(one.sensor_user, one.sensor_client_id)
    observed, bound = rate_text(one.quota_type, one.observed), bound_text(one.quota_type, one.bound)
    annotations = {
        "summary": f"{who} uses {int(one.used * 100)} % of its {one.quota_type}: {observed} of {bound}",
        "action": f"inform its owner, or try a larger quota: {command_text('what-if', '--help')}",
        **link(rules.external_url, one.user, one.client_id),
    }
    labels = _labels(one.sensor_user, one.sensor_client_id, one.broker_id, one.quota_type, one.owner)
    return _named(name, state, rules, labels, annotations)


def _throttled(state: State, rules: AlertsSettings) -> Iterator[Finding]:
    for one in state.running:
        row = one.row
        key = (THROTTLED, row["broker_id"], row["user"], row["client_id"])
        yield Finding(key, True, partial(_words_of_throttle, state, row, rules))


def _words_of_throttle(state: State, row: Mapping[str, Any], rules: AlertsSettings) -> Words:
    user, client_id, quota_type = row["user"], row["client_id"], row["quota_type"]
    who = client_text(user, client_id)
    bound = "" if row["bound"] is None else f" of {bound_text(quota_type, row['bound'])}"
    observed = "" if row["observed"] is None else f": {rate_text(quota_type, row['observed'])}{bound}"
    annotations = {
        "summary": f"{who} is throttled for its {quota_type}{observed}",
        "action": command_text("throttles", "explain", row["decision_id"][:8]),
        **link(rules.external_url, user, client_id),
    }
    owner = state.levels.get((user, client_id, quota_type), {}).get("owner")
    labels = _labels(user, client_id, row["broker_id"], quota_type, owner)
    return _named(THROTTLED, state, rules, labels, annotations)


def _stalled(state: State, is_idle: bool, rules: AlertsSettings) -> Iterator[Finding]:
    health = state.health
    is_unreadable, age_ms = health.state == "unreadable", health.last_batch_age_ms
    is_late = age_ms is None or age_ms > rules.stalled_after_ms
    if not is_unreadable and (is_idle or not is_late):
        return
    # A batch that is late has its own age; what has none must be so for as long.
    pending_ms = rules.stalled_after_ms if is_unreadable or age_ms is None else 0
    since = "" if age_ms is None else f"; the newest micro-batch is {age_text(age_ms)} old"
    annotations = {
        "summary": shown(f"{health.title}{'' if 'batch' in health.title else since}", 300),
        "description": shown(health.text, 1_000),
        "action": f"{command_text('status')}; {command_text('doctor')}",
    }
    given = {name: text for name, text in annotations.items() if text}
    yield _of_pipeline(STALLED, state, rules, given, pending_ms)


def _of_pipeline(
    name: str, state: State, rules: AlertsSettings, annotations: Mapping[str, str], pending_ms: int
) -> Finding:
    return Finding((name,), True, partial(_named, name, state, rules, {}, annotations), pending_ms)


def _time_ahead(state: State, rules: AlertsSettings) -> Iterator[Finding]:
    if state.health.ahead_ms:
        ahead = age_text(state.health.ahead_ms)
        annotations = {
            "summary": f"the time of the newest micro-batch is {ahead} ahead of the wall clock: a clock was set back",
            "action": "compare the clocks of the brokers, of the job's machine and of this one",
        }
        yield _of_pipeline(TIME_AHEAD, state, rules, annotations, _AHEAD_PENDING_MS)


def _dead_letters(count: int, state: State, rules: AlertsSettings) -> Iterator[Finding]:
    if count:
        span = age_text(rules.dead_letters_ms)
        annotations = {
            "summary": f"{count} usage events or messages were refused in {span}",
            "action": "read cause and position in the table dead_letters",
        }
        yield _of_pipeline(DEAD_LETTERS, state, rules, annotations, 0)


def _labels(user: str, client_id: str, broker_id: str, quota_type: str, owner: str | None) -> dict[str, str]:
    """Labels as Prometheus has them: one without a value is left out."""
    names = ("user", "client_id", "broker_id", "quota_type", "owner")
    given = zip(names, (user, client_id, broker_id, quota_type, owner), strict=True)
    return {name: shown(value) for name, value in given if value}
