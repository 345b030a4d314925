"""Brokers on a clock that is set by hand: each enforces its own bound with Kafka's rate rule, and sees nothing else.

The rule is that of docs/design.md, "The rate", with the difference that a broker's sample windows begin with the first
event and not at multiples of w, as Kafka's do. A client that exceeds the bound is muted for X: it sends nothing to that
broker, and does not make up for it later.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from quota.throttle_time import throttle_time_ms

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]

NUM_SAMPLES: Final = 11
SAMPLE_WINDOW_MS: Final = 1000


class SimulatedBrokers:
    """The sensors of c cells. A cell is one entity on one broker.

    Args:
        cells: c.
        max_throttle_time_ms: the cap of X; None for none, as Kafka has it for byte rates.
    """

    def __init__(self, cells: int, max_throttle_time_ms: int | None = None) -> None:
        self._cap_ms = max_throttle_time_ms
        self._start, self._last = (np.zeros((NUM_SAMPLES + 1, cells), np.int64) for _ in range(2))
        self._value = np.zeros((NUM_SAMPLES + 1, cells))
        self._count, self._current, self.muted_until_ms = (np.zeros(cells, np.int64) for _ in range(3))

    def restart(self, cells: Ints) -> None:
        """These brokers begin anew: without samples, and with nobody muted."""
        self._count[cells] = self._current[cells] = self.muted_until_ms[cells] = 0
        self._value[:, cells] = 0.0

    def send(self, amount: Floats, bound: Floats, now_ms: int) -> Floats:
        """Offer one request per cell. A muted client sends nothing, and 0 is no request.

        Args:
            amount: bytes, float64[c].
            bound: what each broker enforces now, per second, float64[c].
            now_ms: the instant, not before the last one.

        Returns:
            What was sent, float64[c].
        """
        sends = (amount > 0) & (now_ms >= self.muted_until_ms)
        cells = np.flatnonzero(sends)
        if len(cells):
            self._record(cells, amount[cells], now_ms)
            observed, window_ms = self._measure(cells, now_ms)
            mute_ms = throttle_time_ms(observed, bound[cells], window_ms)
            if self._cap_ms is not None:
                mute_ms = np.minimum(mute_ms, self._cap_ms)
            self.muted_until_ms[cells] = now_ms + mute_ms
        return np.where(sends, amount, 0.0)

    def _record(self, cells: Ints, amount: Floats, now_ms: int) -> None:
        current = self._current[cells]
        is_new = self._count[cells] == 0
        is_over = ~is_new & (now_ms - self._start[current, cells] >= SAMPLE_WINDOW_MS)
        current = np.where(is_over, (current + 1) % (NUM_SAMPLES + 1), current)
        self._current[cells] = current
        self._count[cells] = np.maximum(self._count[cells], current + 1)
        begins = is_new | is_over
        self._start[current[begins], cells[begins]] = now_ms
        self._value[current[begins], cells[begins]] = 0.0
        self._value[current, cells] += amount
        self._last[current, cells] = now_ms

    def _measure(self, cells: Ints, now_ms: int) -> tuple[Floats, Ints]:
        start, last, value = (kept[:, cells] for kept in (self._start, self._last, self._value))
        exists = np.arange(NUM_SAMPLES + 1)[:, None] < self._count[cells]
        stale = exists & (now_ms - last >= NUM_SAMPLES * SAMPLE_WINDOW_MS)
        if stale.any():
            start[stale] = last[stale] = now_ms
            value[stale] = 0.0
            self._start[:, cells], self._last[:, cells], self._value[:, cells] = start, last, value
        elapsed_ms = now_ms - np.where(exists, start, now_ms).min(axis=0)
        missing = np.maximum(NUM_SAMPLES - 1 - elapsed_ms // SAMPLE_WINDOW_MS, 0)
        window_ms = np.maximum(elapsed_ms + missing * SAMPLE_WINDOW_MS, 1)
        return value.sum(axis=0) / (window_ms / 1000.0), window_ms
