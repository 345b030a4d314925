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

import numpy as np
from numpy.typing import NDArray

from pipeline.throttle.shapes import Flags, Ints
from quota.arrays import Floats, Ids
from quota.decisions import Asked, Claims
from quota.throttle_time import Slicing, Step

Holds = NDArray[np.object_]
"""An array of `ledger.Hold`."""


@dataclass(frozen=True, slots=True)
class Throttles:
    """Throttles that run, one for each of n clients: of the last record of each the type, bound and level.

    Attributes:
        holds: The `ledger.Hold` of each.
        bound: T, infinity for none.
        level: 0 where it is not known.
        kind: The `LevelKind` of its sensor.
        forgiven_ms: Until when debts of its sensor were forgiven by then; 0 for never.
        end_ms: Its end on the steady clock.
        due_ms: When its check is due there, or its end.
    """

    holds: Holds
    quota_type: Ints
    bound: Floats
    level: Ints
    kind: Ints
    forgiven_ms: Ints
    end_ms: Ints
    due_ms: Ints

    def __len__(self) -> int:
        return len(self.holds)

    @property
    def is_at_end(self) -> Flags:
        """Which have been checked, so that they are due next at their end."""
        return self.due_ms >= self.end_ms


@dataclass(frozen=True, slots=True)
class Running:
    """The running throttle of each of n targets, or its last one.

    Attributes:
        decision_ids: The decisions that began them; None where none is held.
        end_ms: Its end on the steady clock, int64[n]; far in the past where none is known.
    """

    decision_ids: NDArray[np.object_]
    is_held: Flags
    end_ms: Ints

    def take(self, rows: Ids) -> "Running":
        """The throttles of some of the clients."""
        return Running(self.decision_ids[rows], self.is_held[rows], self.end_ms[rows])


def violations_to_publish(asked: Asked, running: Running, now_ms: int, slicing: Slicing) -> tuple[Ids, Ints]:
    """The batch's throttles that a client can obey and that change what it knows: their places, and their slices.

    A violation holds its client for the larger of X and of what its bucket owes, in slices. A client that is held hears
    of it only if its throttle would end clearly later than the end published last. Otherwise a client that ignores its
    throttle would get a record with every batch; the check before the end renews it anyway.
    """
    claims, capped_ms = asked.claims, asked.throttle_time_ms
    owed_ms = np.maximum(claims.owed_ms, capped_ms)
    slices_ms = slicing.first_slices_ms(owed_ms, capped_ms, claims.window_ms, claims.quota_type)
    is_published = slicing.is_published(owed_ms, slices_ms, running.end_ms - now_ms, running.is_held)
    published = is_published.nonzero()[0]
    return published, slices_ms[published]


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What a check decided of each of n throttles: its `Step`, and how long it is held if that is `HOLD`; else 0."""

    steps: Ints
    slices_ms: Ints

    @classmethod
    def of(cls, steps: Ints, claims: Claims, slicing: Slicing) -> "CheckResult":
        """By the steps, and by what is owed."""
        slices_ms = slicing.slices_ms(claims.owed_ms, claims.window_ms, claims.quota_type)
        return cls(steps, np.where(steps == Step.HOLD, slices_ms, 0))


def check(due: Throttles, claims: Claims, at_ms: Ints, slicing: Slicing) -> CheckResult:
    """Check throttles shortly before they end, and at their end (`Slicing.at_check`).

    * `due`: The throttles whose check or end has come.
    * `claims`: What each of their clients owes at the instant of its check, by the quota type that owes most.
    """
    left_ms = np.maximum(due.end_ms - at_ms, 0)
    return CheckResult.of(slicing.at_check(claims.owed_ms, left_ms, due.is_at_end), claims, slicing)


def check_after_edit(
    throttles: Throttles, claims: Claims, at_ms: Ints, slicing: Slicing, is_renamed: Flags
) -> CheckResult:
    """Check throttles whose bound, mode, level or exceptions an operator has just changed (`Slicing.at_edit`).

    Under a shadow quota, an exemption, or no bound nothing is owed. A throttle that holds others than before
    (`is_renamed`) is published again with its end where it would have none other.
    """
    left_ms = np.maximum(throttles.end_ms - at_ms, 0)
    # No bound is infinity: it is below nothing, and nothing that is finite falls from it.
    is_same_type = throttles.quota_type == claims.quota_type
    fell = is_same_type & np.isfinite(throttles.bound) & (claims.own_bound < throttles.bound)
    result = CheckResult.of(slicing.at_edit(claims.owed_ms, left_ms, fell), claims, slicing)
    again = is_renamed & (result.steps == Step.WAIT) & (left_ms > 0)
    return CheckResult(np.where(again, Step.HOLD, result.steps), np.where(again, left_ms, result.slices_ms))
