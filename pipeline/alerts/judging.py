"""What the tables say, as findings: a function of the state that the dashboard's reader makes of them."""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Final

from pipeline.alerts.facts import (
    AT_BOUND,
    DEAD_LETTERS,
    NEAR_BOUND,
    STALLED,
    THROTTLED,
    TIME_AHEAD,
    Facts,
    Finding,
    Words,
)
from pipeline.alerts.words import client_text, link, shown
from pipeline.command_line import command_text
from pipeline.dashboard.live_rates import SensorRate
from pipeline.dashboard.state import State
from pipeline.settings.alerts import AlertsSettings
from quota.units import age_text, bound_text, rate_text

_SEVERITY: Final = {
    NEAR_BOUND: "info",
    AT_BOUND: "warning",
    THROTTLED: "warning",
    STALLED: "critical",
    DEAD_LETTERS: "warning",
    TIME_AHEAD: "warning",
}
_NOT_TRUE_ANY_MORE_MS: Final = 15_000
"""A rate is over the last 12 s: when the newest batch is older, the rates of now are not known."""
_AHEAD_PENDING_MS: Final = 30_000
"""A step of less than the windows is made up for by then, and after a larger one a new time epoch has begun."""


def facts_of(state: State, dead_letters: int, is_idle: bool, rules: AlertsSettings) -> Facts:
    """All that is known at `state.now_ms`.

    Args:
        state: What the tables say.
        dead_letters: How many were refused in the last `rules.dead_letters_ms`.
        is_idle: The job was seen to wait for usage, and there is none: that is no failure, and all rates are 0.
        rules: Thresholds and spans.
    """
    findings = [*_stalled(state, is_idle, rules)]
    if state.health.state == "unreadable":
        return Facts(findings, frozenset({NEAR_BOUND, AT_BOUND, THROTTLED, DEAD_LETTERS, TIME_AHEAD}))
    findings += _time_ahead(state)
    findings += _throttled(state, rules)
    findings += _dead_letters(dead_letters, state, rules)
    age_ms = state.health.last_batch_age_ms
    is_old = age_ms is not None and age_ms > _NOT_TRUE_ANY_MORE_MS
    if not is_old:
        for name, percent in ((NEAR_BOUND, rules.near_bound_percent), (AT_BOUND, rules.at_bound_percent)):
            findings += _bounds(state, name, percent, rules)
    unknown = frozenset({NEAR_BOUND, AT_BOUND}) if is_old and not is_idle else frozenset[str]()
    return Facts(findings, unknown)


def _named(name: str, state: State, labels: Mapping[str, str], annotations: Mapping[str, str]) -> Words:
    cluster = {} if state.cluster is None else {"cluster": shown(state.cluster)}
    return Words({"alertname": name, "severity": _SEVERITY[name], **cluster, **labels}, annotations)


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
        "action": f"tell its owner, or look what a larger quota would do: {command_text('what-if', '--help')}",
        **link(rules.external_url, one.user, one.client_id),
    }
    labels = _labels(one.sensor_user, one.sensor_client_id, one.broker_id, one.quota_type, one.owner)
    return _named(name, state, labels, annotations)


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
    return _named(THROTTLED, state, _labels(user, client_id, row["broker_id"], quota_type, owner), annotations)


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
    words = _named(STALLED, state, {}, {name: text for name, text in annotations.items() if text})
    yield Finding((STALLED,), True, lambda: words, pending_ms)


def _time_ahead(state: State) -> Iterator[Finding]:
    if state.health.ahead_ms:
        ahead = age_text(state.health.ahead_ms)
        annotations = {
            "summary": f"the time of the newest micro-batch is {ahead} ahead of the wall clock: a clock was set back",
            "action": "compare the clocks of the brokers, of the job's machine and of this one",
        }
        words = _named(TIME_AHEAD, state, {}, annotations)
        yield Finding((TIME_AHEAD,), True, lambda: words, _AHEAD_PENDING_MS)


def _dead_letters(count: int, state: State, rules: AlertsSettings) -> Iterator[Finding]:
    if count:
        span = age_text(rules.dead_letters_ms)
        annotations = {
            "summary": f"{count} usage events or messages were refused in {span}",
            "action": "read cause and position in the table dead_letters",
        }
        words = _named(DEAD_LETTERS, state, {}, annotations)
        yield Finding((DEAD_LETTERS,), True, lambda: words)


def _labels(user: str, client_id: str, broker_id: str, quota_type: str, owner: str | None) -> dict[str, str]:
    """Labels as Prometheus has them: one without a value is left out."""
    given = {
        "user": user,
        "client_id": client_id,
        "broker_id": broker_id,
        "quota_type": quota_type,
        "owner": owner or "",
    }
    return {name: shown(value) for name, value in given.items() if value}
