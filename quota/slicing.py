"""The rule that a throttle lives by: what is published of what a client owes, and for how long. No clock, no I/O.

The job, replays and simulations all ask here; each takes and gives whole columns.

What is published can be obeyed. A throttle, an extension and a renewal must hold the client at least `min_hold_ms`
longer, an extension also by a tenth of its slice. What is not published stays owed: the next violation or look finds
it. A release needs no more than `min_hold_ms` owed.

A client that was released with a rest owes `min_hold_ms` again after a moment. So that it gets few records, a throttle
that begins within three times `min_hold_ms` of the end of the one before must hold it twice as long.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import numpy as np
from numpy.typing import NDArray

from quota.entity import QUOTA_TYPES
from quota.throttle_time import NO_CAP, ThrottleCaps

Flags = NDArray[np.bool_]
Ints = NDArray[np.int64]

_EXTENSION_PART: Final = 10
SOON: Final = 3
"""A throttle begins soon after the one before if less than so many times `min_hold_ms` have passed since its end."""
TIMES_SOON: Final = 2
"""A throttle that begins soon after the one before must hold its client so many times `min_hold_ms`."""


class Step(IntEnum):
    """What a look does with a running throttle."""

    WAIT = 0
    """Nothing is published; it is left to its end."""
    HOLD = 1
    """A new slice of `Slicing.slices_ms` is published, from now on."""
    RELEASE = 2
    """A release is published."""


@dataclass(frozen=True, slots=True)
class Slicing:
    """How throttles are cut, and which are published.

    Attributes:
        lead_ms: A look is taken this long before the end: trigger + publish lag + client lag, at least 300.
        min_hold_ms: What is published holds a client at least this much longer; at least 1.
        caps: Longest slice per quota type, before the floor of three leads.
        sample_window_ms: What the cap `sample_window` stands for.
    """

    lead_ms: int
    min_hold_ms: int
    caps: ThrottleCaps
    sample_window_ms: int

    def slices_ms(self, owed_ms: Ints, window_ms: Ints, quota_types: Ints) -> Ints:
        """Lengths of n slices: of each min(owed, max(cap, 3 × lead)), or all that is owed where there is no cap.

        Args:
            owed_ms: what each client owes, int64[n].
            window_ms: W of the quota type that claims it, int64[n].
            quota_types: that type, as positions in `QUOTA_TYPES`, int64[n].
        """
        slices_ms = owed_ms.copy()
        for quota_type in range(len(QUOTA_TYPES)):
            rows = np.flatnonzero(quota_types == quota_type)
            if not len(rows):
                continue
            cap_ms = self.caps.max_throttle_time_ms(quota_type, window_ms[rows], self.sample_window_ms)
            longest_ms = np.maximum(cap_ms, 3 * self.lead_ms)
            slices_ms[rows] = np.where(cap_ms == NO_CAP, owed_ms[rows], np.minimum(owed_ms[rows], longest_ms))
        return slices_ms

    def is_published(self, owed_ms: Ints, slice_ms: Ints, left_ms: Ints, is_held: Flags) -> Flags:
        """Which violations are published: as a throttle that begins, or as an extension of the one that runs.

        Args:
            owed_ms: the larger of X and of what the bucket owes, int64[n].
            slice_ms: length of the slice that would be published, int64[n].
            left_ms: how far away the end of the last throttle is, int64[n]; negative if it has passed.
            is_held: whether that one still runs, or waits to be looked at, bool[n].
        """
        longer_ms = slice_ms - np.maximum(left_ms, 0)
        extends = (longer_ms >= self.min_hold_ms) & (longer_ms >= -(-slice_ms // _EXTENSION_PART))
        is_soon = left_ms > -SOON * self.min_hold_ms
        begins = owed_ms >= np.where(is_soon, TIMES_SOON * self.min_hold_ms, self.min_hold_ms)
        return np.where(is_held, extends, begins)

    def at_look(self, owed_ms: Ints, left_ms: Ints, at_end: Flags) -> Ints:
        """The `Step` of each of n throttles that are looked at: ahead of the end, or at it.

        Args:
            owed_ms: what the client owes now, int64[n].
            left_ms: what is left of its throttle, int64[n], at least 0.
            at_end: whether the look ahead of the end has been taken, bool[n].
        """
        holds = np.where(at_end, owed_ms > self.min_hold_ms, owed_ms - left_ms >= self.min_hold_ms)
        return np.where(holds, Step.HOLD, np.where(at_end, Step.RELEASE, Step.WAIT))

    def at_edit(self, owed_ms: Ints, left_ms: Ints, bound_fell: Flags) -> Ints:
        """The `Step` of each of n throttles whose bound, mode or level an edit has changed.

        Owes nothing any more: released. Owes longer than what is left by `min_hold_ms`: renewed. Owes less than what is
        left by as much: shortened to what is owed, or released if that is no more than `min_hold_ms`; but a lower bound
        never shortens a throttle.

        Args:
            owed_ms: what the client owes under the new quotas, int64[n].
            left_ms: what is left of its throttle, int64[n], at least 0.
            bound_fell: whether its bound is lower than before, bool[n].
        """
        shortened = (left_ms - owed_ms >= self.min_hold_ms) & ~bound_fell
        released = (owed_ms <= 0) | (shortened & (owed_ms <= self.min_hold_ms))
        holds = shortened | (owed_ms - left_ms >= self.min_hold_ms)
        return np.where(released, Step.RELEASE, np.where(holds, Step.HOLD, Step.WAIT))
