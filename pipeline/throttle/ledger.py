"""The throttles that are running now: who is held, until when, and what is due next.

One thread at a time (the publisher's lock serialises the writers), but `hand_out` and `next_due_ms` may be called by
any thread at any time: they meet only the lock of `pipeline.throttle.due`, which is never held while anything is read
or written outside.
"""

from typing import Final

import numpy as np
import pyarrow as pa

from pipeline.throttle.due import DueClients
from pipeline.throttle.held_clients import HELD, HeldClients
from pipeline.throttle.lifecycle import Running
from pipeline.throttle.publications import Ints

LISTED: Final = pa.schema([*HELD, ("client", pa.int64())])
"""Running throttles, and the number of each client in the ledger."""

HANDED_OUT: Final = pa.schema([*LISTED, ("handed_out_ms", pa.int64())])
"""Throttles whose look or end has come, and the steady time at which the wheel handed each out."""

_NOT_HELD: Final = -1
_LONG_AGO_MS: Final = -(1 << 52)
_FORGOTTEN_SLACK: Final = 1 << 16  # so few clients that are no longer held are never worth a renumbering


class ThrottleLedger:
    """Held throttles by client, each with one entry in the timing wheel: its look, or its end.

    Args:
        start_ms: Steady time now.
        forgotten_slack: Clients that are no longer held are forgotten when they outnumber the held by more than this.
    """

    def __init__(self, start_ms: int, forgotten_slack: int = _FORGOTTEN_SLACK) -> None:
        self._clients = HeldClients()
        self._due = DueClients(start_ms)
        self._slack = forgotten_slack
        # By client number: the position among all throttles that ever began, in which the running ones are listed.
        self._begun = np.zeros(0, np.int64)
        self._next_begun = 0
        self._num_held = 0

    def __len__(self) -> int:
        return self._num_held

    def held(self) -> pa.Table:
        """The running throttles, in the order in which they began; of `LISTED`."""
        begun = self._begun[: len(self._clients)]
        held = np.flatnonzero(begun != _NOT_HELD)
        held = held[np.argsort(begun[held])]
        return pa.Table.from_arrays([*self._clients.read(held).columns, pa.array(held)], schema=LISTED)

    def running(self, clients: pa.Table) -> Running:
        """What is running of each of these clients, or ran last: columns broker_id, user, client_id."""
        numbers = self._clients.find(clients)
        if not len(self._clients):
            return Running(numbers >= 0, np.full(len(numbers), _LONG_AGO_MS), pa.nulls(len(numbers), pa.string()))
        is_held = (numbers >= 0) & (self._begun[numbers] != _NOT_HELD)
        end_ms = np.where(numbers >= 0, self._clients.column("end_ms", numbers), _LONG_AGO_MS)
        ids = self._clients.column("decision_id", numbers)
        return Running(is_held, end_ms, pa.array(ids.tolist(), pa.string()))

    def hold(self, throttles: pa.Table) -> None:
        """Begin to hold clients, or go on with new ends; their earlier entries in the wheel are cancelled.

        Args:
            throttles: Of `HELD`. Of several rows of one client the last one counts: after a restart there is one for
                each name that the cluster ever had.
        """
        if not throttles.num_rows:
            return
        rows = self._clients.write(throttles)
        if len(self._clients) > len(self._begun):
            room = 2 * len(self._clients) - len(self._begun)
            self._begun = np.pad(self._begun, (0, room), constant_values=_NOT_HELD)
        numbers = _each_once(rows)
        self._num_held += int(np.count_nonzero(self._begun[numbers] == _NOT_HELD))
        begin = rows[self._begun[rows] == _NOT_HELD]
        # Backwards: of several rows of one client the first one says when it began.
        self._begun[begin[::-1]] = np.arange(self._next_begun, self._next_begun + len(begin))[::-1]
        self._next_begun += len(begin)
        self._due.schedule(numbers, self._clients.column("due_ms", numbers))

    def wait_for_end(self, clients: Ints) -> None:
        """The look is taken and nothing more is owed: hand these out again when they end.

        Args:
            clients: Their numbers, as `held` and `take_handed_out` list them.
        """
        end_ms = self._clients.column("end_ms", clients)
        self._clients.set_due(clients, end_ms)
        self._due.schedule(clients, end_ms)

    def drop(self, clients: pa.Table) -> None:
        """Hold these clients no longer: columns broker_id, user, client_id. Those that are not held are ignored."""
        if not clients.num_rows or not self._num_held:
            return
        numbers = self._clients.find(clients)
        numbers = _each_once(numbers[(numbers >= 0) & (self._begun[numbers] != _NOT_HELD)])
        self._due.cancel(numbers)
        self._begun[numbers] = _NOT_HELD
        self._num_held -= len(numbers)
        if len(self._clients) > 2 * self._num_held + self._slack:
            self._forget()

    def hand_out(self, now_ms: int) -> int:
        """Take what is due from the wheel, stamped with now; returns how many now wait to be looked at.

        They stay held. One that gets a new end before it is looked at, or is dropped, waits no longer.
        """
        return self._due.hand_out(now_ms)

    def take_handed_out(self) -> pa.Table:
        """All that wait to be looked at, in the order (due, submission), of `HANDED_OUT`; they wait no longer."""
        numbers, at_ms = self._due.take()
        held = self._clients.read(numbers)
        return pa.Table.from_arrays([*held.columns, pa.array(numbers), pa.array(at_ms)], schema=HANDED_OUT)

    def next_due_ms(self) -> int | None:
        """A lower bound of the next due time, None when nothing is held."""
        return self._due.next_due_ms()

    def _forget(self) -> None:
        """Forget the clients that are no longer held."""
        kept = np.flatnonzero(self._begun[: len(self._clients)] != _NOT_HELD)
        self._clients.keep(kept)
        self._due.renumber(kept)
        self._begun = self._begun[kept]


def _each_once(numbers: Ints) -> Ints:
    """The numbers without repetitions, in the order in which each comes last."""
    places = np.arange(len(numbers))
    last_place = np.empty(numbers.max(initial=0) + 1, np.int64)
    last_place[numbers] = places
    is_last = last_place[numbers] == places
    return numbers if is_last.all() else numbers[is_last]
