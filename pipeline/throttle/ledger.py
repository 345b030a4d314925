"""The throttles that run now: who is held, until when, and what is due next.

One thread at a time (the publisher's lock serialises the writers), but `pop_due` and `next_due_ms` may be called by
any thread at any time: they take only the lock of the timing wheel, which is never held during I/O.
"""

from threading import Lock
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipeline.throttle.lifecycle import Running
from pipeline.throttle.shapes import (
    CLIENTS,
    DUE,
    HELD,
    LISTED,
    NO_BOUND,
    NO_LEVEL,
    Ints,
    bounds_of,
    int64s,
    levels_of,
    types_of,
)
from purgatory.batch_wheel import BatchTimingWheel, slots_of
from quota.decisions import names_of
from quota.entity import QUOTA_TYPES
from quota.names import KeyIndex, Seeds
from quota.usage import EntityNames

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


_TEXTS: Final = (*CLIENTS.names, "decision_id")
_COLUMNS: Final = {
    "quota_type": np.int64,
    "has_user": np.bool_,
    "has_client_id": np.bool_,
    "bound": np.float64,
    "level": np.int64,
    "end_ms": np.int64,
    "due_ms": np.int64,
}


class HeldClients:
    """Rows of `HELD` in columns, by the number of their client, which it keeps until `keep`. One caller at a time.

    A sensor is kept as two flags: each of its parts is the client's own name, or "".
    """

    def __init__(self) -> None:
        self._seeds = Seeds.draw()
        self._index = KeyIndex()
        kinds = {**_COLUMNS, **dict.fromkeys(_TEXTS, np.object_)}
        self._columns: dict[str, NDArray[Any]] = {name: np.zeros(0, kind) for name, kind in kinds.items()}

    def __len__(self) -> int:
        return len(self._index)

    def find(self, clients: pa.Table) -> Ints:
        """The number of each client, int64[n]; −1 for one without a number."""
        return self._index.find(self._keys(clients))

    def write(self, throttles: pa.Table) -> Ints:
        """Set the rows of these clients, the last one where there are several; returns their numbers, int64[n]."""
        numbers, first_rows = self._index.add(self._keys(throttles))
        new = slice(len(self) - len(first_rows), len(self))
        grown = {name: _with_room(one, len(self), "" if name in _TEXTS else 0) for name, one in self._columns.items()}
        columns = self._columns = grown
        if len(first_rows):
            rows = pa.array(first_rows)
            for name in CLIENTS.names:
                columns[name][new] = throttles[name].take(rows).to_pylist()
        columns["decision_id"][numbers] = throttles["decision_id"].to_pylist()
        columns["quota_type"][numbers] = types_of(throttles)
        for part in ("user", "client_id"):
            columns[f"has_{part}"][numbers] = pc.not_equal(throttles[f"sensor_{part}"], "").to_numpy()
        columns["bound"][numbers] = bounds_of(throttles)
        columns["level"][numbers] = levels_of(throttles)
        for name in ("end_ms", "due_ms"):
            columns[name][numbers] = int64s(throttles, name)
        return numbers

    def read(self, numbers: Ints) -> pa.Table:
        """The rows of some clients, in the order given."""
        taken = {name: column[numbers] for name, column in self._columns.items()}
        texts = {name: pa.array(taken[name].tolist(), pa.string()) for name in _TEXTS}
        columns = {
            **texts,
            **{name: pa.array(taken[name]) for name in ("end_ms", "due_ms")},
            "quota_type": names_of(QUOTA_TYPES, taken["quota_type"]),
            "sensor_user": pc.if_else(pa.array(taken["has_user"]), texts["user"], ""),
            "sensor_client_id": pc.if_else(pa.array(taken["has_client_id"]), texts["client_id"], ""),
            "bound": pa.array(taken["bound"], mask=taken["bound"] == NO_BOUND),
            "level": pa.array(taken["level"], mask=taken["level"] == NO_LEVEL),
        }
        return pa.Table.from_arrays([columns[name] for name in HELD.names], schema=HELD)

    def column(self, name: str, numbers: Ints) -> NDArray[Any]:
        """One column of `read`: end_ms or due_ms as int64[n], decision_id as object[n]."""
        column: NDArray[Any] = self._columns[name][numbers]
        return column

    def set_due(self, numbers: Ints, due_ms: Ints) -> None:
        """Change when the clients are due; no other column."""
        self._columns["due_ms"][numbers] = due_ms

    def keep(self, kept: Ints) -> None:
        """Forget all others. The clients get new numbers: the position of the old one in `kept`, which is ascending."""
        flags = np.zeros(len(self), np.bool_)
        flags[kept] = True
        self._index.keep(flags)
        self._columns = {name: column[kept] for name, column in self._columns.items()}

    def _keys(self, clients: pa.Table) -> Any:
        names = EntityNames(clients, has_brokers=True)
        return names.hashed(self._seeds).entity_keys()


_LONG_AGO_MS: Final = -(1 << 52)
_FORGOTTEN_SLACK: Final = 1 << 16  # so few clients that are no longer held are never worth a renumbering


class ThrottleLedger:
    """Held throttles by client, each with one entry in the timing wheel: its check, or its end.

    Args:
        forgotten_slack: Clients that are no longer held are forgotten when they outnumber the held by more than this.
    """

    def __init__(self, start_ms: int, forgotten_slack: int = _FORGOTTEN_SLACK) -> None:
        self._clients = HeldClients()
        self._due = DueClients(start_ms)
        self._slack = forgotten_slack
        # By client number: the position among all throttles that ever began, in which the running ones are listed.
        self._begun = _NO_NUMBERS
        self._next_begun = 0
        self._num_held = 0

    def __len__(self) -> int:
        return self._num_held

    def held(self) -> pa.Table:
        """The running throttles, in the order in which they began; of `LISTED`."""
        begun = self._begun[: len(self._clients)]
        held = np.flatnonzero(begun != _NONE)
        held = held[np.argsort(begun[held])]
        return pa.Table.from_arrays([*self._clients.read(held).columns, pa.array(held)], schema=LISTED)

    def running(self, clients: pa.Table) -> Running:
        """What is running of each of these clients, or ran last: columns broker_id, user, client_id."""
        numbers = self._clients.find(clients)
        if not len(self._clients):
            return Running(numbers >= 0, np.full(len(numbers), _LONG_AGO_MS), pa.nulls(len(numbers), pa.string()))
        is_held = (numbers >= 0) & (self._begun[numbers] != _NONE)
        end_ms = np.where(numbers >= 0, self._clients.column("end_ms", numbers), _LONG_AGO_MS)
        ids = self._clients.column("decision_id", numbers)
        return Running(is_held, end_ms, pa.array(ids.tolist(), pa.string()))

    def hold(self, throttles: pa.Table) -> None:
        """Begin to hold clients, or go on with new ends; their earlier entries in the wheel are cancelled.

        * `throttles`: Of `HELD`. Of several rows of one client the last one counts: after a restart there is one for
          each name that the cluster ever had.
        """
        if not throttles.num_rows:
            return
        rows = self._clients.write(throttles)
        self._begun = _with_room(self._begun, len(self._clients), _NONE)
        numbers = _each_once(rows)
        self._num_held += int(np.count_nonzero(self._begun[numbers] == _NONE))
        begin = rows[self._begun[rows] == _NONE]
        # Backwards: of several rows of one client the first one decides when it began.
        self._begun[begin[::-1]] = np.arange(self._next_begun, self._next_begun + len(begin))[::-1]
        self._next_begun += len(begin)
        self._due.schedule(numbers, self._clients.column("due_ms", numbers))

    def wait_for_end(self, clients: Ints) -> None:
        """The check is taken and nothing more is owed: hand these out again when they end."""
        end_ms = self._clients.column("end_ms", clients)
        self._clients.set_due(clients, end_ms)
        self._due.schedule(clients, end_ms)

    def drop(self, clients: pa.Table) -> None:
        """Hold these clients no longer: columns broker_id, user, client_id. Those that are not held are ignored."""
        if not clients.num_rows or not self._num_held:
            return
        numbers = self._clients.find(clients)
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

    def take_due(self) -> pa.Table:
        """All that wait to be checked, in the order (due, submission), of `DUE`; they wait no longer."""
        numbers, at_ms = self._due.take()
        held = self._clients.read(numbers)
        return pa.Table.from_arrays([*held.columns, pa.array(numbers), pa.array(at_ms)], schema=DUE)

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
