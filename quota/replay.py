"""Stored usage decided again: the same batches with the same quota snapshots give the same decisions.

First decisions (docs/design.md, "The rate") depend on the sample windows alone, never on a token bucket. So a replay
may begin at any instant: after it has read the usage of the (N + 1) · w before, its windows are what they were.

`kquota throttles verify` decides batches again and compares with `differences`.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from quota.arrays import Ints
from quota.snapshot import QuotaSnapshot
from quota.usage import COLUMNS

_ORDER: Final = ("time_epoch", "evaluated_at_ms", "batch_id")

_FACTS: Final = ("query_id", "batch_id", "time_epoch", "evaluated_at_ms", "quota_version", "tenants_version")
USAGE_COLUMNS: Final = (*_FACTS, *COLUMNS)
"""The columns of `usage` that decisions depend on: a replay reads these."""

SnapshotAt = Callable[[int, int], QuotaSnapshot]  # returns the quotas and tenants of these versions of their tables


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The facts behind a decision or a check; query "" and batch −1 before the first batch.

    A check has the last batch whose usage is in the engine. The instant grows within a time epoch only.
    """

    query_id: str
    batch_id: int
    evaluated_at_ms: int
    quota_version: int
    time_epoch: int = 0
    tenants_version: int = -1

    @property
    def versions(self) -> tuple[int, int]:
        """The versions of quotas and tenants: see `QuotaSnapshot.versions`."""
        return self.quota_version, self.tenants_version

    def under(self, quota_version: int, tenants_version: int) -> "Evaluation":
        """The same under other quotas and tenants."""
        return replace(self, quota_version=quota_version, tenants_version=tenants_version)

    @property
    def order(self) -> tuple[int, int, int]:
        """The place of its batch in the order they were decided; an earlier one has the smaller value.

        Within a time epoch instants never go back, and no two queries share one: see `least_ms`.
        """
        return self.time_epoch, self.evaluated_at_ms, self.batch_id

    def least_ms(self, query_id: str) -> int:
        """The earliest instant of the next batch in the same time epoch, which is of this query.

        It is this one's, or a millisecond later in another query. The batches of a query are in order by their numbers,
        and those of a new query, which begins with 0 when a checkpoint was lost, come after them.
        """
        is_of_another = self.batch_id >= 0 and query_id != self.query_id
        return self.evaluated_at_ms + is_of_another


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


def batches_of(usage: pa.Table) -> Iterator[StoredBatch]:
    """Rows of `usage` with `USAGE_COLUMNS`, whole batches, in the order they were decided: see `Evaluation.order`."""
    if not usage.num_rows:
        return
    ordered, first = in_batches(usage)
    keys = ordered.select(_FACTS).take(pa.array(first)).to_pylist()
    counts = np.diff(first, append=ordered.num_rows)
    for key, start, count in zip(keys, first.tolist(), counts.tolist(), strict=True):
        yield StoredBatch(**key, usage=ordered.slice(start, count))


def in_batches(usage: pa.Table) -> tuple[pa.Table, Ints]:
    """Rows of `usage`, at least one, batch by batch in the order they were decided, and where each batch begins."""
    ordered = usage.sort_by([(column, "ascending") for column in _ORDER]).combine_chunks()
    # Not by group_by: the order of its groups is not specified.
    begins = np.zeros(ordered.num_rows, np.bool_)
    begins[0] = True
    for name in _ORDER:
        column = ordered[name]
        begins[1:] |= pc.not_equal(column[1:], column[:-1]).to_numpy()
    return ordered, np.flatnonzero(begins)


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
    """A decision, by `KEY`, that differs from the one its usage and quotas lead to; or a record, by its `publish_seq`.

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
    for key in sorted({*left, *right}, key=_in_order):
        one, other = left.get(key), right.get(key)
        named = dict(zip(KEY, key, strict=True))
        if one is None or other is None:
            found.append(Difference(named, {}, one is not None, other is not None))
        elif one != other:
            columns = {name: (one[name], other[name]) for name in names if one[name] != other[name]}
            found.append(Difference(named, columns))
    return found


def _in_order(key: tuple[Any, ...]) -> tuple[Any, ...]:
    """By batch, then by name; a sensor that is held as a whole has no client-id and comes before its clients."""
    query_id, batch_id, *names = key
    return batch_id, query_id, *((name is not None, name) for name in names)


def evaluation_of(batch: StoredBatch) -> Evaluation:
    """The facts that a stored batch was decided with."""
    return Evaluation(**{one.name: getattr(batch, one.name) for one in fields(Evaluation)})
