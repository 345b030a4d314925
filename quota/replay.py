"""Stored usage decided again: the same batches with the same quota snapshots give the same decisions.

First decisions (docs/design.md, "The rate") depend on the sample windows alone, never on a token bucket. So a replay
may begin at any instant: after it has read the usage of the (N + 1) · w before, its windows are what they were.

`kquota throttles verify` decides batches again and compares with `differences`. `ReplayEngine` is for what-if: its
answers have no names, and each client has an instant of its own.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from quota.arrays import Ids, Ints
from quota.decisions import Throttles
from quota.engine import QuotaEngine
from quota.entity import QUOTA_TYPES
from quota.holds import Owed
from quota.resolution import Side
from quota.sensors import Key
from quota.snapshot import QuotaSnapshot
from quota.throttle_time import owed_time_ms
from quota.usage import COLUMNS, EntityNames, Measure, Usage

_ORDER: Final = ("time_epoch", "evaluated_at_ms", "batch_id", "query_id")

USAGE_COLUMNS: Final = ("query_id", "batch_id", "time_epoch", "evaluated_at_ms", "quota_version", *COLUMNS)
"""The columns of `usage` that decisions depend on: a replay reads these."""

SnapshotAt = Callable[[int], QuotaSnapshot]  # returns the quotas of a version of the quota table


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The facts behind a decision or a look; query "" and batch −1 before the first batch.

    A look has the last batch whose usage is in the engine. The instant grows within a time epoch only.
    """

    query_id: str
    batch_id: int
    evaluated_at_ms: int
    quota_version: int
    time_epoch: int = 0

    def is_after(self, other: "Evaluation", last_query_id: str) -> bool:
        """True if its batch was decided after the other one's; False for the same."""
        return self.order(last_query_id) > other.order(last_query_id)

    def order(self, last_query_id: str) -> tuple[int, int, bool, int, str]:
        """The place of its batch in the order they were decided; an earlier one has the smaller value.

        Within a time epoch instants never go back, so the batches of a query are in order by epoch, instant and number.
        A new query that begins with old events is evaluated at the instant of the last batch of the previous query. So
        of several batches at one instant those of `last_query_id` come last.
        """
        is_last = self.query_id == last_query_id
        return self.time_epoch, self.evaluated_at_ms, is_last, self.batch_id, self.query_id


@dataclass(frozen=True, slots=True)
class StoredBatch(Evaluation):
    """The rows of `usage` of one micro-batch, in any order, and how it was decided."""

    usage: pa.Table = field(kw_only=True)


@dataclass(frozen=True, slots=True)
class EpochSpan:
    """The instants of the first and the last row of a time epoch. After its last comes the first of the next."""

    time_epoch: int
    first_ms: int
    last_ms: int


def batches_of(usage: pa.Table, last_query_id: str = "") -> Iterator[StoredBatch]:
    """Rows of `usage` with `USAGE_COLUMNS`, whole batches, in the order they were decided: see `Evaluation.order`."""
    if not usage.num_rows:
        return
    ordered, first = in_batches(usage)
    keys = ordered.select([*_ORDER, "quota_version"]).take(pa.array(first)).to_pylist()
    counts = np.diff(first, append=ordered.num_rows)
    batches = [
        StoredBatch(**key, usage=ordered.slice(start, count))
        for key, start, count in zip(keys, first.tolist(), counts.tolist(), strict=True)
    ]
    yield from sorted(batches, key=lambda one: one.order(last_query_id))


def in_batches(usage: pa.Table) -> tuple[pa.Table, Ints]:
    """Rows of `usage`, at least one, batch by batch in the order they were decided, and where each batch begins.

    Of several batches at one instant those with the smaller number come first.
    """
    ordered = usage.sort_by([(column, "ascending") for column in _ORDER]).combine_chunks()
    # Not by group_by: the order of its groups is not specified.
    begins = np.zeros(ordered.num_rows, np.bool_)
    begins[0] = True
    for name in _ORDER:
        column = ordered[name]
        begins[1:] |= pc.not_equal(column[1:], column[:-1]).to_numpy()
    return ordered, np.flatnonzero(begins)


_UNKNOWN: Final = -1


@dataclass(frozen=True, slots=True)
class NumberedUsage(Usage):
    """Usage whose clients the caller has numbered; its names begin at `names_start` of `names`, which may have more."""

    clients: Ids
    names_start: int = 0

    def rows(self, start: int, stop: int) -> Self:
        """The rows from start to stop."""
        produced, fetched, time = (
            Measure(one.values[start:stop], None if one.present is None else one.present[start:stop])
            for one in self.measures
        )
        return type(self)(
            self.names,
            self.window[start:stop],
            self.last_ms[start:stop],
            (produced, fetched, time),
            self.clients[start:stop],
            self.names_start + start,
        )

    def own_names(self) -> EntityNames:
        """The names of these rows."""
        return self.names.slice(self.names_start, len(self.clients))


class ReplayEngine(QuotaEngine):
    """A `QuotaEngine` that works by the numbers of clients and answers without names. Never call `expire_idle`."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._entity_of_client = np.zeros(0, np.int64)

    def throttles(self, usage: NumberedUsage, evaluated_at_ms: int, is_old: bool = False) -> Throttles:
        """Do what `record` does, and return only the applied decisions. `Usage.read` has checked the usage."""
        self._check_instant(evaluated_at_ms)
        judged = self._judge(usage, evaluated_at_ms, is_old)
        return Throttles.none() if judged is None else judged.throttles()

    def resolve_again(self, clients: Ids, names: pa.Table, evaluated_at_ms: int) -> None:
        """Resolve clients and their names under the quotas now in force; `owed_at` needs that after `load_quotas`."""
        if self._sensors.recording and len(clients):
            self._grow(clients)
            self._look_up_names(clients, EntityNames(names, self.scope == "broker"), evaluated_at_ms)

    def owed_at(self, clients: Ids, at_ms: int | Ints, types: Ints | None = None) -> Owed:
        """What clients owe, at an instant or each at its own, not before the last batch: the figures of `evaluate`.

        Each client must have been resolved under the quotas in force: by a batch with usage of it, or by
        `resolve_again`. While no quota is in force any number may be asked for: none owes. If types are given, only the
        figures of these are looked up; of the others they say that there is no quota. Reads only.
        """
        # No client is looked up while nothing records: the numbers of clients that came then are not known here.
        entities = self._entity_of_client[clients] if self._sensors.recording else clients
        shape = (len(QUOTA_TYPES), len(clients))
        bound, level = np.full(shape, np.inf), np.zeros(shape, np.int64)
        observed, tokens, window_ms = np.zeros(shape), np.zeros(shape), np.ones(shape, np.int64)
        for key in self._sensors.recording:
            side, quota_type = key
            if side is Side.SHADOW or (types is not None and not (types == quota_type).any()):
                continue
            sensors, of_type = self._sensors.entities.sensors(key, entities), self._sensors.by_key[key]
            bound[quota_type] = of_type.bound[sensors]
            level[quota_type] = of_type.level[sensors]
            if np.isinf(bound[quota_type]).all():
                continue  # it owes nothing
            observed[quota_type], window_ms[quota_type] = self._observed(key, sensors, at_ms)
            if self.carry_debt:
                tokens[quota_type] = self._tokens(quota_type, sensors, bound[quota_type], at_ms)
        return Owed(bound, level, window_ms, owed_time_ms(observed, window_ms, tokens, bound))

    def _look_up(self, batch: Usage, now_ms: int) -> tuple[Ids, dict[Key, Ids]]:
        if not isinstance(batch, NumberedUsage):
            return super()._look_up(batch, now_ms)
        self._grow(batch.clients)
        entities = self._entity_of_client[batch.clients]
        of_row = self._sensors.look_up_again(entities)
        if of_row is None:
            entities, of_row = self._look_up_names(batch.clients, batch.own_names(), now_ms)
        return entities, of_row

    def _look_up_names(self, clients: Ids, names: EntityNames, now_ms: int) -> tuple[Ids, dict[Key, Ids]]:
        self._entity_of_client[clients], of_row = self._sensors.look_up(names, now_ms)
        return self._entity_of_client[clients], of_row

    def _grow(self, clients: Ids) -> None:
        room = 2 * (int(clients.max()) + 1) - len(self._entity_of_client)
        if room > len(self._entity_of_client):
            self._entity_of_client = np.pad(self._entity_of_client, (0, room), constant_values=_UNKNOWN)


def begins_time_epoch(last_ms: int, ring_ms: int, now_ms: Iterable[int | None]) -> bool:
    """Whether a batch begins a new time epoch: a clock was ahead, was set right, and event time must not wait for it.

    It does if all clocks agree that now is before `last_ms` by more than the ring. A backlog has old events and is read
    at a later time of the driver's clock; so it begins none.

    Args:
        last_ms: `evaluated_at_ms` of the batch before.
        ring_ms: N · w, the span of the rates' sample windows.
        now_ms: the newest event time of the batch, the newest append time of its messages, the driver's wall clock when
            it was collected. None: not known.
    """
    return all(one_ms is not None and one_ms < last_ms - ring_ms for one_ms in now_ms)


KEY: Final = ("query_id", "batch_id", "broker_id", "user", "client_id", "quota_type", "mode")
"""The columns that identify a row of `decisions`."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A decision, by `KEY`, that differs from the one its usage and quotas lead to.

    `columns` has (stored, recomputed) of every column that differs; it is empty if one of the two rows is missing.
    """

    key: dict[str, Any]
    columns: dict[str, tuple[Any, Any]]
    is_stored: bool = True
    is_recomputed: bool = True


def differences(stored: pa.Table, recomputed: pa.Table) -> list[Difference]:
    """Every difference between two tables of decisions, in the order of batches and keys.

    The columns of `recomputed`, `KEY` among them, are compared exactly, floating-point numbers too: the same arithmetic
    on the same numbers gives the same.
    """
    names = recomputed.column_names
    order = [(name, "ascending") for name in KEY]
    stored, recomputed = (table.select(names).sort_by(order).combine_chunks() for table in (stored, recomputed))
    if stored.equals(recomputed):
        return []
    left, right = (
        {tuple(row[name] for name in KEY): row for row in table.to_pylist()} for table in (stored, recomputed)
    )
    found = []
    for key in sorted({*left, *right}, key=lambda one: (one[1], one[0], *one[2:])):
        one, other = left.get(key), right.get(key)
        named = dict(zip(KEY, key, strict=True))
        if one is None or other is None:
            found.append(Difference(named, {}, one is not None, other is not None))
        elif one != other:
            columns = {name: (one[name], other[name]) for name in names if one[name] != other[name]}
            found.append(Difference(named, columns))
    return found


def evaluation_of(batch: StoredBatch) -> Evaluation:
    """The facts that a stored batch was decided with."""
    return Evaluation(batch.query_id, batch.batch_id, batch.evaluated_at_ms, batch.quota_version, batch.time_epoch)
