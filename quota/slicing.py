"""How throttles are cut into slices and made longer: the numbers of the rule that a throttle lives by.

A running throttle is looked at `lead_ms` before its end and renewed if more is owed than is left; at its end it is
looked at again, renewed if more than `republish_ms` is owed, and else released. A further violation extends it if the
new end is clearly later.
"""

from dataclasses import dataclass
from typing import Final, overload

import numpy as np
from numpy.typing import NDArray

from quota.entity import QUOTA_TYPES
from quota.throttle_time import NO_CAP, ThrottleCaps

Flags = NDArray[np.bool_]
Ints = NDArray[np.int64]

_EXTENSION_MS: Final = 1_000
_EXTENSION_PART: Final = 10


@dataclass(frozen=True, slots=True)
class Slicing:
    """How throttles are cut and repeated.

    Attributes:
        lead_ms: A look is taken this long before the end: trigger + publish lag + client lag, at least 300.
        republish_ms: A throttle that has come to its end is renewed only if more than this is owed. An edit shortens
            a running throttle only by more than this.
        caps: Longest slice per quota type, before the floor of three leads.
        sample_window_ms: What the cap `sample_window` stands for.
    """

    lead_ms: int
    republish_ms: int
    caps: ThrottleCaps
    sample_window_ms: int

    def renewals_ms(self, owed_ms: Ints, window_ms: Ints, quota_types: Ints) -> Ints:
        """Lengths of n renewals: of each min(owed, max(cap, 3 × lead)), or all that is owed where there is no cap.

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


@overload
def ends_clearly_later(later_ms: int, slice_ms: int) -> bool: ...
@overload
def ends_clearly_later(later_ms: Ints, slice_ms: Ints) -> Flags: ...
def ends_clearly_later(later_ms: int | Ints, slice_ms: int | Ints) -> bool | Flags:
    """Whether a violation extends a running throttle: by more than a second and more than a tenth of the new slice.

    Args:
        later_ms: how much later the new slice would end than the running one; may be negative. One, or int64[n].
        slice_ms: length of the new slice. One, or int64[n].
    """
    return (later_ms > _EXTENSION_MS) & (later_ms > slice_ms // _EXTENSION_PART)
