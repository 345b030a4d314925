"""Observed rates: per sensor, sums over sample windows that are aligned to the epoch.

Kafka's `Rate`, for windows that start at multiples of w. A sensor keeps for each window the integer sum of what was
used in it and the time of the last event. At `now` a window counts while `now − last < N · w`. With E = now − start of
the oldest window that counts, and `full = E // w`, the span of the rate is

    W = max(E + max(N − 1 − full, 0) · w, 1)        O = sum / (W / 1000.0)

Let r = now mod w. All starts are multiples of w, so E mod w = r and only two spans exist: (N − 1) · w + r, and one w
more when the oldest window that can still count does: the one that starts N · w before the current one. All newer
windows count for certain, all older ones do not. So a sensor needs a running total of the newer N windows, and a look
at that one. (A sensor none of whose windows counts has E = 0, W = max((N − 1) · w, 1) and O = 0.)

A percentage is measured in ns; the sum stays an integer, and percent = ns · 1e-7 is taken of it.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from quota.entity import REQUEST
from quota.key_index import Ids

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Selection = slice | Ids
"""Sensors: a range of ids, or an array of different ids."""

PERCENT_PER_NS: Final = 1e-7
_UNTOUCHED: Final = -1
_ALMOST_ONE: Final = 1.0 - 1e-12


def amounts(sums: Ints, quota_type: int) -> Floats:
    """Sums of usage in the unit of the bound: bytes as they are, ns as percent-seconds."""
    amount = sums.astype(np.float64)
    if quota_type == REQUEST:
        amount *= PERCENT_PER_NS
    return amount


def at_places(sensors: Selection, places: Ids) -> Ids:
    """The sensors at some places of a selection."""
    return places + sensors.start if isinstance(sensors, slice) else sensors[places]


class SampleWindows:
    """The sample windows of all sensors of one quota type, as a ring of columns.

    Column k mod (N + 1) holds window k, for the N + 1 windows up to the newest, of every sensor.

    No lock: one caller at a time.
    """

    def __init__(self, quota_type: int, num_samples: int, sample_window_ms: int, newest: int) -> None:
        self._type = quota_type
        self._n = num_samples
        self._w = sample_window_ms
        self._newest = newest
        offset_type = np.int16 if sample_window_ms <= np.iinfo(np.int16).max else np.int32
        self._sums = np.zeros((num_samples + 1, 0), np.int64)
        self._last = np.zeros((num_samples + 1, 0), offset_type)
        self._total = np.zeros(0, np.int64)

    @property
    def nbytes(self) -> int:
        """Memory of all columns."""
        return self._sums.nbytes + self._last.nbytes + self._total.nbytes

    def grow(self, capacity: int) -> None:
        """Make room for sensors up to the capacity; new ones are untouched."""
        room = capacity - len(self._total)
        if room <= 0:
            return
        self._sums = np.pad(self._sums, ((0, 0), (0, room)))
        self._last = np.pad(self._last, ((0, 0), (0, room)), constant_values=_UNTOUCHED)
        self._total = np.pad(self._total, (0, room))

    def keep(self, kept: NDArray[np.bool_]) -> None:
        """Forget the sensors that are not kept; the others move together."""
        self._sums = self._sums[:, : len(kept)][:, kept]
        self._last = self._last[:, : len(kept)][:, kept]
        self._total = self._total[: len(kept)][kept]

    def advance(self, newest: int) -> None:
        """Make `newest` the newest window; columns that leave the ring are emptied. Never goes back."""
        first = max(self._newest + 1, newest - self._n)
        for window in range(first, newest + 1):
            leaving = self._sums[(window - self._n) % (self._n + 1)]
            if self._newest - self._n < window - self._n <= self._newest:
                self._total -= leaving
            self._sums[window % (self._n + 1)] = 0
            self._last[window % (self._n + 1)] = _UNTOUCHED
        if newest - self._newest > self._n:
            self._total[:] = 0
        self._newest = max(self._newest, newest)

    def add(self, sensors: Selection, window: int, sums: Ints, last_ms: Ints) -> None:
        """Record usage in one window of the ring.

        Args:
            sensors: m sensors, each once.
            window: index of the window, from newest − N to newest.
            sums: bytes or ns, int64[m].
            last_ms: time of the last event, int64[m], since the epoch.
        """
        column = window % (self._n + 1)
        self._sums[column][sensors] += sums
        if window > self._newest - self._n:
            self._total[sensors] += sums
        offset = (last_ms - window * self._w).astype(self._last.dtype)
        row = self._last[column]
        row[sensors] = np.maximum(row[sensors], offset)

    def violated(self, sensors: Selection, bound: Floats, now_ms: int) -> tuple[Ids, Floats, Ints]:
        """Those whose rate is above the bound; `now_ms` is in the newest window.

        Returns:
            Positions in `sensors`, ascending, and O and W of each as `observed` has them.
        """
        oldest = (self._newest - self._n) % (self._n + 1)
        total = self._total[sensors]
        at_most = total + self._sums[oldest][sensors]
        # The most that can count, over the shortest span there is: no violation can be missed. Most sensors end here.
        short_seconds = max((self._n - 1) * self._w + now_ms % self._w, 1) / 1000.0
        suspects = np.flatnonzero(amounts(at_most, self._type) > bound * (short_seconds * _ALMOST_ONE))
        if len(suspects) == 0:
            return suspects, np.zeros(0, np.float64), np.zeros(0, np.int64)
        observed, window_ms = self.observed(at_places(sensors, suspects), now_ms)
        above = np.flatnonzero(observed > bound[suspects])
        return suspects[above], observed[above], window_ms[above]

    def observed(self, sensors: Ids, now_ms: int) -> tuple[Floats, Ints]:
        """O per second and W in ms of each sensor at `now_ms`, which may be later than the newest window.

        Args:
            sensors: int64[m]; −1 = a sensor that does not exist, observed at 0.
            now_ms: the instant.

        Returns:
            float64[m] and int64[m].
        """
        current = now_ms // self._w
        within = now_ms % self._w
        size = len(sensors)
        total = np.zeros(size, np.int64)
        any_counts = np.zeros(size, np.bool_)
        oldest_counts = np.zeros(size, np.bool_)
        known = sensors >= 0
        for window in range(max(current, self._newest) - self._n, self._newest + 1):
            column = window % (self._n + 1)
            last = self._last[column][sensors] if self._last.shape[1] else np.full(size, _UNTOUCHED)
            counts = known & (last > (within if window == current - self._n else _UNTOUCHED))
            total += np.where(counts, self._sums[column][sensors], 0) if self._last.shape[1] else 0
            any_counts |= counts
            if window == current - self._n:
                oldest_counts = counts
        short = (self._n - 1) * self._w
        window_ms = np.maximum(short + np.where(any_counts, within, 0) + np.where(oldest_counts, self._w, 0), 1)
        return amounts(total, self._type) / (window_ms / 1000.0), window_ms
