"""The life of a throttle, as functions of values (no clock, no I/O). Each takes and gives whole columns.

    violated ──▶ publish `throttle` ──▶ look, `lead_ms` before the end ──▶ owes longer? ──▶ publish `renewed` ─┐
                     ▲                                     ▲     │ no                                │
                     └── violated again, ends clearly later ┘    ▼                                       look again
                                                         wait for the end, look again ──▶ owes? ──▶ publish `renewed`
                                                                                       │ no
                                                                                       ▼
                                                                              publish `release`

A look happens ahead of the end because a record needs time to take effect: a renewal that is published when the
throttle ends lets the client run for one loop delay in each cycle. For an offender at k times its quota that adds up to
a leak. A slice does not forgive the rest of a debt: the next look finds it in `owed_ms`.

The end is looked at too. Usage may have arrived since the last look, and after a restart the end may have passed while
nobody was there to look. Only a client that owes no more than `republish_ms` is released.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.throttle.publications import (
    CLIENTS,
    PUBLICATIONS,
    REASONS,
    Flags,
    Ints,
    bounds_of,
    columns_of,
    int64s,
    table_of,
    types_of,
)
from quota.slicing import Slicing, ends_clearly_later

if TYPE_CHECKING:
    from pipeline.throttle.publications import Values


@dataclass(frozen=True, slots=True)
class Running:
    """Of each of n clients the throttle that is running.

    Attributes:
        is_held: Whether there is one, bool[n].
        end_ms: Its end on the steady clock, int64[n]; any number where there is none.
        decision_id: The decision that began it, n strings; any string where there is none.
    """

    is_held: Flags
    end_ms: Ints
    decision_id: "pa.Array[Any]"


def violations_to_publish(violations: pa.Table, running: Running, now_ms: int) -> pa.Table:
    """The batch's throttles that tell a client something new.

    A client that is held hears of a violation only if its throttle would end clearly later than the end published last:
    by more than a second and by more than a tenth of the new slice. Otherwise a client that ignores its throttle would
    get a record with every batch; the look before the end renews it anyway. Such an extension keeps the decision that
    began the throttle.

    Args:
        violations: Of `PUBLICATIONS`, one row per client, cause `violation`.
        running: What is running of each of these clients.
        now_ms: Steady time at which they will be written.
    """
    if not running.is_held.any():
        return violations
    slices_ms = int64s(violations, "throttle_time_ms")
    extends = running.is_held & ends_clearly_later(now_ms + slices_ms - running.end_ms, slices_ms)
    longer = pa.array(extends)
    began = pc.if_else(longer, running.decision_id, violations["decision_id"])
    told = table_of(
        PUBLICATIONS,
        violations.num_rows,
        {**columns_of(violations, PUBLICATIONS), "decision_id": began, "extends": longer},
    )
    return told.filter(pa.array(extends | ~running.is_held))


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a look decided.

    Attributes:
        publications: Records to publish, of `PUBLICATIONS`.
        waiting: Places of the throttles, among those looked at, that now wait for their end.
    """

    publications: pa.Table
    waiting: Ints


def is_at_end(throttles: pa.Table) -> Flags:
    """Of which throttles the next expiration is the end, the look having been taken: columns due_ms and end_ms."""
    return int64s(throttles, "due_ms") >= int64s(throttles, "end_ms")


def look(handed_out: pa.Table, reasons: pa.Table, now_ms: int, slicing: Slicing) -> Verdict:
    """Look at throttles shortly before they end, and at their end.

    Before the end: owes longer than what is left: renewed, ahead of time; else left to end. At the end: owes more than
    `republish_ms`: renewed; else released.

    Args:
        handed_out: The throttles whose look or end has come, of `HANDED_OUT`.
        reasons: What each of their clients owes now, by the quota type that owes most; of `REASONS`, row for row.
        now_ms: Steady time.
        slicing: Lead, caps and threshold.
    """
    at_end, due_ms = is_at_end(handed_out), int64s(handed_out, "due_ms")
    left_ms = np.maximum(int64s(handed_out, "end_ms") - now_ms, 0)
    renewed = int64s(reasons, "owed_ms") > np.where(at_end, slicing.republish_ms, left_ms)
    lateness_ms = np.maximum(int64s(handed_out, "handed_out_ms") - due_ms, 0)
    told = _told(handed_out, reasons, renewed, slicing)
    told |= {
        "cause": pc.if_else(pa.array(renewed), "renewed", "expired"),
        "due_ms": handed_out["due_ms"],
        "lateness_ms": pa.array(lateness_ms),
    }
    return _verdict(told, renewed | at_end)


def look_after_edit(throttles: pa.Table, reasons: pa.Table, now_ms: int, slicing: Slicing) -> Verdict:
    """Look at throttles whose bound, mode or level an operator has just changed.

    Nothing owed under the new quotas (also: shadow, exempt, no bound): released at once. Owes longer than what is
    left: renewed. Owes less than what is left by more than `republish_ms`: shortened to what is still owed, but
    only where the bound did not fall: a lower bound never shortens a throttle.

    Args:
        throttles: Of `HELD`.
        reasons: As for `look`.
        now_ms: Steady time.
        slicing: Lead, caps and threshold.
    """
    owed_ms = int64s(reasons, "owed_ms")
    left_ms = np.maximum(int64s(throttles, "end_ms") - now_ms, 0)
    shortened = (left_ms - owed_ms > slicing.republish_ms) & ~_bound_fell(throttles, reasons)
    released = owed_ms <= 0
    renewed = ~released & ((owed_ms > left_ms) | shortened)
    told = _told(throttles, reasons, renewed, slicing) | {"cause": "quota_changed"}
    return _verdict(told, renewed | released)


def _bound_fell(before: pa.Table, after: pa.Table) -> Flags:
    # No bound is infinity: it is below nothing, and nothing that is finite falls from it.
    bound_before, bound_after = bounds_of(before), bounds_of(after)
    is_same_type: Flags = types_of(before) == types_of(after)
    return is_same_type & np.isfinite(bound_before) & (bound_after < bound_before)


def _told(
    throttles: pa.Table, reasons: pa.Table, renewed: Flags, slicing: Slicing
) -> "dict[str, Values | str | int | bool]":
    """Columns of `PUBLICATIONS`: a throttle for each that is renewed, a release for each other."""
    slices_ms = slicing.renewals_ms(int64s(reasons, "owed_ms"), int64s(reasons, "window_ms"), types_of(reasons))
    return {
        **columns_of(throttles, CLIENTS),
        "action": pc.if_else(pa.array(renewed), "throttle", "release"),
        "throttle_time_ms": pa.array(np.where(renewed, slices_ms, 0)),
        **columns_of(reasons, REASONS),
        "decision_id": throttles["decision_id"],
        "extends": False,
    }


def _verdict(told: "dict[str, Values | str | int | bool]", is_told: Flags) -> Verdict:
    publications = table_of(PUBLICATIONS, len(is_told), told)
    if not is_told.all():
        publications = publications.filter(pa.array(is_told))
    return Verdict(publications, np.flatnonzero(~is_told))
