"""The records that were published for one decision, or why there are none, in words.

All times are of the driver's wall clock and to the millisecond, so that they add up: a slice that was written at one
instant for so long ends at the other.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from pipeline.tables.throttles.unpublished import Unpublished
from quota.units import rate_text
from schemas.throttle_record import verb, written_ms

_NO_TIME: Final = "its throttle time is 0 ms, rounded"
_NOT_APPLIED: Final = "the throttle of another quota type is longer, or as long, and stands for both"


def exact_seconds(duration_ms: int) -> str:
    """Milliseconds as seconds with three decimals: 10402 -> "10.402 s"."""
    return f"{duration_ms / 1000:.3f} s"


def record_lines(events: Sequence[Mapping[str, Any]], republish_ms: int) -> list[str]:
    """One line per record, after a line with the time held in all.

    Args:
        events: Rows of `throttle_events` of one decision, in their order; at least one.
        republish_ms: `purgatory.republish_ms`.
    """
    ends = [*map(written_ms, events[1:]), events[-1]["throttled_until_ms"]]
    held_ms = sum(
        max(min(event["throttled_until_ms"], end_ms) - written_ms(event), 0)
        for event, end_ms in zip(events, ends, strict=True)
    )
    lines = [f"published (held for {exact_seconds(held_ms)} in all; instants are UTC, by the driver's clock):"]
    return [*lines, *(_record_line(event, republish_ms) for event in events)]


def why_nothing(found: Unpublished, max_age_ms: int) -> str:
    """Why a decision has no record of its own, in one line."""
    record = found.record or {}
    record_name = f"record #{record.get('publish_seq')} of decision {record.get('decision_id')}"
    if found.cause == "too_old" and found.age_ms is not None:
        age = f"{exact_seconds(found.age_ms)} old when it was collected"
        return (
            f"published: nothing: it was {age}, more than stream.max_decision_age_ms = {max_age_ms}; "
            "so its usage charges the bucket down to -N * w * T at most"
        )
    reasons = {
        "shadow": "its quota is in shadow mode",
        "no_time": _NO_TIME,
        "not_applied": _NOT_APPLIED,
        "extension": f"under this id: it made a running throttle longer, with {record_name}",
        "too_old": "it was too old when the job could publish it, after a restart",
        "told_already": f"the client was told already: {record_name} holds it until "
        f"{_clock(record.get('throttled_until_ms', 0))}",
        "edited": f"quotas v{found.quota_version} came into force before it could be published",
    }
    separator = " " if found.cause == "extension" else ": "
    return f"published: nothing{separator}{reasons[found.cause]}"


def applied_text(decision: Mapping[str, Any]) -> str:
    """Whether a decision throttles its client, and why not: its mode first."""
    if decision["applied"]:
        return f"mode {decision['mode']}, applied"
    if decision["mode"] == "shadow":
        return "mode shadow, which throttles nobody"
    return f"mode {decision['mode']}, not applied: {_NOT_APPLIED if decision['throttle_time_ms'] else _NO_TIME}"


def _record_line(event: Mapping[str, Any], republish_ms: int) -> str:
    begin = f"  #{event['publish_seq']} {_clock(written_ms(event))}"
    late = "" if event["lateness_ms"] is None else f"; handed out {event['lateness_ms']} ms after it was due"
    if event["action"] == "release":
        return f"{begin} release  {event['cause']}: {_why_released(event, republish_ms)}{late}"
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


def _why_released(event: Mapping[str, Any], republish_ms: int) -> str:
    quota_type, bound, owed_ms = event["quota_type"], event["bound"], event["owed_ms"]
    observed = rate_text(quota_type, event["observed"])
    if bound is None:
        return f"O {observed}, no bound is enforced any more"
    sign = ">" if event["observed"] > bound else "≤"
    rates = f"O {observed} {sign} T {rate_text(quota_type, bound)}"
    if 0 < owed_ms <= republish_ms:
        return f"{rates}, owes {owed_ms} ms, not more than purgatory.republish_ms = {republish_ms}"
    return f"{rates}, owes {owed_ms} ms"


def _clock(epoch_ms: int) -> str:
    return f"{datetime.fromtimestamp(epoch_ms // 1000, UTC):%H:%M:%S}.{epoch_ms % 1000:03d}"
