"""When which client is due: a timing wheel of client numbers, and those that it has handed out.

Its lock is held for array operations only, so the reaper can always tell what is due.
"""

from threading import Lock
from typing import Final

import numpy as np

from pipeline.throttle.publications import Ints
from purgatory.batch_wheel import BatchTimingWheel, slots_of

_NONE: Final = -1


class DueClients:
    """Numbers of clients, each with at most one entry in the timing wheel, or waiting to be looked at.

    Any thread may call any method. All arrays of numbers have each number once.

    Args:
        start_ms: Steady time now.
    """

    def __init__(self, start_ms: int) -> None:
        self._lock = Lock()
        self._wheel = BatchTimingWheel(start_ms=start_ms)
        self._client_of_slot = np.zeros(0, np.int64)
        self._handle = np.zeros(0, np.int64)
        # The place of a client that was handed out, among all that ever were; its earlier places count no longer.
        self._place = np.zeros(0, np.int64)
        self._handed_out: list[tuple[Ints, Ints, int]] = []
        self._next_place = 0
        self._num_handed_out = 0

    def schedule(self, clients: Ints, due_ms: Ints) -> None:
        """Hand these clients out at these instants, and no longer at earlier ones.

        Args:
            clients: Their numbers, int64[n].
            due_ms: Steady time, int64[n].
        """
        with self._lock:
            self._grow(clients)
            self._cancel(clients)
            handles = self._wheel.schedule_many(due_ms)
            self._handle[clients] = handles
            if self._wheel.capacity > len(self._client_of_slot):
                self._client_of_slot = np.pad(
                    self._client_of_slot, (0, self._wheel.capacity - len(self._client_of_slot))
                )
            self._client_of_slot[slots_of(handles)] = clients

    def cancel(self, clients: Ints) -> None:
        """Do not hand out these clients, all of which were scheduled before; nor look at those that were."""
        with self._lock:
            self._cancel(clients)

    def hand_out(self, now_ms: int) -> int:
        """Take what is due from the wheel, stamped with now; returns how many now wait to be looked at."""
        with self._lock:
            handles, _ = self._wheel.advance(now_ms)
            if len(handles):
                clients = self._client_of_slot[slots_of(handles)]
                self._handle[clients] = _NONE
                places = np.arange(self._next_place, self._next_place + len(clients))
                self._place[clients] = places
                self._next_place += len(clients)
                self._num_handed_out += len(clients)
                self._handed_out.append((clients, places, now_ms))
            return self._num_handed_out

    def take(self) -> tuple[Ints, Ints]:
        """The clients that wait to be looked at, in the order (due, submission), and when each was handed out.

        They wait no longer.
        """
        with self._lock:
            parts, self._handed_out = self._handed_out, []
            if not parts:
                return np.zeros(0, np.int64), np.zeros(0, np.int64)
            clients = np.concatenate([part for part, _, _ in parts])
            at_ms = np.repeat([at_ms for _, _, at_ms in parts], [len(part) for part, _, _ in parts])
            still = self._place[clients] == np.concatenate([places for _, places, _ in parts])
            clients = clients[still]
            self._place[clients] = _NONE
            self._num_handed_out = 0
            return clients, at_ms[still]

    def next_due_ms(self) -> int | None:
        """A lower bound of the next due time, None when nothing is scheduled."""
        with self._lock:
            return self._wheel.next_expiration_ms

    def renumber(self, kept: Ints) -> None:
        """Give the clients new numbers: the position of the old one in `kept`, ascending. All that are due are kept."""
        with self._lock:
            number = np.full(len(self._handle), _NONE)
            number[kept] = np.arange(len(kept))
            self._client_of_slot = number[self._client_of_slot]
            self._handle, self._place = self._handle[kept], self._place[kept]
            renumbered = ((number[clients], places, at_ms) for clients, places, at_ms in self._handed_out)
            self._handed_out = [
                (clients[clients >= 0], places[clients >= 0], at_ms) for clients, places, at_ms in renumbered
            ]

    def _cancel(self, clients: Ints) -> None:
        handles = self._handle[clients]
        self._wheel.cancel_many(handles[handles >= 0])
        self._num_handed_out -= int(np.count_nonzero(self._place[clients] >= 0))
        self._handle[clients] = self._place[clients] = _NONE

    def _grow(self, clients: Ints) -> None:
        size = int(clients.max()) + 1 if len(clients) else 0
        if size > len(self._handle):
            room = 2 * size - len(self._handle)
            self._handle = np.pad(self._handle, (0, room), constant_values=_NONE)
            self._place = np.pad(self._place, (0, room), constant_values=_NONE)
