"""Chooses the levels that may be written now: a limited number, the most urgent first."""

from typing import Final

import numpy as np

from quota.broker_level import Floats
from quota.errors import InvalidEngineSetting
from quota.key_index import Ids

ALTERS_PER_SECOND: Final = 2_000
BATCH_SIZE: Final = 1_000


class AlterBudget:
    """A bound on the alters per second over all entities.

    A second's alters may be written at once after a second without any; more is not saved up.

    Args:
        alters_per_second: at least 1.
        batch_size: how many entities one request may have, at least 1.

    Raises:
        InvalidEngineSetting: an argument is below 1.
    """

    def __init__(self, alters_per_second: int = ALTERS_PER_SECOND, batch_size: int = BATCH_SIZE) -> None:
        for name, value in (("alters_per_second", alters_per_second), ("batch_size", batch_size)):
            if value < 1:
                raise InvalidEngineSetting(name, "be at least 1", value)
        self._per_second = alters_per_second
        self._batch_size = batch_size
        self._left = float(alters_per_second)
        self._counted_at_ms: int | None = None

    def choose(self, urgency: Floats, now_ms: int) -> list[Ids]:
        """Choose what is written now, and count it as written.

        Args:
            urgency: float64[m]; 0 for nothing to write. Of equal ones the first come first.
            now_ms: the instant, by a clock that never steps. One before the last call counts as that of the last
                call.

        Returns:
            Positions in `urgency`, the most urgent first, in batches.
        """
        since_ms = 0 if self._counted_at_ms is None else max(now_ms - self._counted_at_ms, 0)
        self._counted_at_ms = max(now_ms, self._counted_at_ms or now_ms)
        self._left = min(self._left + self._per_second * (since_ms / 1000.0), float(self._per_second))
        order = np.argsort(-urgency, kind="stable")[: np.count_nonzero(urgency > 0)]
        chosen = order[: int(self._left)]
        self._left -= len(chosen)
        return [chosen[start : start + self._batch_size] for start in range(0, len(chosen), self._batch_size)]
