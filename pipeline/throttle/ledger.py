"""The throttles that run now: who is held, until when, and what is due next.

One thread at a time (the publisher's lock serialises the writers), but `pop_due` and `next_due_ms` may be called by
any thread at any time: they take only the lock of the timing wheel, which is never held during I/O.
"""

from collections.abc import Mapping
from threading import Lock
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.throttle.lifecycle import Running, Throttles
from pipeline.throttle.shapes import (
    CLIENTS,
    HELD,
    NO_BOUND,
    NO_LEVEL,
    Ints,
    columns_of,
    lists_of,
    table_of,
)
from purgatory.batch_wheel import BatchTimingWheel, slots_of
from quota.arrays import Ids
from quota.decisions import Claims, names_of, names_where
from quota.entity import QUOTA_TYPES
from quota.usage import KeyIndex, Pair

_NONE: Final = -1
_NO_NUMBERS: Final = np.zeros(0, np.int64)


def _with_room(array: NDArray[Any], size: int, fill: Any) -> NDArray[Any]:
    if size <= len(array):
        return array
    grown = np.full(size + size // 2, fill, array.dtype)
    grown[: len(array)] = array
    return grown


class DueClients:
    """When which client is due: numbers of clients, each at most once in the timing wheel, or waiting to be checked.

    Any thread may call any method; the lock is held for array operations only, so the reaper always knows what is due.
    All arrays of numbers have each number once.
    """

    def __init__(self, start_ms: int) -> None:
        self._lock = Lock()
        self._wheel = BatchTimingWheel(start_ms=start_ms)
        self._client_of_slot = self._handle = _NO_NUMBERS
        # The place of a client that was handed out, among all that ever were; its earlier places count no longer.
        self._place = _NO_NUMBERS
        self._popped: list[tuple[Ints, Ints, int]] = []
        self._next_place = 0
        self._num_popped = 0

    def schedule(self, clients: Ints, due_ms: Ints) -> None:
        """Hand these clients out at these instants of steady time, and no longer at earlier ones."""
        with self._lock:
            size = int(clients.max()) + 1 if len(clients) else 0
            self._handle = _with_room(self._handle, size, _NONE)
            self._place = _with_room(self._place, size, _NONE)
            self._cancel(clients)
            handles = self._wheel.schedule_many(due_ms)
            self._handle[clients] = handles
            self._client_of_slot = _with_room(self._client_of_slot, self._wheel.capacity, 0)
            self._client_of_slot[slots_of(handles)] = clients

    def cancel(self, clients: Ints) -> None:
        """Do not hand out these clients, all of which were scheduled before; nor check those that were."""
        with self._lock:
            self._cancel(clients)

    def pop_due(self, now_ms: int) -> int:
        """Take what is due from the wheel, stamped with now; returns how many now wait to be checked."""
        with self._lock:
            handles, _ = self._wheel.advance(now_ms)
            if len(handles):
                clients = self._client_of_slot[slots_of(handles)]
                self._handle[clients] = _NONE
                places = np.arange(self._next_place, self._next_place + len(clients))
                self._place[clients] = places
                self._next_place += len(clients)
                self._num_popped += len(clients)
                self._popped.append((clients, places, now_ms))
            return self._num_popped

    def take(self) -> tuple[Ints, Ints]:
        """The clients that wait to be checked, in the order (due, submission), and when each was handed out.

        They wait no longer.
        """
        with self._lock:
            parts, self._popped = self._popped, []
            if not parts:
                return _NO_NUMBERS, _NO_NUMBERS
            clients = np.concatenate([part for part, _, _ in parts])
            at_ms = np.repeat([at_ms for _, _, at_ms in parts], [len(part) for part, _, _ in parts])
            still = self._place[clients] == np.concatenate([places for _, places, _ in parts])
            clients = clients[still]
            self._place[clients] = _NONE
            self._num_popped = 0
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
            renumbered = ((number[clients], places, at_ms) for clients, places, at_ms in self._popped)
            self._popped = [
                (clients[clients >= 0], places[clients >= 0], at_ms) for clients, places, at_ms in renumbered
            ]

    def _cancel(self, clients: Ints) -> None:
        handles = self._handle[clients]
        self._wheel.cancel_many(handles[handles >= 0])
        self._num_popped -= int(np.count_nonzero(self._place[clients] >= 0))
        self._handle[clients] = self._place[clients] = _NONE


_OBJECTS: Final = (*CLIENTS.names, "excepted", "decision_id")
_COLUMNS: Final = {
    "quota_type": np.int64,
    "has_user": np.bool_,
    "has_client_id": np.bool_,
    "bound": np.float64,
    "level": np.int64,
    "end_ms": np.int64,
    "due_ms": np.int64,
}


class ClientColumns:
    """The throttle of each client, running or the last one, by the number of the client, which it keeps until `keep`.

    Clients and users are known by their keys (`QuotaEngine.keys_of`). A sensor is kept as two flags: each of its parts
    is the client's own name, or "".
    """

    def __init__(self) -> None:
        self._index = KeyIndex()
        kinds = {**_COLUMNS, **dict.fromkeys(_OBJECTS, np.object_)}
        self._columns: dict[str, NDArray[Any]] = {name: np.zeros(0, kind) for name, kind in kinds.items()}

    def __len__(self) -> int:
        return len(self._index)

    def find(self, keys: Pair) -> Ids:
        """The number of each client; −1 for one without a number."""
        return self._index.find(keys)

    def keys(self, numbers: Ids) -> Pair:
        """The key of each client."""
        return self._index.keys(numbers)

    def add(self, keys: Pair, clients: pa.Table) -> Ids:
        """The number of each client, by its key and names, columns of `CLIENTS`; a new one where there is none."""
        numbers, first_rows = self._index.add(keys)
        if len(first_rows):
            columns = self._columns.items()
            self._columns = {name: _with_room(one, len(self), None if name in _OBJECTS else 0) for name, one in columns}
            rows = pa.array(first_rows)
            for name in CLIENTS.names:
                self._columns[name][numbers[first_rows]] = clients[name].take(rows).to_pylist()
        return numbers

    def column(self, name: str, numbers: Ids) -> NDArray[Any]:
        """Values of one column, e.g. decision_id as object[n]."""
        column: NDArray[Any] = self._columns[name][numbers]
        return column

    def write(self, numbers: Ids, columns: Mapping[str, NDArray[Any]]) -> None:
        """Set columns of these clients; the last value counts where there are several."""
        for name, values in columns.items():
            self._columns[name][numbers] = values

    def names(self, numbers: Ids) -> pa.Table:
        """Who they are, of `CLIENTS`."""
        columns = [pa.array(self.column(name, numbers).tolist(), pa.string()) for name in CLIENTS.names]
        return pa.Table.from_arrays(columns, schema=CLIENTS)

    def keep(self, kept: Ids) -> None:
        """Forget all others. The clients get new numbers: the position of the old one in `kept`, which is ascending."""
        flags = np.zeros(len(self), np.bool_)
        flags[kept] = True
        self._index.keep(flags)
        self._columns = {name: column[kept] for name, column in self._columns.items()}


_LONG_AGO_MS: Final = -(1 << 52)
_FORGOTTEN_SLACK: Final = 1 << 16  # so few clients that are no longer held are never worth a renumbering


class ThrottleLedger:
    """Held throttles by target, each with one entry in the timing wheel: its check, or its end.

    A target, client or user, has a number while it is held, and for some time after. The word client stands for both.

    Args:
        forgotten_slack: Clients that are no longer held are forgotten when they outnumber the held by more than this.
    """

    def __init__(self, start_ms: int, forgotten_slack: int = _FORGOTTEN_SLACK) -> None:
        self._clients = ClientColumns()
        self._due = DueClients(start_ms)
        self._slack = forgotten_slack
        # By client number: the position among all throttles that ever began, in which the running ones are listed.
        self._begun = _NO_NUMBERS
        self._next_begun = 0
        self._num_held = 0

    def __len__(self) -> int:
        return self._num_held

    def held(self) -> Ids:
        """The clients that are held, in the order in which their throttles began."""
        begun = self._begun[: len(self._clients)]
        held = np.flatnonzero(begun != _NONE)
        return held[np.argsort(begun[held])]

    def throttles(self, clients: Ids) -> Throttles:
        """The throttles of these clients."""
        names = ("quota_type", "bound", "level", "end_ms", "due_ms")
        return Throttles(clients, *(self._clients.column(name, clients) for name in names))

    def names(self, clients: Ids) -> pa.Table:
        """Who they are, of `CLIENTS`."""
        return self._clients.names(clients)

    def keys(self, clients: Ids) -> Pair:
        """Their keys."""
        return self._clients.keys(clients)

    def decision_ids(self, clients: Ids) -> NDArray[np.object_]:
        """The decisions that began their throttles."""
        return self._clients.column("decision_id", clients)

    def excepted(self, clients: Ids) -> NDArray[np.object_]:
        """The client-ids that their throttles do not hold; None for a client."""
        return self._clients.column("excepted", clients)

    def rows(self, clients: Ids) -> pa.Table:
        """Their throttles as rows of `HELD`."""
        names, throttles = self.names(clients), self.throttles(clients)
        has_user, has_client_id = (self._clients.column(f"has_{part}", clients) for part in ("user", "client_id"))
        columns = {
            **columns_of(names, CLIENTS),
            "quota_type": names_of(QUOTA_TYPES, throttles.quota_type),
            "sensor_user": names_where(has_user, names["user"]),
            "sensor_client_id": names_where(has_client_id, names["client_id"]),
            "bound": pa.array(throttles.bound, mask=throttles.bound == NO_BOUND),
            "level": pa.array(throttles.level, mask=throttles.level == NO_LEVEL),
            "except_client_ids": lists_of(self.excepted(clients)),
            "decision_id": pa.array(self.decision_ids(clients).tolist(), pa.string()),
            "end_ms": pa.array(throttles.end_ms),
            "due_ms": pa.array(throttles.due_ms),
        }
        return table_of(HELD, len(clients), columns)

    def running(self, keys: Pair) -> Running:
        """What is running of each of these clients, or ran last."""
        numbers = self._clients.find(keys)
        if not len(self._clients):
            return Running(numbers, numbers >= 0, np.full(len(numbers), _LONG_AGO_MS))
        is_held = (numbers >= 0) & (self._begun[numbers] != _NONE)
        return Running(numbers, is_held, np.where(numbers >= 0, self._clients.column("end_ms", numbers), _LONG_AGO_MS))

    def hold(
        self,
        keys: Pair,
        clients: pa.Table,
        excepted: NDArray[np.object_],
        claims: Claims,
        decision_ids: NDArray[np.object_],
        end_ms: Ints,
        due_ms: Ints,
    ) -> None:
        """Begin to hold clients, or go on with new ends; their earlier entries in the wheel are cancelled.

        Of several rows of one client the last one counts: after a restart there is one for each name that the cluster
        ever had.

        * `clients`: Who they are, of `CLIENTS`.
        """
        if not len(decision_ids):
            return
        rows = self._clients.add(keys, clients)
        columns = {
            "excepted": excepted,
            "decision_id": decision_ids,
            **{name: getattr(claims, name) for name in ("quota_type", "has_user", "has_client_id", "bound", "level")},
            "end_ms": end_ms,
            "due_ms": due_ms,
        }
        self._clients.write(rows, columns)
        self._begun = _with_room(self._begun, len(self._clients), _NONE)
        numbers = _each_once(rows)
        self._num_held += int(np.count_nonzero(self._begun[numbers] == _NONE))
        begin = rows[self._begun[rows] == _NONE]
        # Backwards: of several rows of one client the first one decides when it began.
        self._begun[begin[::-1]] = np.arange(self._next_begun, self._next_begun + len(begin))[::-1]
        self._next_begun += len(begin)
        self._due.schedule(numbers, self._clients.column("due_ms", numbers))

    def wait_for_end(self, clients: Ids) -> None:
        """The check is taken and nothing more is owed: hand these out again when they end."""
        if not len(clients):
            return
        end_ms = self._clients.column("end_ms", clients)
        self._clients.write(clients, {"due_ms": end_ms})
        self._due.schedule(clients, end_ms)

    def drop(self, keys: Pair) -> None:
        """Hold these clients no longer. Those that are not held are ignored. Others may get new numbers."""
        if not len(keys[0]) or not self._num_held:
            return
        numbers = self._clients.find(keys)
        numbers = _each_once(numbers[(numbers >= 0) & (self._begun[numbers] != _NONE)])
        self._due.cancel(numbers)
        self._begun[numbers] = _NONE
        self._num_held -= len(numbers)
        if len(self._clients) > 2 * self._num_held + self._slack:
            kept = np.flatnonzero(self._begun[: len(self._clients)] != _NONE)
            self._clients.keep(kept)
            self._due.renumber(kept)
            self._begun = self._begun[kept]

    def pop_due(self, now_ms: int) -> int:
        """Take what is due from the wheel, stamped with now; returns how many now wait to be checked.

        They stay held. One that gets a new end before it is checked, or is dropped, waits no longer.
        """
        return self._due.pop_due(now_ms)

    def take_due(self) -> tuple[Ids, Ints]:
        """All that wait to be checked, in the order (due, submission), each with when it was popped."""
        return self._due.take()

    def next_due_ms(self) -> int | None:
        """A lower bound of the next due time, None when nothing is held."""
        return self._due.next_due_ms()


def _each_once(numbers: Ints) -> Ints:
    """The numbers without repetitions, in the order in which each comes last."""
    places = np.arange(len(numbers))
    last_place = np.empty(numbers.max(initial=0) + 1, np.int64)
    last_place[numbers] = places
    is_last = last_place[numbers] == places
    return numbers if is_last.all() else numbers[is_last]
