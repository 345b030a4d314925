"""One decision in words: its numbers, how they come about, its records, and what the brokers enforce now."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from pipeline.clock import clock_time, seconds
from pipeline.tables.broker_quotas import enforced_for
from pipeline.tables.quotas.edit import shown
from pipeline.tables.quotas.history import QuotaOrigin
from pipeline.tables.rates import held_by_brokers
from pipeline.tables.throttles import (
    Held,
    Story,
    Unpublished,
    Wanted,
    origin_of_bound,
    running_throttles,
    story_of,
    tenant_of,
    why_unpublished,
)
from quota.effective import sensor_text, sharing_text
from quota.entity import QUOTA_TYPES, label
from quota.tenants import MEMBER_LEVEL, Tenant
from quota.units import against_bound, rate_text, rate_unit
from schemas.throttle_record import Target, verb, written_ms

if TYPE_CHECKING:
    from pipeline.settings.model import Settings
    from pipeline.tables.broker_quotas import Enforced


# The records of a decision, or why there are none. Times are of the driver's wall clock, to the millisecond.

_NO_TIME: Final = "its throttle time is 0 ms, rounded"
_WITH_USER: Final = "its user is held, with all client-ids of the sensor"
_OTHER_TYPE: Final = "the throttle of another quota type is longer, or as long, and stands for both"


def exact_seconds(duration_ms: int) -> str:
    """Milliseconds as seconds with three decimals: 10402 -> "10.402 s"."""
    return f"{duration_ms / 1000:.3f} s"


def record_lines(events: Sequence[Mapping[str, Any]], min_hold_ms: int) -> list[str]:
    """A line with the time held in all, and one for each row of `throttle_events` of a decision; at least one."""
    ends = [*map(written_ms, events[1:]), events[-1]["throttled_until_ms"]]
    held_ms = sum(
        max(min(event["throttled_until_ms"], end_ms) - written_ms(event), 0)
        for event, end_ms in zip(events, ends, strict=True)
    )
    lines = [f"published (held for {exact_seconds(held_ms)} in all; instants are UTC, by the driver's clock):"]
    return [*lines, *(_record_line(event, min_hold_ms) for event in events)]


def why_nothing(found: Unpublished, max_age_ms: int) -> str:
    """Why a decision has no record of its own, in one line."""
    record = found.record or {}
    record_name = f"record #{record.get('publish_seq')} of decision {record.get('decision_id')}"
    if found.cause == "too_old" and found.age_ms is not None:
        return (
            f"published: nothing: it was {exact_seconds(found.age_ms)} old when it was collected, more than "
            f"stream.max_decision_age_ms = {max_age_ms}; so its usage charges the bucket down to -N * w * T at most"
        )
    if found.cause == "too_short":
        soon = ", twice as long soon after a release" if found.record else ""
        return f"not published: shorter than min_hold_ms ({found.least_ms} ms{soon}); what it owes stays owed"
    reasons = {
        "shadow": "its quota is in shadow mode",
        "no_time": _NO_TIME,
        "with_user": f"{_WITH_USER}, by decision {record.get('decision_id')}",
        "other_type": _OTHER_TYPE,
        "extension": f"under this id: it made a running throttle longer, with {record_name}",
        "too_old": "it was too old when the job could publish it, after a restart",
        "told_already": f"the client already waits: {record_name} holds it until "
        f"{_clock(record.get('throttled_until_ms', 0))}",
        "edited": f"{found.edit} came into force before it could be published",
    }
    separator = " " if found.cause == "extension" else ": "
    return f"published: nothing{separator}{reasons[found.cause]}"


def hold_text(decision: Mapping[str, Any], unpublished: Unpublished | None) -> str:
    """Whether a decision asks for a hold, and why not: its mode first."""
    if decision["asks_hold"] or unpublished is None:
        return f"mode {decision['mode']}, asks for a hold"
    if decision["mode"] == "shadow":
        return "mode shadow, which never throttles"
    why = {"no_time": _NO_TIME, "with_user": _WITH_USER}.get(unpublished.cause, _OTHER_TYPE)
    return f"mode {decision['mode']}, asks for no hold: {why}"


def _record_line(event: Mapping[str, Any], min_hold_ms: int) -> str:
    begin = f"  #{event['publish_seq']} {_clock(written_ms(event))}"
    late = "" if event["lateness_ms"] is None else f"; handed out {event['lateness_ms']} ms after it was due"
    if event["action"] == "release":
        return f"{begin} release  {event['cause']}: {_why_released(event, min_hold_ms)}{late}"
    slice_ms, until = event["throttle_time_ms"], _clock(event["throttled_until_ms"])
    return f"{begin} {verb(event):<8} for {exact_seconds(slice_ms)} until {until}: {_owes(event)}{late}"


def _owes(event: Mapping[str, Any]) -> str:
    owed, bound = exact_seconds(event["owed_ms"]), event["bound"]
    if bound is None or (event["tokens"] or 0.0) >= 0:
        return f"owes {owed}"
    amount = rate_text(event["quota_type"], -event["tokens"])
    debt = f"{amount}·s" if amount.endswith("%") else amount.removesuffix("/s")
    by_rate_ms = max((event["observed"] - bound) / bound * event["window_ms"], 0)
    # Rounded to whole milliseconds, both; the larger of the two is owed.
    return f"owes {owed} by its {'debt of ' + debt if event['owed_ms'] > by_rate_ms + 1 else 'rate'}"


def _why_released(event: Mapping[str, Any], min_hold_ms: int) -> str:
    quota_type, bound, owed_ms = event["quota_type"], event["bound"], event["owed_ms"]
    if event["cause"] == "forgiven":
        return f"quotas v{event['quota_version']} forgive what it owed, {exact_seconds(owed_ms)}"
    if bound is None:
        return f"O {rate_text(quota_type, event['observed'])}, no bound is enforced any more"
    rates = against_bound(quota_type, event["observed"], bound)
    if 0 < owed_ms <= min_hold_ms:
        return f"{rates}, owes {owed_ms} ms, not more than purgatory.min_hold_ms = {min_hold_ms}"
    return f"{rates}, owes {owed_ms} ms"


def _clock(epoch_ms: int) -> str:
    return f"{datetime.fromtimestamp(epoch_ms // 1000, UTC):%H:%M:%S}.{epoch_ms % 1000:03d}"


# Native quotas on the brokers.


def on_brokers_row(one: "Enforced") -> dict[str, Any]:
    """For programs: the columns of the row of `broker_quotas`."""
    change = one.change
    rest = {name: getattr(change, name) for name in ("bound", "kind", "cause", "demand")}
    return {**change.key._asdict(), "cluster": one.cluster, "value": change.new, **rest, "since_ms": one.at_ms}


def on_brokers_line(one: "Enforced") -> str:
    """`350.0 kB/s of T 1.0 MB/s on each broker, for client-id 'etl', since …: why; requested of broker 1: 2.0 MB/s`."""
    from quota.broker_levels.writes import WORDS  # noqa: PLC0415 - it loads numpy, which most stories need not

    change, key = one.change, one.change.key
    value, bound = (rate_text(key.quota_type, rate or 0.0) for rate in (change.new, change.bound))
    of_bound = "" if change.new == change.bound else f" of T {bound}"
    since = datetime.fromtimestamp(one.at_ms // 1000, UTC)
    wanted = ", ".join(
        f"{broker_id}: {'more than it gets' if rate is None else rate_text(key.quota_type, rate)}"
        for broker_id, rate in change.demand.items()
    )
    request = f"; requested of broker {wanted}" if wanted else ""
    return (
        f"{value}{of_bound} on each broker, for {label(key.user, key.client_id)}, since {since:%Y-%m-%d %H:%M:%S} UTC: "
        f"{WORDS[change.cause]}{request}"
    )


_MOST_DECIMALS: Final = 16
_LEVELS: Final = (
    "",
    "its own user and client-id",
    "its user and the default client-id",
    "its user",
    "the default user and its client-id",
    "the default user and the default client-id",
    "the default user",
    "its client-id",
    "the default client-id",
    "a member of a tenant without a quota of its own",
)


@dataclass(frozen=True, slots=True)
class StoryText:
    """A decision from its figures to its end: `kquota throttles explain` prints it, and the page shows it.

    Attributes:
        facts: (name, text): how its numbers come about, in order.
        samples: What the samples are, or that they are no longer kept.
        published: A line on the records, and one for each.
        now: How the client is held now that was asked for; None if a decision was asked for.
        document: For programs.
    """

    story: Story
    title: str
    facts: Sequence[tuple[str, str]]
    samples: str
    published: Sequence[str]
    now: str | None
    document: Mapping[str, Any]


def tell_story(
    settings: "Settings",
    decision: Mapping[str, Any],
    now_ms: int | None = None,
    client: tuple[str, str | None] | None = None,
    running: Sequence[Mapping[str, Any]] | None = None,
) -> StoryText:
    """Read the story of a row of `decisions`, and describe it: its numbers, samples, records, and what brokers enforce.

    Args:
        now_ms: The wall clock, if also is to be said how a client is held now; None = not.
        client: That one, a user with None for all its client-ids; by default the decision's.
        running: The last records of all who are held at `now_ms`, if these are known; see `running_throttles`.
    """
    root = settings.tables.root
    story = story_of(root, decision)
    row = story.decision
    max_age_ms, min_hold_ms = settings.stream.max_decision_age_ms, settings.purgatory.min_hold_ms
    unpublished = None if story.events else why_unpublished(root, row, max_age_ms, min_hold_ms)
    nothing = None if unpublished is None else why_nothing(unpublished, max_age_ms)
    on_brokers = enforced_for(root, row["user"], row["client_id"] or "", [row["quota_type"]])
    set_by, now = None if row["level"] is None else origin_line(row, origin_of_bound(root, row)), None
    tenant = tenant_of(root, row)
    if now_ms is not None:
        user, client_id = client or (row["user"], row["client_id"])
        if running is None:
            running = running_throttles(root, now_ms, Wanted(user, client_id), min_hold_ms)
        until_ms = held_until_ms(running, story.events, now_ms, user, client_id)
        since_ms = None if until_ms else free_since_ms(story.events)
        by_brokers = held_by_brokers(root, user, client_id, now_ms)
        now = now_line(until_ms, since_ms, now_ms, by_brokers)
    document: dict[str, Any] = {
        "decision": row,
        "bound_set": set_by,
        "sharing": sharing_line(row, tenant),
        "unpublished": nothing,
        "on_brokers": [on_brokers_row(one) for one in on_brokers],
        "events": story.events,
        "samples": story.samples,
    }
    if now_ms is not None:
        document |= {"held_by_brokers": by_brokers, "held_until_ms": until_ms, "free_since_ms": since_ms}
    return StoryText(
        story,
        f"decision {row['decision_id']}: {Target.of(row)} is over {row['quota_type']}",
        [
            *_facts(row, unpublished),
            *_shared(row, tenant),
            *_held_clients(row, story.events),
            *([] if set_by is None else [("T set" if row["tenant"] is None else "own T set", set_by)]),
            *(("brokers", on_brokers_line(one)) for one in on_brokers),
        ],
        _samples_title(story, settings.engine.sample_window_ms),
        record_lines(story.events, min_hold_ms) if nothing is None else [nothing],
        now,
        document,
    )


def _held_clients(row: Mapping[str, Any], events: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    """Whom the throttle of a user holds."""
    if row["client_id"] is None:
        excepted = ", ".join(events[-1]["except_client_ids"] or ()) if events else ""
        yield "holds", f"all client-ids of {row['user']}" + (f", but {excepted}" if excepted else "")


def sharing_line(row: Mapping[str, Any], tenant: Tenant | None) -> str | None:
    """What a member might use of its tenant's bound when it was decided, in one line; None without a tenant."""
    if row["tenant"] is None or row["bound"] is None:
        return None
    quota_type = row["quota_type"]
    whole = None if tenant is None else tenant.bounds[QUOTA_TYPES.index(quota_type)]
    who = sensor_text(row["level"], row["sensor_user"], row["sensor_client_id"])
    is_at_rest = row["tenant_level"] is None and row["level"] is not None  # a record does not have either
    of_tenant = row["tenant"], whole, row["own_bound"], row["bound"], is_at_rest
    return sharing_text(who, quota_type, *of_tenant, is_shadow=row.get("mode") == "shadow")


def _shared(row: Mapping[str, Any], tenant: Tenant | None) -> Iterator[tuple[str, str]]:
    """What the bound of a tenant's member is made of."""
    line = sharing_line(row, tenant)
    if line is not None:
        yield "tenant", line


def free_since_ms(events: Sequence[Mapping[str, Any]]) -> int | None:
    """When a client that is not held was let go: by a release, or as its throttle ended before; None without records.

    Args:
        events: The records of its newest throttle, in the order of `publish_seq`.
    """
    if not events:
        return None
    released_ms = [written_ms(row) for row in events[-1:] if row["action"] == "release"]
    ends = [row["throttled_until_ms"] for row in events if row["action"] == "throttle"]
    return min([*ends[-1:], *released_ms], default=None)


def held_until_ms(
    running: Sequence[Mapping[str, Any]],
    events: Sequence[Mapping[str, Any]],
    now_ms: int,
    user: str,
    client_id: str | None,
) -> int | None:
    """Until when a client is held; None if it is not. `events` may end with a throttle that `running` is older than."""
    newer = [row for row in events[-1:] if row["action"] == "throttle" and row["throttled_until_ms"] > now_ms]
    return Held([*running, *newer]).until_ms(user, client_id)


def now_line(until_ms: int | None, since_ms: int | None, now_ms: int, by_brokers: str | None = None) -> str:
    """`now: held until 12:00:17.8, 4.2 s left`, or `now: not held since …`; instants are UTC.

    * `since_ms`: When it was let go; None if that is not known.
    * `by_brokers`: What the brokers themselves did, in words: see `pipeline.tables.rates`.
    """
    also = f"; {by_brokers}" if by_brokers else ""
    by_kquota = " by kquota" if by_brokers else ""
    if until_ms is not None:
        return f"now: held{by_kquota} until {clock_time(until_ms)}, {seconds(until_ms - now_ms)} left{also}"
    since = "" if since_ms is None else f" since {clock_time(since_ms)}"
    return f"now: not held{by_kquota}{since}{also}"


def origin_line(decision: dict[str, Any], origin: QuotaOrigin | None) -> str:
    """The edit that set T, in one line: version, old and new bound, when, by whom, why."""
    if decision["level"] == MEMBER_LEVEL:
        own = rate_text(decision["quota_type"], decision["own_bound"])
        return f"by version {decision['tenants_version']} of the tenants: {own} for those without a quota of their own"
    if origin is None:
        return f"quota table version {decision['quota_version']} can no longer be read"
    before, after = (shown(decision["quota_type"], bound) or "none" for bound in (origin.before, origin.after))
    change = f"{before} → {after}" if origin.is_exact else after
    line = f"{'by' if origin.is_exact else 'in or before'} quota table version {origin.version}: {change}"
    if origin.commit is None:
        return line
    line += f", {origin.commit.committed_at:%Y-%m-%d %H:%M:%S} UTC"
    audit = origin.commit.audit
    if audit is None:
        return f"{line}, by another tool ({origin.commit.operation})"
    return f"{line}, by {audit.actor} at {audit.host}" + (f": {audit.reason}" if audit.reason else ", no reason given")


def _in_words(decision: dict[str, Any], rate: float) -> str:
    """The size of a large byte rate, next to its number: ` (1.0 MB/s)`."""
    is_large = rate_unit(decision["quota_type"], rate)[1] > 1.0
    return f" ({rate_text(decision['quota_type'], rate)})" if is_large else ""


def _facts(row: dict[str, Any], unpublished: Unpublished | None) -> list[tuple[str, str]]:
    unit = "% of one thread" if row["quota_type"] == "request_percentage" else "bytes/s"
    observed, bound, window_ms = row["observed"], row["bound"], row["window_ms"]
    tags = (("user", row["sensor_user"]), ("client-id", row["sensor_client_id"]))
    shared = " and ".join(f"{kind} {name}" for kind, name in tags if name)
    at = f"{clock_time(row['evaluated_at_ms'])} UTC, batch {row['batch_id']}"
    rates = [
        ("sensor", f"{shared}: everything that shares it is counted together"),
        ("observed", f"O = {observed:.1f} {unit}{_in_words(row, observed)}, over W = {exact_seconds(window_ms)}"),
        *([] if bound is None else [("bound", f"T = {bound:.1f} {unit}{_in_words(row, bound)}")]),
    ]
    if row["level"] is None:
        return [
            ("at", f"{at}, by its first record: the decision itself is not stored yet, or not kept any more"),
            *rates,
        ]
    is_debt, asked_ms = row["cause"] == "debt", row["raw_throttle_time_ms"]
    if is_debt:
        asked_ms = row["owed_ms"]
        by = "its rate" if row["raw_throttle_time_ms"] == asked_ms else f"a bucket at {row['tokens']:.1f}"
        asked = ("debt", f"usage of before the newest windows: {exact_seconds(asked_ms)} are owed, by {by}")
    else:
        asked = ("throttle", f"X = (O − T) / T · W = {computed_time(observed, bound, window_ms, asked_ms)}")
    facts = [
        ("at", f"{at}, {hold_text(row, unpublished)}"),
        ("quota", f"level {row['level']} ({_LEVELS[row['level']]}), quota table version {row['quota_version']}"),
        *rates,
        asked,
    ]
    rest_ms = asked_ms - row["throttle_time_ms"]
    if rest_ms:
        facts.append(("capped", f"to {row['throttle_time_ms']} ms; the other {rest_ms} ms stay owed"))
    return facts


def computed_time(observed: float, bound: float, window_ms: int, throttle_ms: int) -> str:
    """The formula in figures, with as many decimals as it takes to come to the same whole milliseconds."""
    for decimals in range(1, _MOST_DECIMALS + 1):
        o, t = f"{observed:.{decimals}f}", f"{bound:.{decimals}f}"
        exact_ms = (float(o) - float(t)) / float(t) * window_ms if float(t) else 0.0
        if math.floor(exact_ms + 0.5) == throttle_ms:
            break
    rounded = "" if exact_ms == throttle_ms else f" = {exact_ms:.2f} ms, rounded"
    return f"({o} − {t}) / {t} · {window_ms} ms{rounded} = {throttle_ms} ms"


def _samples_title(story: Story, sample_window_ms: int) -> str:
    if not story.samples:
        return "samples: no longer kept (usage is trimmed after its retention)"
    name = "ms of thread time" if story.decision["quota_type"] == "request_percentage" else "kB"
    return f"samples of {seconds(sample_window_ms)} ({name}; │ marks what the bound allows in one):"
