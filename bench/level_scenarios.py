"""The loads of `bench.broker_levels`: how an entity's requests are split over brokers, and how the split moves."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

SECONDS: Final = 230
MOVE_SECOND: Final = 100
OVERLOADS: Final = (1.2, 1.5, 2.0, 3.0, 5.0, 10.0, 20.0, 50.0)
SHOWN_OVERLOADS: Final = (1.2, 5.0, 20.0, 50.0)

Split = tuple[float | None, ...]
"""The share of each broker; None for one that is not there."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """An entity that wants k · T, split over brokers.

    Attributes:
        split: what happens, in words.
        overload: k.
        splits: the split that begins at each second; the first at 0.
    """

    split: str
    overload: float
    splits: Mapping[int, Split]

    def shares(self, second: int) -> Floats:
        """The share of each broker, float64[n]; NaN for one that is not there."""
        begun = max(start for start in self.splits if start <= second)
        return np.array([np.nan if share is None else share for share in self.splits[begun]])

    @property
    def presence(self) -> tuple[tuple[int, tuple[bool, ...]], ...]:
        """Which brokers are there from which second on. Scenarios with equal ones can be simulated together."""
        return tuple((start, tuple(share is not None for share in split)) for start, split in self.splits.items())


def even(brokers: int) -> Split:
    """The same share for each broker."""
    return (1.0 / brokers,) * brokers


def hot(brokers: int, at: int, share: float) -> Split:
    """One broker with this share, the others evenly."""
    rest = (1.0 - share) / (brokers - 1)
    return tuple(share if broker == at else rest for broker in range(brokers))


_SKEWED: Final = (0.5, 0.2, 0.1, 0.1, 0.05, 0.05)

MOVES: Final[Mapping[str, Mapping[int, Split]]] = {
    "2, even": {0: even(2)},
    "2, 90/10 → 10/90": {0: (0.9, 0.1), MOVE_SECOND: (0.1, 0.9)},
    "2, 99/1 → 1/99": {0: (0.99, 0.01), MOVE_SECOND: (0.01, 0.99)},
    "2, 70/30 → 90/10": {0: (0.7, 0.3), MOVE_SECOND: (0.9, 0.1)},
    "2, even → 90/10": {0: even(2), MOVE_SECOND: (0.9, 0.1)},
    "2, 90/10 → even": {0: (0.9, 0.1), MOVE_SECOND: even(2)},
    "2, even → 99/1": {0: even(2), MOVE_SECOND: (0.99, 0.01)},
    "2, 99/1 → even": {0: (0.99, 0.01), MOVE_SECOND: even(2)},
    "3, even → 50 % on one": {0: even(3), MOVE_SECOND: hot(3, 1, 0.5)},
    "3, 99 % on one → even": {0: hot(3, 0, 0.99), MOVE_SECOND: even(3)},
    "3, 80 % on one → on another": {0: hot(3, 0, 0.8), MOVE_SECOND: hot(3, 1, 0.8)},
    "6, 50/20/10/10/5/5 → reversed": {0: _SKEWED, MOVE_SECOND: _SKEWED[::-1]},
    "6, even → 50 % on one": {0: even(6), MOVE_SECOND: hot(6, 1, 0.5)},
    "6, 80 % on one → even": {0: hot(6, 0, 0.8), MOVE_SECOND: even(6)},
    "10, 80 % on one → on another": {0: hot(10, 0, 0.8), MOVE_SECOND: hot(10, 1, 0.8)},
    "30, even": {0: even(30)},
    "30, even → 50 % on one": {0: even(30), MOVE_SECOND: hot(30, 1, 0.5)},
    "30, 90 % on one → on another": {0: hot(30, 0, 0.9), MOVE_SECOND: hot(30, 1, 0.9)},
    "30, 50 % on one → even": {0: hot(30, 0, 0.5), MOVE_SECOND: even(30)},
    "3, even → one leaves": {0: even(3), MOVE_SECOND: (0.5, 0.5, None)},
    "3, 80/10/10 → that one leaves": {0: (0.8, 0.1, 0.1), MOVE_SECOND: (None, 0.5, 0.5)},
    "2, even → a third joins": {0: (0.5, 0.5, None), MOVE_SECOND: even(3)},
    "3, even → one away for 5 s": {0: even(3), MOVE_SECOND: (0.5, 0.5, None), MOVE_SECOND + 5: even(3)},
}
"""Brokers, split and what it becomes → the splits."""

ONE_BROKER: Final = "1"


def scenarios(overloads: tuple[float, ...] = OVERLOADS) -> list[Scenario]:
    """Every move with every overload."""
    return [Scenario(split, overload, splits) for split, splits in MOVES.items() for overload in overloads]


def one_broker(overloads: tuple[float, ...] = OVERLOADS) -> list[Scenario]:
    """The same overloads on one broker that has all of T: what Kafka alone makes of it."""
    return [Scenario(ONE_BROKER, overload, {0: (1.0,)}) for overload in overloads]
