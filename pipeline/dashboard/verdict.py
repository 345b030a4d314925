"""What matters first: the verdict on an instant, what is near, what counts as a hold, what is on target. Pure.

The API gives these judgements, and the page only draws them: so whoever asks gets the same one.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal

from pipeline.tables.rates import NEAR
from quota.units import age_text, rate_text

_LOW: Final = 0.05
_STEADY: Final = 0.1
_MANY_TIMES: Final = 2
_WHOLE_TIMES: Final = 10

Standing = Literal["over", "near", "within", "shadow", "unused"]


def standing(used: float | None, mode: str) -> Standing:
    """How a rate stands to its bound: `used` is O / T, None without usage. A shadow quota is never over or near."""
    if mode == "shadow":
        return "shadow"
    if not used:
        return "unused"
    return "over" if used > 1 else "near" if used >= NEAR else "within"


def client_text(user: str, client_id: str) -> str:
    """The client as commands take it: `alice/etl`, or `alice` without a client-id."""
    return f"{user}/{client_id}" if client_id else user


def used_text(used: float) -> str:
    """A rate in terms of its bound, cut off, so that 100 % is never shown of what is below it.

    >>> used_text(0.997), used_text(1.26), used_text(5.0), used_text(31.4)
    ('99 %', '126 %', '5 ×', '31 ×')
    """
    if used < _MANY_TIMES:
        return f"{int(used * 100)} %"
    return f"{int(used)} ×" if used >= _WHOLE_TIMES else f"{int(used * 10) / 10:g} ×"


def times_text(used: float) -> str:
    """The same before "its quota": "126 % of", "5 ×"."""
    text = used_text(used)
    return f"{text} of" if text.endswith("%") else text


def verdict(now_ms: int, held: Sequence[Mapping[str, Any]], nearest: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The sentence that the view Now begins with.

    Args:
        now_ms: The instant, by wall clock.
        held: Rows of `throttled_row` that count as a hold.
        nearest: Sensors, the nearest to their bound first: user, client_id, share and mode.

    Returns:
        `kind`: held, over, near, within, or none (no usage under a quota); and `text`.
    """
    if held:
        return {"kind": "held", "text": _held_text(now_ms, held)}
    if not nearest:
        return {"kind": "none", "text": "no client used anything under a quota lately"}
    first = next((row for row in nearest if row["mode"] == "enforce"), nearest[0])
    who = f"{client_text(first['user'], first['client_id'])} {used_text(first['share'])}"
    if first["mode"] != "enforce":
        return {"kind": "within", "text": f"no quota is enforced here, all are in shadow mode; nearest: {who}"}
    if first["share"] > 1:
        return {"kind": "over", "text": f"no client is held; over its quota for a moment: {who}"}
    text = f"all within their quotas; nearest: {who}"
    return {"kind": "near" if first["share"] >= NEAR else "within", "text": text}


def _held_text(now_ms: int, held: Sequence[Mapping[str, Any]]) -> str:
    worst = max(held, key=lambda row: (row["most_used"] or 0, row["throttled_until_ms"]))
    count = len(held)
    are = "is" if count == 1 else "are"
    times = "" if worst["most_used"] is None else f", {times_text(worst['most_used'])} its quota"
    who = client_text(worst["user"], worst["client_id"])
    most = "" if count == 1 else "most over: "
    left = age_text(max(worst["throttled_until_ms"] - now_ms, 1_000))
    return f"{count:,} client{'' if count == 1 else 's'} {are} held: {most}{who}, {left} left{times}"


def collapsed(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Records, newest first, as one row per client: its newest, with their number (`records`) and the first's instant.

    `rows` have `broker_id`, `user`, `client_id` and `at_ms`.
    """
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in rows:
        key = row["broker_id"], row["user"], row["client_id"]
        newest = found.setdefault(key, {**row, "records": 0})
        newest |= {"records": newest["records"] + 1, "first_ms": row["at_ms"]}
    return [*found.values()]


def shown_as(types: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """How the view Client shows each quota type: `chart`, `line` or `none`.

    A chart is for what comes to at least 5 % of its bound, or was decided about. If no type does, the first that has
    usage gets one, else the first with a bound.

    Args:
        types: By quota type `most`, the largest rate in the span; `bound`, the largest bound or None; `decided`,
            whether there was a decision or a throttle.
    """
    found = {}
    for name, one in types.items():
        is_chart = one["decided"] or (one["bound"] is not None and one["most"] >= _LOW * one["bound"])
        is_known = one["most"] > 0 or one["bound"] is not None
        found[name] = "chart" if is_chart else "line" if is_known else "none"
    if "chart" not in found.values():
        known = [name for name in types if types[name]["most"] > 0] or [name for name in found if found[name] == "line"]
        found |= dict.fromkeys(known[:1], "chart")
    return found


def protection_text(before: float, during: float, others: int) -> str:
    """What the neighbours of a held client did, in words; both rates are sums in bytes per second."""
    if not others:
        return "No other client used anything then."
    after = rate_text("producer_byte_rate", during)
    who = "The other client" if others == 1 else f"The {others:,} others"
    if before <= 0:
        return f"{who} used {after} while it was held, and nothing before."
    change = during / before - 1
    if abs(change) < _STEADY:
        return f"{who} went on as before: {after}."
    more = "more" if change > 0 else "less"
    return f"{who} used {abs(change):.0%} {more} while it was held than before: {after}.".replace("%", " %")


# The figures of the view Pipeline, each with what it should be.

_AGE_TARGET_MS: Final = 5_000
_DELAY_TARGET_MS: Final = 5_000
_PUNCTUAL_MS: Final = 50


def gauges(
    *,
    age_ms: int | None,
    delay_ms: int | None,
    ahead_ms: int,
    events_per_second: float | None,
    late: int,
    held: int,
    late_p99_ms: int | None,
    unreadable: int,
) -> list[dict[str, Any]]:
    """The figures on top of the view Pipeline, each with its target, how it stands to it, and what it means.

    Returns:
        `name`, `label`, `value` (None = not known), `unit` (ms, count or per_second), `target` in words ("" for none),
        `standing` (good, bad or unknown) and `why`.
    """
    delay = (
        ("Clock ahead", ahead_ms, "By how much the clock of the usage is ahead of this machine's.", 0)
        if ahead_ms
        else ("Delay of usage", delay_ms, "How old the newest usage was when the job read it.", _DELAY_TARGET_MS)
    )
    return [
        _gauge(
            "age", "Last update", age_ms, "ms", _AGE_TARGET_MS,
            "How long ago the job stored its newest micro-batch. If it grows, running throttles end by themselves and "
            "no new ones begin.",
        ),
        _gauge("delay", delay[0], delay[1], "ms", delay[3], delay[2]),
        _late(events_per_second, late),
        _gauge("held", "Held clients", held, "count", None, "Clients that wait for the end of a throttle now."),
        _gauge(
            "punctuality", "Release punctuality", late_p99_ms, "ms", _PUNCTUAL_MS,
            "How late a client is let go after the end of its throttle: 99 of 100 releases are within this time.",
        ),
        _gauge(
            "unreadable", "Unreadable messages", unreadable, "count", 0,
            "Messages of the last hour that are not usage events. They are kept as dead letters, and count for no one.",
        ),
    ]  # fmt: skip


def _late(events_per_second: float | None, late: int) -> dict[str, Any]:
    why = "Usage events that the job reads. One that is late is older than the windows of the rates: it counts for the "
    found = _gauge("events", "Usage events", events_per_second, "per_second", None, f"{why}debt, not for the rate.")
    target = "none late" if not late else f"none late, {late:,} are"
    return found | {"target": target, "standing": "bad" if late else "unknown" if events_per_second is None else "good"}


def _gauge(name: str, label: str, value: float | None, unit: str, most: int | None, why: str) -> dict[str, Any]:
    target = ""
    if most is not None:
        target = f"at most {most / 1000:g} s" if most >= 1_000 else f"at most {most} ms" if most else "0"
    stands = "unknown" if value is None or most is None else "good" if value <= most else "bad"
    return {
        "name": name,
        "label": label,
        "value": value,
        "unit": unit,
        "target": target,
        "standing": stands,
        "why": why,
    }
