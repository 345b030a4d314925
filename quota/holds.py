"""How decisions would affect clients: how long each is held, and how much it used while it was held.

The usage does not react to the decisions: it is what was stored, even where a client would have waited. A client is
held from the instant of an applied decision for its X before the cap, because a cap slices a debt and does not forgive
it. A later decision makes the hold longer, never shorter. Usage at or after the beginning of a hold and before its end
counts as deferred.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

_NEVER: Final = -1


@dataclass(frozen=True, slots=True)
class HoldTotals:
    """Sums for each of n clients, all int64[n].

    Attributes:
        windows: sample windows with an applied decision.
        throttle_ms: time held, overlapping holds counted once, up to the end of the range.
        deferred_bytes: bytes, produced and fetched, used while held.
    """

    windows: Ints
    throttle_ms: Ints
    deferred_bytes: Ints


class Holds:
    """The holds of clients in a range of time. The caller numbers the clients 0, 1, 2 ….

    Args:
        sample_window_ms: length of the windows that are counted.
        start_ms: begin of the range. Earlier decisions hold clients too, but nothing before it is counted.
        end_ms: end of the range, exclusive; holds end there.
        bins: into how many equal parts `throttle_ms_by_bin` divides the range.
    """

    def __init__(self, sample_window_ms: int, start_ms: int, end_ms: int, bins: int) -> None:
        self._w = sample_window_ms
        self._start_ms = start_ms
        self._end_ms = end_ms
        self._bin_ms = max(-(-(end_ms - start_ms) // bins), 1)
        self.throttle_ms_by_bin = np.zeros(bins, np.int64)
        self._held_until_ms = np.zeros(0, np.int64)
        self._last_window = np.zeros(0, np.int64)
        self._windows = np.zeros(0, np.int64)
        self._throttle_ms = np.zeros(0, np.int64)
        self._deferred_bytes = np.zeros(0, np.int64)

    @property
    def totals(self) -> HoldTotals:
        """The sums up to now."""
        return HoldTotals(self._windows, self._throttle_ms, self._deferred_bytes)

    def resume(self, held_until_ms: Ints) -> None:
        """Set the holds that began before the first call.

        Args:
            held_until_ms: until when each of the clients 0, 1, 2 … is held; 0 = it is not held.
        """
        self._grow(np.array([len(held_until_ms) - 1]))
        self._held_until_ms[: len(held_until_ms)] = held_until_ms

    def use(self, clients: Ints, used_at_ms: Ints, used_bytes: Ints) -> None:
        """Take in usage, before the decisions that follow from it. The usage of held clients is deferred.

        Args:
            clients: number of the client of each of n rows.
            used_at_ms: when each was used.
            used_bytes: produced and fetched bytes of each.
        """
        self._grow(clients)
        rows = np.flatnonzero(used_at_ms < self._held_until_ms[clients])
        rows = rows[used_at_ms[rows] >= self._start_ms]
        if len(rows):
            np.add.at(self._deferred_bytes, clients[rows], used_bytes[rows])

    def decide(self, clients: Ints, throttle_ms: Ints, at_ms: int) -> None:
        """Take in the applied decisions of one instant.

        Args:
            clients: numbers of n clients, each once.
            throttle_ms: X of each before the cap.
            at_ms: the instant.
        """
        self._grow(clients)
        until_ms = at_ms + np.minimum(throttle_ms, self._end_ms - at_ms)
        from_ms = np.maximum(self._held_until_ms[clients], at_ms)
        self._held_until_ms[clients] = np.maximum(self._held_until_ms[clients], until_ms)
        if at_ms < self._start_ms:
            return
        added_ms = np.maximum(until_ms - from_ms, 0)
        self._throttle_ms[clients] += added_ms
        self.throttle_ms_by_bin[min((at_ms - self._start_ms) // self._bin_ms, len(self.throttle_ms_by_bin) - 1)] += (
            added_ms.sum()
        )
        window = at_ms // self._w
        self._windows[clients] += self._last_window[clients] != window
        self._last_window[clients] = window

    def _grow(self, clients: Ints) -> None:
        """Make room for all of these numbers."""
        size = int(clients.max()) + 1 if len(clients) else 0
        room = size - len(self._windows)
        if room <= 0:
            return
        room += size
        self._held_until_ms = np.pad(self._held_until_ms, (0, room))
        self._last_window = np.pad(self._last_window, (0, room), constant_values=_NEVER)
        self._windows = np.pad(self._windows, (0, room))
        self._throttle_ms = np.pad(self._throttle_ms, (0, room))
        self._deferred_bytes = np.pad(self._deferred_bytes, (0, room))
