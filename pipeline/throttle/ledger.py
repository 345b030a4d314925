"""The throttles that run now: who is held, until when, and what is due next.

One thread at a time (the publisher's lock serialises the writers), but `pop_due` and `next_due_ms` may be called by
any thread at any time: they take only the lock of the timing wheel, which is never held during I/O.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from threading import Lock
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.throttle.shapes import CLIENTS, HELD, NO_BOUND, NO_LEVEL, columns_of, lists_of, table_of
from purgatory.batch_wheel import BatchTimingWheel
from quota.arrays import Flags, Floats, Ids, Ints
from quota.entity import QUOTA_TYPES
from quota.tenants import Tenant
from quota.usage import Pair, names_of

_NONE: Final = -1
_LONG_AGO_MS: Final = -(1 << 52)
_FORGOTTEN_SLACK: Final = 1 << 16

Key = tuple[int, int]
"""The key of a target, which is a client or a user; see `QuotaEngine.keys_of`."""


@dataclass(slots=True, eq=False)
class Hold:
    """A throttle in force, by the last record of its target.

    Attributes:
        names: Who is held, of `CLIENTS`.
        excepted: The client-ids that it does not hold; None for a client.
        bound: T, `NO_BOUND` for none.
        level: `NO_LEVEL` where it is not known.
        tenant: The `Tenant` of which its sensor was a member by then; None for none.
        kind: The `LevelKind` of its sensor.
        forgiven_ms: Until when debts of its sensor were forgiven by then; 0 for never.
        decision_id: The decision that began it.
        end_ms: Its end on the steady clock; `due_ms` its check, or its end.
        handle: Of its entry in the timing wheel; `_NONE` without one.
    """

    key: Key
    names: tuple[str | None, ...]
    excepted: Collection[str] | None = None
    quota_type: int = 0
    bound: float = NO_BOUND
    level: int = NO_LEVEL
    tenant: Tenant | None = None
    kind: int = 0
    forgiven_ms: int = 0
    decision_id: str = ""
    end_ms: int = 0
    due_ms: int = 0
    handle: int = _NONE


Holds = NDArray[np.object_]
"""An array of `Hold`."""


@dataclass(frozen=True, slots=True)
class Throttles:
    """Throttles that run, one for each of n clients: of the last record of each the type, bound and level.

    Attributes:
        holds: The `Hold` of each.
        bound: T, infinity for none.
        level: 0 where it is not known.
        kind: The `LevelKind` of its sensor.
        forgiven_ms: Until when debts of its sensor were forgiven by then; 0 for never.
        end_ms: Its end on the steady clock.
        due_ms: When its check is due there, or its end.
    """

    holds: Holds
    quota_type: Ints
    bound: Floats
    level: Ints
    kind: Ints
    forgiven_ms: Ints
    end_ms: Ints
    due_ms: Ints

    def __len__(self) -> int:
        return len(self.holds)

    @property
    def is_at_end(self) -> Flags:
        """Which have been checked, so that they are due next at their end."""
        return self.due_ms >= self.end_ms


@dataclass(frozen=True, slots=True)
class Running:
    """The running throttle of each of n targets, or its last one.

    Attributes:
        decision_ids: The decisions that began them; None where none is held.
        end_ms: Its end on the steady clock, int64[n]; far in the past where none is known.
    """

    decision_ids: NDArray[np.object_]
    is_held: Flags
    end_ms: Ints

    def take(self, rows: Ids) -> "Running":
        """The throttles of some of the clients."""
        return Running(self.decision_ids[rows], self.is_held[rows], self.end_ms[rows])


class DueHolds:
    """When which hold is due: each is at most once in the timing wheel, or waits to be checked.

    Any thread may call any method; the lock is never held for long, so the reaper always knows what is due.
    """

    def __init__(self, start_ms: int) -> None:
        self._lock = Lock()
        self._wheel = BatchTimingWheel(start_ms=start_ms)
        self._of_handle: dict[int, Hold] = {}
        self._popped: dict[Hold, int] = {}

    def schedule(self, holds: Collection[Hold]) -> None:
        """Hand these out when they are due, and no longer at earlier instants."""
        with self._lock:
            self._cancel(holds)
            handles = self._wheel.schedule_many(np.array([hold.due_ms for hold in holds], np.int64)).tolist()
            for hold, handle in zip(holds, handles, strict=True):
                hold.handle = handle
                self._of_handle[handle] = hold

    def cancel(self, holds: Collection[Hold]) -> None:
        """Do not hand out these; nor check those that were."""
        with self._lock:
            self._cancel(holds)

    def pop_due(self, now_ms: int) -> int:
        """Take what is due from the wheel, stamped with now; returns how many now wait to be checked."""
        with self._lock:
            for handle in self._wheel.advance(now_ms)[0].tolist():
                hold = self._of_handle.pop(handle)
                hold.handle = _NONE
                self._popped[hold] = now_ms
            return len(self._popped)

    def take(self) -> dict[Hold, int]:
        """Take the holds that wait to be checked, in the order (due, submission), each with when it was handed out.

        After this call they no longer wait.
        """
        with self._lock:
            taken, self._popped = self._popped, {}
            return taken

    def next_due_ms(self) -> int | None:
        """A lower bound of the next due time, None when nothing is scheduled."""
        with self._lock:
            return self._wheel.next_expiration_ms

    def _cancel(self, holds: Iterable[Hold]) -> None:
        handles = [hold.handle for hold in holds if hold.handle != _NONE]
        self._wheel.cancel_many(np.array(handles, np.int64))
        for hold in holds:
            self._of_handle.pop(hold.handle, None)
            self._popped.pop(hold, None)
            hold.handle = _NONE


class ThrottleLedger:
    """Held throttles by target, each with one entry in the timing wheel: its check, or its end.

    Args:
        forgotten_slack: The ends of throttles that run no longer are forgotten when they outnumber the held ones by
            more than this.
    """

    def __init__(self, start_ms: int, forgotten_slack: int = _FORGOTTEN_SLACK) -> None:
        self._held: dict[Key, Hold] = {}
        self._ended_ms: dict[Key, int] = {}
        self._due = DueHolds(start_ms)
        self._slack = forgotten_slack

    def __len__(self) -> int:
        return len(self._held)

    def held(self) -> Holds:
        """All of them, in the order in which they began."""
        return _array(self._held.values())

    def throttles(self, holds: Holds) -> Throttles:
        """Their figures, in columns."""
        types, *others = (
            np.array([getattr(hold, name) for hold in holds], np.int64)
            for name in ("quota_type", "level", "kind", "forgiven_ms", "end_ms", "due_ms")
        )
        return Throttles(holds, types, np.array([hold.bound for hold in holds], np.float64), *others)

    def names(self, holds: Holds) -> pa.Table:
        """Who they hold, of `CLIENTS`."""
        columns = zip(*(hold.names for hold in holds), strict=True) if len(holds) else ((),) * len(CLIENTS)
        return pa.Table.from_arrays([pa.array(column, pa.string()) for column in columns], schema=CLIENTS)

    def keys(self, holds: Holds) -> Pair:
        """The keys of their targets."""
        first, second = (np.array([hold.key[half] for hold in holds], np.uint64) for half in (0, 1))
        return first, second

    def decision_ids(self, holds: Holds) -> NDArray[np.object_]:
        """The decisions that began them."""
        return np.array([hold.decision_id for hold in holds], np.object_)

    def tenants(self, holds: Holds) -> NDArray[np.object_]:
        """The tenants of which their sensors were members; None for none."""
        found = np.empty(len(holds), np.object_)
        found[:] = [hold.tenant for hold in holds]
        return found

    def excepted(self, holds: Holds) -> NDArray[np.object_]:
        """The client-ids that they do not hold; None for a client."""
        found = np.empty(len(holds), np.object_)
        found[:] = [hold.excepted for hold in holds]
        return found

    def rows(self, holds: Holds) -> pa.Table:
        """These holds as rows of `HELD`."""
        throttles = self.throttles(holds)
        columns = {
            **columns_of(self.names(holds), CLIENTS),
            "quota_type": names_of(QUOTA_TYPES, throttles.quota_type),
            "bound": pa.array(throttles.bound, mask=throttles.bound == NO_BOUND),
            "level": pa.array(throttles.level, mask=throttles.level == NO_LEVEL),
            "except_client_ids": lists_of(self.excepted(holds)),
            "decision_id": pa.array(self.decision_ids(holds).tolist(), pa.string()),
            "end_ms": pa.array(throttles.end_ms),
            "due_ms": pa.array(throttles.due_ms),
        }
        return table_of(HELD, len(holds), columns)

    def running(self, keys: Pair) -> Running:
        """What is running of each of these targets, or ran last."""
        asked = _keys(keys)
        found = [self._held.get(key) for key in asked]
        ends_ms = [
            self._ended_ms.get(key, _LONG_AGO_MS) if hold is None else hold.end_ms
            for key, hold in zip(asked, found, strict=True)
        ]
        ids = np.array([None if hold is None else hold.decision_id for hold in found], np.object_)
        return Running(ids, np.array([hold is not None for hold in found], np.bool_), np.array(ends_ms, np.int64))

    def hold(
        self,
        keys: Pair,
        clients: pa.Table,
        excepted: NDArray[np.object_],
        quota_types: Ints,
        bound: Floats,
        level: Ints,
        tenant: NDArray[np.object_],
        kind: Ints,
        forgiven_ms: Ints,
        decision_ids: NDArray[np.object_],
        end_ms: Ints,
        due_ms: Ints,
    ) -> None:
        """Begin to hold targets, or go on with new ends; their earlier entries in the wheel are cancelled.

        Of several rows of one target the last one counts: after a restart there is one for each name that the cluster
        ever had.

        * `clients`: Who they are, of `CLIENTS`.
        """
        names = zip(*(clients[name].to_pylist() for name in CLIENTS.names), strict=True)
        standing = (column.tolist() for column in (quota_types, bound, level, tenant, kind, forgiven_ms))
        columns = *standing, decision_ids, end_ms.tolist(), due_ms.tolist()
        scheduled: dict[Hold, None] = {}
        for key, who, without, *figures in zip(_keys(keys), names, excepted, *columns, strict=True):
            hold = self._held.setdefault(key, Hold(key, who))
            hold.excepted = without
            hold.quota_type, hold.bound, hold.level, hold.tenant, hold.kind, hold.forgiven_ms, *times = figures
            hold.decision_id, hold.end_ms, hold.due_ms = times
            self._ended_ms.pop(key, None)
            scheduled.pop(hold, None)
            scheduled[hold] = None
        self._due.schedule(scheduled)

    def wait_for_end(self, holds: Holds) -> None:
        """The check is taken and nothing more is owed: hand these out again when they end."""
        for hold in holds:
            hold.due_ms = hold.end_ms
        self._due.schedule(list(holds))

    def drop(self, keys: Pair) -> None:
        """Hold these targets no longer. Those that are not held are ignored."""
        dropped = [hold for key in _keys(keys) if (hold := self._held.pop(key, None)) is not None]
        self._due.cancel(dropped)
        self._ended_ms |= {hold.key: hold.end_ms for hold in dropped}
        if len(self._ended_ms) > len(self._held) + self._slack:
            self._ended_ms = {}

    def pop_due(self, now_ms: int) -> int:
        """Take what is due from the wheel, stamped with now; returns how many now wait to be checked.

        They stay held. One that gets a new end before it is checked, or is dropped, waits no longer.
        """
        return self._due.pop_due(now_ms)

    def take_due(self) -> tuple[Holds, Ints]:
        """All that wait to be checked, in the order (due, submission), each with when it was popped."""
        taken = self._due.take()
        return _array(taken), np.array([*taken.values()], np.int64)

    def next_due_ms(self) -> int | None:
        """A lower bound of the next due time, None when nothing is held."""
        return self._due.next_due_ms()


def _array(holds: Collection[Hold]) -> Holds:
    return np.fromiter(holds, np.object_, len(holds))


def _keys(keys: Pair) -> list[Key]:
    return list(zip(keys[0].tolist(), keys[1].tolist(), strict=True))
