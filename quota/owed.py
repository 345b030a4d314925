"""What clients owe, by columns: for replays, which look at many running throttles, each at an instant of its own."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quota.entity import TIE_ORDER

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Claims:
    """Of each of n clients the quota type that asks for the longest wait, and its figures.

    Attributes:
        quota_type: position in `QUOTA_TYPES`, int64[n].
        bound: T per second, float64[n]; infinity = none.
        level: 1–8, int64[n]; 0 = no quota.
        window_ms: W, int64[n].
        owed_ms: how much longer the client must wait, int64[n]; never negative.
    """

    quota_type: Ints
    bound: Floats
    level: Ints
    window_ms: Ints
    owed_ms: Ints

    def take(self, rows: Ints) -> "Claims":
        """The claims of some of the clients."""
        return Claims(
            self.quota_type[rows], self.bound[rows], self.level[rows], self.window_ms[rows], self.owed_ms[rows]
        )


@dataclass(frozen=True, slots=True)
class Owed:
    """What n clients owe of each quota type. Arrays of shape [3, n], one row per type in the order of `QUOTA_TYPES`.

    Attributes:
        bound: T per second, float64; infinity = none.
        level: the level the bound comes from, 1–8, int64; 0 = no quota.
        window_ms: W, int64.
        owed_ms: the larger of X by the rate and of the time the bucket needs to come back to 0; 0 without a bound.
    """

    bound: Floats
    level: Ints
    window_ms: Ints
    owed_ms: Ints

    def largest(self, preferred: Ints) -> Claims:
        """The type that asks for the longest wait, for each client.

        Args:
            preferred: the type to name where several ask for the same wait (also: for none), int64[n]. If it is not
                among them, the first in `TIE_ORDER` is named.
        """
        return self.of_types(type_that_owes_most(self.owed_ms, preferred))

    def of_types(self, quota_type: Ints) -> Claims:
        """The figures of one type for each client: positions in `QUOTA_TYPES`, int64[n]."""
        columns = np.arange(len(quota_type))
        return Claims(
            quota_type,
            self.bound[quota_type, columns],
            self.level[quota_type, columns],
            self.window_ms[quota_type, columns],
            self.owed_ms[quota_type, columns],
        )


def type_that_owes_most(owed_ms: Ints, preferred: Ints) -> Ints:
    """The quota type that asks for the longest wait, for each client, as a position in `QUOTA_TYPES`.

    Args:
        owed_ms: what n clients owe of each type, int64[3, n].
        preferred: as for `Owed.largest`.
    """
    size = len(preferred)
    columns = np.arange(size)
    first = np.array(TIE_ORDER)[owed_ms[list(TIE_ORDER)].argmax(axis=0)] if size else preferred
    return np.where(owed_ms[preferred, columns] == owed_ms[first, columns], preferred, first)
