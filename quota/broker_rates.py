"""What each broker sees of each entity: its rate by the broker's own rule, what it was asked for lately, and when.

A *cell* is one entity on one broker, for one quota type. The usage that is recorded here comes late, by a second or
two, and in sample windows that begin at multiples of w; those of a broker begin with the first event. So O agrees with
the broker's own within one sample window, and `quota.level_control` allows for that.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from quota.key_index import Ids
from quota.rates import Floats, Ints, SampleWindows

NUM_SAMPLES: Final = 11
SAMPLE_WINDOW_MS: Final = 1000
RECENT_SAMPLES: Final = 3
"""The sample windows of the recent rate: the mean of two to three seconds."""

_MIN_CAPACITY: Final = 64


@dataclass(frozen=True, slots=True)
class BrokerView:
    """m entities on n brokers at an instant.

    Attributes:
        at_ms: the instant up to which usage is known, ms since the epoch.
        observed: O by the broker's rule, per second, float64[m, n].
        window_ms: W, int64[m, n].
        recent: the rate over the last two to three seconds, per second, float64[m, n].
        last_ms: the time of the last event, int64[m, n]; 0 for none.
    """

    at_ms: int
    observed: Floats
    window_ms: Ints
    recent: Floats
    last_ms: Ints


class BrokerRates:
    """The sample windows of all cells of one quota type.

    No lock: one caller at a time.

    Args:
        quota_type: position in `QUOTA_TYPES`. Request time comes in ns, and its rates are percent.
        now_ms: an instant in the newest sample window.
        num_samples: N of the brokers, `quota.window.num`.
        sample_window_ms: w of the brokers, `quota.window.size.seconds` · 1000.
    """

    def __init__(
        self, quota_type: int, now_ms: int, num_samples: int = NUM_SAMPLES, sample_window_ms: int = SAMPLE_WINDOW_MS
    ) -> None:
        newest = now_ms // sample_window_ms
        self._w = sample_window_ms
        self._long = SampleWindows(quota_type, num_samples, sample_window_ms, newest)
        self._recent = SampleWindows(quota_type, RECENT_SAMPLES, sample_window_ms, newest)
        self._last_ms: NDArray[np.int64] = np.zeros(0, np.int64)

    def record(self, cells: Ids, window: int, sums: Ints, last_ms: Ints) -> None:
        """Record usage of one sample window.

        Args:
            cells: each once, int64[k]; any numbers from 0 on that the caller keeps for its entities and brokers.
            window: index of the sample window. One before all that still count is left out.
            sums: bytes or ns, int64[k].
            last_ms: the time of the last event, in that window, int64[k].
        """
        if len(cells) == 0:
            return
        capacity = int(cells.max()) + 1
        if capacity > len(self._last_ms):
            capacity = max(capacity, 2 * len(self._last_ms), _MIN_CAPACITY)
            self._last_ms = np.pad(self._last_ms, (0, capacity - len(self._last_ms)))
            self._long.grow(capacity)
            self._recent.grow(capacity)
        for windows in (self._long, self._recent):
            windows.advance(window)
            if windows.oldest <= window:
                windows.add(cells, window, sums, last_ms)
        self._last_ms[cells] = np.maximum(self._last_ms[cells], last_ms)

    def view(self, cells: Ids, at_ms: int) -> BrokerView:
        """What the brokers see.

        Args:
            cells: the cell of each entity and broker, int64[m, n]; −1 for one that never had usage.
            at_ms: the instant up to which usage was recorded, in the newest sample window or later.
        """
        of_cells = np.where(cells < len(self._last_ms), cells, -1).ravel()
        observed, window_ms = self._long.observed(of_cells, at_ms)
        recent, _ = self._recent.observed(of_cells, at_ms)
        last_ms = np.append(self._last_ms, 0)[of_cells]
        shape = cells.shape
        return BrokerView(
            at_ms, observed.reshape(shape), window_ms.reshape(shape), recent.reshape(shape), last_ms.reshape(shape)
        )

    def keep(self, kept: NDArray[np.bool_]) -> None:
        """Forget the cells that are not kept, bool[n]. The others close the gaps in their order."""
        known = len(self._last_ms)
        of_known = np.pad(kept[:known], (0, max(known - len(kept), 0)))
        self._long.keep(of_known)
        self._recent.keep(of_known)
        self._last_ms = self._last_ms[of_known]
