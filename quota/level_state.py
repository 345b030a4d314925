"""What is remembered of the levels of entities from one period to the next."""

from dataclasses import dataclass, fields, replace
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from quota.broker_level import Floats

Ints = NDArray[np.int64]

NEVER_MS: Final = -(1 << 60)
"""An instant before all others."""


@dataclass(frozen=True, slots=True)
class LevelState:
    """What is remembered of m entities on n brokers from one period to the next.

    After a restart the first three are known from what was written; `start` forgets the rest, which costs some seconds.

    Attributes:
        level: L in force, per second, float64[m].
        altered_at_ms: when it was written, int64[m]; `NEVER_MS` for never. Events from before it say nothing of L.
        over_at_ms: when the brokers were last asked for more than T together, int64[m].
        saturated_until_ms: until when each broker counts as saturated, int64[m, n].
        side: −1, 0, 1: the level should go down, stay, go up; int64[m].
        side_since_ms: since when, int64[m].
        used_at_ms: when it last was not quiet, int64[m].
    """

    level: Floats
    altered_at_ms: Ints
    over_at_ms: Ints
    saturated_until_ms: Ints
    side: Ints
    side_since_ms: Ints
    used_at_ms: Ints

    @classmethod
    def start(cls, level: Floats, altered_at_ms: Ints, over_at_ms: Ints, brokers: int, now_ms: int) -> Self:
        """The state of entities of which no more is known."""
        size = len(level)
        now = np.full(size, now_ms, np.int64)
        nobody = np.full((size, brokers), NEVER_MS, np.int64)
        return cls(level, altered_at_ms, over_at_ms, nobody, np.zeros(size, np.int64), now, now)

    def on_brokers(self, columns: Ints) -> Self:
        """The same entities on other brokers.

        Args:
            columns: for each broker its column until now, int64[n]; −1 for one that has joined or was restarted.
        """
        known = np.append(self.saturated_until_ms, np.full((len(self.level), 1), NEVER_MS), axis=1)
        return replace(self, saturated_until_ms=known[:, columns])

    def altered(self, rows: Ints, level: Floats, now_ms: int) -> Self:
        """These entities were given these levels."""
        levels, altered_at_ms, side = self.level.copy(), self.altered_at_ms.copy(), self.side.copy()
        levels[rows], altered_at_ms[rows], side[rows] = level, now_ms, 0
        return replace(self, level=levels, altered_at_ms=altered_at_ms, side=side)

    def take(self, rows: Ints) -> Self:
        """Some of the entities, in this order."""
        return type(self)(*(getattr(self, field.name)[rows] for field in fields(self)))

    def put(self, rows: Ints, others: "LevelState") -> Self:
        """These entities, each once, in the state that others have."""
        columns = {field.name: getattr(self, field.name).copy() for field in fields(self)}
        for name, column in columns.items():
            column[rows] = getattr(others, name)
        return type(self)(**columns)

    def joined(self, others: "LevelState") -> Self:
        """These entities and then the others, all on the same brokers."""
        return type(self)(
            *(np.concatenate((getattr(self, field.name), getattr(others, field.name))) for field in fields(self))
        )
