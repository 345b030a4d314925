"""How long clients were held in a range of time: per client, and per part of the range."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from quota.key_index import Ids

Ints = NDArray[np.int64]

_MOST_WAITING: Final = 1_000


class HeldTime:
    """Adds up intervals in which clients were held. The caller numbers the clients 0, 1, 2 ….

    The intervals of one client must not overlap. Only what lies in the range counts.

    Args:
        start_ms: begin of the range, inclusive.
        end_ms: end of the range, exclusive.
        bins: into how many equal parts `by_bin` divides the range.
    """

    def __init__(self, start_ms: int, end_ms: int, bins: int) -> None:
        self._start_ms = start_ms
        self._end_ms = end_ms
        self._bin_ms = max(-(-(end_ms - start_ms) // bins), 1)
        self._waiting: list[tuple[Ids, Ints, Ints]] = []
        self._by_client = np.zeros(0, np.int64)
        # Of each part: how many intervals begin minus how many end before or in it (cumulated), and the rest in ms.
        self._whole = np.zeros(bins + 1, np.int64)
        self._partial_ms = np.zeros(bins + 1, np.int64)

    @property
    def by_client(self) -> Ints:
        """Time held of each client, in ms; may be shorter than the number of clients, or longer."""
        self._settle()
        return self._by_client

    @property
    def by_bin(self) -> Ints:
        """Time held in each part of the range, summed over all clients, in ms."""
        self._settle()
        return (np.cumsum(self._whole) * self._bin_ms + self._partial_ms)[:-1]

    def add(self, clients: Ids, from_ms: Ints, to_ms: Ints) -> None:
        """Add intervals.

        Args:
            clients: number of each of n clients.
            from_ms: begin of each interval, inclusive.
            to_ms: end of each interval, exclusive; not before its begin.
        """
        self._waiting.append((clients, from_ms, to_ms))
        if len(self._waiting) > _MOST_WAITING:
            self._settle()

    def _settle(self) -> None:
        """Count what was added: many small additions at once, which is faster."""
        if not self._waiting:
            return
        clients, from_ms, to_ms = (np.concatenate(parts) for parts in zip(*self._waiting, strict=True))
        self._waiting = []
        size = int(clients.max(initial=-1)) + 1
        if size > len(self._by_client):
            self._by_client = np.pad(self._by_client, (0, 2 * size - len(self._by_client)))
        first_ms, last_ms = (np.clip(ms, self._start_ms, self._end_ms) - self._start_ms for ms in (from_ms, to_ms))
        np.add.at(self._by_client, clients, last_ms - first_ms)
        for ms, sign in ((last_ms, 1), (first_ms, -1)):
            part = ms // self._bin_ms
            np.add.at(self._whole, part, -sign)
            np.add.at(self._partial_ms, part, sign * (ms - part * self._bin_ms))
