"""A throttle in one line, for logs and the demo: as the job writes it, and as the topic has it."""

import numpy as np

from pipeline.clock import SHOWN_DIGITS, clock_time, seconds
from pipeline.command_line import command_text
from pipeline.errors import printable
from pipeline.throttle.shapes import Publication, Reason, Written
from quota.throttle_time import throttle_time_ms
from quota.units import against_bound, rate_text, rate_unit
from schemas.names import ClientKey
from schemas.throttle_record import ThrottleRecord, verb_of


def line_of(record: Written, quota_version: int) -> str:
    """What happened, to whom, why and until when.

    Instants are UTC; O, T and a debt share one unit; seconds have one decimal. A bucket's debt is given where O ≤ T,
    and what is still owed where a client is released: they are why it is held, or the little that it is let go with.
    """
    publication, reason = record.publication, record.publication.reason
    who = f"{publication.key.user}/{publication.key.client_id}"
    if publication.key.broker_id:
        who += f"@{publication.key.broker_id}"
    figures = f"{printable(who)} {reason.quota_type} {_rates(reason)}"
    if publication.action == "release":
        rest = f", owes {reason.owed_ms} ms" if reason.owed_ms else ""
        return f"release  {figures} ({publication.cause}{rest})"
    is_new = publication.cause == "violation"
    asked_ms = _raw_throttle_time_ms(reason) if is_new else reason.owed_ms
    asked = f"{'X' if is_new else 'owes'} {seconds(asked_ms)}"
    if is_new and publication.throttle_time_ms > asked_ms:  # its bucket owes more
        asked_ms = reason.owed_ms
        asked += f", owes {seconds(asked_ms)}"
    if publication.throttle_time_ms < asked_ms:
        asked += f", capped {seconds(publication.throttle_time_ms)}"
    verb = verb_of(publication.action, publication.cause, publication.extends)
    level = "" if reason.level is None else f"level {reason.level}, "
    return (
        f"{verb:<8} {figures} ({level}quotas v{quota_version}) "
        f"W {seconds(reason.window_ms)} {asked}, until {clock_time(record.throttled_until_ms)}"
    )


def line_with_command(record: Written, quota_version: int) -> str:
    """The line, and the command that shows more of it; only where the record is in the tables."""
    explain = command_text("throttles", "explain", record.publication.decision_id[:SHOWN_DIGITS])
    return f"{line_of(record, quota_version)} · {explain}"


def _raw_throttle_time_ms(reason: Reason) -> int:
    if reason.bound is None:
        return 0
    observed, bound = np.array([reason.observed]), np.array([reason.bound])
    return int(throttle_time_ms(observed, bound, np.array([reason.window_ms]))[0])


def _rates(reason: Reason) -> str:
    observed, bound = reason.observed, reason.bound
    if bound is None:
        return f"O {rate_text(reason.quota_type, observed)}, no bound"
    rates = against_bound(reason.quota_type, observed, bound)
    debt = -min(reason.tokens or 0.0, 0.0)
    if observed > bound or not debt or not reason.owed_ms:
        return rates
    unit, factor = rate_unit(reason.quota_type, bound)
    amount = "%·s" if unit == "%" else unit.removesuffix("/s")
    return f"{rates}, debt {debt / factor:.1f} {amount}"


def line_of_record(record: ThrottleRecord, extends: bool) -> str:
    """A record of the throttle topic as the job's own line, without its level."""
    figures = record.quota_type, *record.sensor, record.observed, record.bound, record.window_ms, record.tokens
    publication = Publication(
        key=ClientKey(record.broker_id, record.user, record.client_id),
        action=record.action,
        cause=record.cause,
        throttle_time_ms=record.throttle_time_ms,
        reason=Reason(*figures, record.owed_ms, level=None),
        decision_id=record.decision_id,
        extends=extends,
    )
    return line_with_command(Written(publication, record.publish_seq, record.throttled_until_ms), record.quota_version)
