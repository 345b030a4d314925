"""The life of a throttle, as functions of values (no clock, no I/O). Each takes and gives whole columns.

    violated ──▶ publish `throttle` ──▶ check, `lead_ms` before the end ──▶ owes longer? ──▶ publish `renewed` ─┐
                     ▲                                     ▲     │ no                                │
                     └── violated again, ends clearly later ┘    ▼                                       check again
                                                         wait for the end, check again ──▶ owes? ──▶ publish `renewed`
                                                                                       │ no
                                                                                       ▼
                                                                              publish `release`

What "longer" and "clearly later" are, and how long a slice is: `quota.throttle_time`.

A check happens ahead of the end because a record needs time to take effect: a renewal that is published when the
throttle ends lets the client run for one loop delay in each cycle. For an offender at k times its quota that adds up to
a leak. A slice does not forgive the rest of a debt: the next check finds it in `owed_ms`.

The end is checked too. Usage may have arrived since the last check, and after a restart the end may have passed while
the job was down.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.throttle.shapes import (
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
from quota.throttle_time import Slicing, Step

if TYPE_CHECKING:
    from pipeline.throttle.shapes import Values


@dataclass(frozen=True, slots=True)
class Running:
    """Of each of n clients the throttle that is running, or the last one.

    Attributes:
        end_ms: Its end on the steady clock, int64[n]; far in the past where none is known.
        decision_id: The decision that began it, n strings; any string where there is none.
    """

    is_held: Flags
    end_ms: Ints
    decision_id: "pa.Array[Any]"


def violations_to_publish(violations: pa.Table, running: Running, now_ms: int, slicing: Slicing) -> pa.Table:
    """The batch's throttles that a client can obey and that change what it knows.

    A violation holds its client for the larger of X and of what its bucket owes, in slices. A client that is held hears
    of it only if its throttle would end clearly later than the end published last. Otherwise a client that ignores its
    throttle would get a record with every batch; the check before the end renews it anyway. Such an extension keeps the
    decision that began the throttle.

    * `violations`: Of `PUBLICATIONS`, one row per client, cause `violation`; `throttle_time_ms` is X, capped.
    """
    capped_ms = int64s(violations, "throttle_time_ms")
    owed_ms = np.maximum(int64s(violations, "owed_ms"), capped_ms)
    slices_ms = slicing.slices_ms(owed_ms, int64s(violations, "window_ms"), types_of(violations))
    slices_ms = np.maximum(slices_ms, capped_ms)
    left_ms = running.end_ms - now_ms
    is_published = slicing.is_published(owed_ms, slices_ms, left_ms, running.is_held)
    extends = pa.array(running.is_held)
    changed: dict[str, Values | str | int] = {
        "throttle_time_ms": pa.array(slices_ms),
        "decision_id": pc.if_else(extends, running.decision_id, violations["decision_id"]),
        "extends": extends,
    }
    published = table_of(PUBLICATIONS, violations.num_rows, columns_of(violations, PUBLICATIONS) | changed)
    return published.filter(pa.array(is_published))


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What a check decided: records of `PUBLICATIONS`, and the places of those that now wait for their end."""

    publications: pa.Table
    waiting: Ints


def is_at_end(throttles: pa.Table) -> Flags:
    """Which throttles have been checked, so that they expire next at their end: by the columns due_ms and end_ms."""
    return int64s(throttles, "due_ms") >= int64s(throttles, "end_ms")


def check(due: pa.Table, reasons: pa.Table, now_ms: int, slicing: Slicing) -> CheckResult:
    """Check throttles shortly before they end, and at their end (`Slicing.at_check`).

    * `due`: The throttles whose check or end has come, of `DUE`.
    * `reasons`: What each of their clients owes now, by the quota type that owes most; of `REASONS`, row for row.
    """
    at_end, due_ms = is_at_end(due), int64s(due, "due_ms")
    left_ms = np.maximum(int64s(due, "end_ms") - now_ms, 0)
    steps = slicing.at_check(int64s(reasons, "owed_ms"), left_ms, at_end)
    late = {
        "cause": pc.if_else(pa.array(steps == Step.HOLD), "renewed", "expired"),
        "due_ms": due["due_ms"],
        "lateness_ms": pa.array(np.maximum(int64s(due, "popped_ms") - due_ms, 0)),
    }
    return _check_result(due, reasons, steps, slicing, late)


def check_after_edit(throttles: pa.Table, reasons: pa.Table, now_ms: int, slicing: Slicing) -> CheckResult:
    """Check throttles whose bound, mode or level an operator has just changed (`Slicing.at_edit`).

    Under a shadow quota, an exemption, or no bound nothing is owed.

    * `throttles`: Of `HELD`.
    """
    left_ms = np.maximum(int64s(throttles, "end_ms") - now_ms, 0)
    steps = slicing.at_edit(int64s(reasons, "owed_ms"), left_ms, _bound_fell(throttles, reasons))
    return _check_result(throttles, reasons, steps, slicing, {"cause": "quota_changed"})


def _bound_fell(before: pa.Table, after: pa.Table) -> Flags:
    # No bound is infinity: it is below nothing, and nothing that is finite falls from it.
    bound_before, bound_after = bounds_of(before), bounds_of(after)
    is_same_type: Flags = types_of(before) == types_of(after)
    return is_same_type & np.isfinite(bound_before) & (bound_after < bound_before)


def _check_result(
    throttles: pa.Table, reasons: pa.Table, steps: Ints, slicing: Slicing, why: "dict[str, Values | str]"
) -> CheckResult:
    """A throttle for each that is held on, a release for each that is let go; the others wait."""
    holds, is_published = steps == Step.HOLD, steps != Step.WAIT
    slices_ms = slicing.slices_ms(int64s(reasons, "owed_ms"), int64s(reasons, "window_ms"), types_of(reasons))
    columns: dict[str, Values | str | int] = {
        **columns_of(throttles, CLIENTS),
        "action": pc.if_else(pa.array(holds), "throttle", "release"),
        "throttle_time_ms": pa.array(np.where(holds, slices_ms, 0)),
        **columns_of(reasons, REASONS),
        "decision_id": throttles["decision_id"],
        "extends": False,
        **why,
    }
    publications = table_of(PUBLICATIONS, len(steps), columns)
    if not is_published.all():
        publications = publications.filter(pa.array(is_published))
    return CheckResult(publications, np.flatnonzero(~is_published))
