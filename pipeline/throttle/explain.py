"""A throttle in one line, for logs and the demo: as the job writes it, and as the topic has it."""

from collections.abc import Mapping
from typing import Any

from pipeline.clock import SHOWN_DIGITS, clock_time, seconds
from pipeline.command_line import command_text
from pipeline.errors import printable
from quota.throttle_time import throttle_time_of
from quota.units import against_bound, rate_text, rate_unit
from schemas.throttle_record import BATCH_CAUSES, SENSOR, Target, ThrottleRecord, verb_of

Row = Mapping[str, Any]
"""A record with the columns of `pipeline.throttle.shapes.WRITTEN`."""


def line_of(row: Row, quota_version: int) -> str:
    """What happened, to whom, why and until when.

    Instants are UTC; O, T and a debt share one unit; seconds have one decimal. A bucket's debt is given where O ≤ T,
    and what is still owed where a client is released: they are why it is held, or the little that it is let go with.
    """
    who, held_ms, owed_ms = str(Target.of(row)), row["throttle_time_ms"], row["owed_ms"]
    if row["broker_id"]:
        who += f"@{row['broker_id']}"
    figures = f"{printable(who)} {row['quota_type']} {_rates(row)}"
    if row["action"] == "release":
        rest = f", owes {owed_ms} ms" if owed_ms else ""
        return f"release  {figures} ({row['cause']}{rest})"
    is_new = row["cause"] in BATCH_CAUSES and (row["bound"] is None or row["observed"] > row["bound"])
    asked_ms = throttle_time_of(row) if is_new else owed_ms
    asked = f"{'X' if is_new else 'owes'} {seconds(asked_ms)}"
    if is_new and held_ms > asked_ms:  # its bucket owes more
        asked_ms = owed_ms
        asked += f", owes {seconds(asked_ms)}"
    if held_ms < asked_ms:
        asked += f", capped {seconds(held_ms)}"
    verb = verb_of(row["action"], row["cause"])
    level = "" if row["level"] is None else f"level {row['level']}, "
    return (
        f"{verb:<8} {figures} ({level}quotas v{quota_version}) "
        f"W {seconds(row['window_ms'])} {asked}, until {clock_time(row['throttled_until_ms'])}"
    )


def line_with_command(row: Row, quota_version: int) -> str:
    """The line, and the command that shows more of it; only where the record is in the tables."""
    explain = command_text("throttles", "explain", row["decision_id"][:SHOWN_DIGITS])
    return f"{line_of(row, quota_version)} · {explain}"


def line_of_record(record: ThrottleRecord) -> str:
    """A record of the throttle topic as the job's own line, without its level."""
    row = {**dict(record), **dict(zip(SENSOR, record.sensor, strict=True)), "level": None}
    return line_with_command(row, record.quota_version)


def _rates(row: Row) -> str:
    quota_type, observed, bound = row["quota_type"], row["observed"], row["bound"]
    if bound is None:
        return f"O {rate_text(quota_type, observed)}, no bound"
    rates = against_bound(quota_type, observed, bound)
    debt = -min(row["tokens"] or 0.0, 0.0)
    if observed > bound or not debt or not row["owed_ms"]:
        return rates
    unit, factor = rate_unit(quota_type, bound)
    amount = "%·s" if unit == "%" else unit.removesuffix("/s")
    return f"{rates}, debt {debt / factor:.1f} {amount}"
