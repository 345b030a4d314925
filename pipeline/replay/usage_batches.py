"""Stored usage, cut into the batches it is decided in: the seconds of `usage_by_second`, or the batches of `usage`."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipeline.tables.layout import table_uri
from pipeline.tables.time_slices import TimeSlices
from quota.replay import batches_of

Ints = NDArray[np.int64]
Source = Literal["usage_by_second", "usage"]
Client = tuple[str, str, str]
"""Broker ("" in cluster scope), user and client-id."""

_MEASURES: Final = ("produced_bytes", "fetched_bytes", "io_time_ns", "network_time_ns", "last_event_ms")
_NAMES: Final = ("broker_id", "user", "client_id")


@dataclass(frozen=True, slots=True)
class UsageBatch:
    """Usage that is decided together, at one instant.

    Attributes:
        at_ms: The instant.
        quota_version: Version of the quotas that the job decided it with; None if the table does not store it.
        usage: Columns for `QuotaEngine.record`.
        clients: Number of the client of each row.
        used_bytes: Produced and fetched bytes of each row.
        used_at_ms: Time of the newest event of each row.
    """

    at_ms: int
    quota_version: int | None
    usage: pa.Table
    clients: Ints
    used_bytes: Ints
    used_at_ms: Ints


class UsageReader:
    """Reads the usage of a range in batches, in the order they are decided, and numbers the clients.

    Args:
        root: Of the tables.
        source: Which table.
        by_broker: The same client at two brokers counts as two clients.
        sample_window_ms: The engine's; must be whole seconds for `usage_by_second`.
        version: Of the table; None = the newest.
    """

    def __init__(
        self, root: str, source: Source, by_broker: bool, sample_window_ms: int, version: int | None = None
    ) -> None:
        self._source = source
        self._time = "second_start_ms" if source == "usage_by_second" else "evaluated_at_ms"
        self.table = TimeSlices(table_uri(root, source), self._time, dictionaries=_NAMES, version=version)
        self._by_broker = by_broker
        self._w = sample_window_ms
        self._numbers: dict[Client, int] = {}

    @property
    def numbers(self) -> Mapping[Client, int]:
        """The number of every client read so far, in the order of the numbers. It changes as more is read."""
        return self._numbers

    def read(self, start_ms: int, end_ms: int) -> Iterator[UsageBatch]:
        """The batches from an instant, inclusive, to another, exclusive. All of their rows are in memory at once."""
        if start_ms >= end_ms:
            return
        columns = [self._time, *_NAMES, *_MEASURES]
        if self._source == "usage":
            columns += ["query_id", "batch_id", "quota_version", "sample_start_ms"]
        rows = self.table.read(columns, start_ms, end_ms)
        if rows.num_rows:
            # One dictionary for all chunks, so that the batches are slices of one array.
            rows = rows.unify_dictionaries()
            yield from self._seconds(rows) if self._source == "usage_by_second" else self._batches(rows)

    def _batches(self, rows: pa.Table) -> Iterator[UsageBatch]:
        for batch in batches_of(rows):
            clients = self._numbered(batch.usage)
            used_at_ms = batch.usage["last_event_ms"].to_numpy()
            yield UsageBatch(
                batch.evaluated_at_ms, batch.quota_version, batch.usage, clients, _bytes_of(batch.usage), used_at_ms
            )

    def _seconds(self, rows: pa.Table) -> Iterator[UsageBatch]:
        start_ms = rows["second_start_ms"].to_numpy()
        order = np.argsort(start_ms, kind="stable")
        rows, start_ms = rows.take(pa.array(order)).combine_chunks(), start_ms[order]
        sample_start_ms = pa.array(start_ms // self._w * self._w)
        rows = rows.set_column(0, "sample_start_ms", sample_start_ms)
        clients, used_bytes = self._numbered(rows), _bytes_of(rows)
        used_at_ms = rows["last_event_ms"].to_numpy()
        first = np.flatnonzero(np.diff(start_ms, prepend=-1))
        at_ms = np.maximum.reduceat(used_at_ms, first)
        ends = np.append(first[1:], len(start_ms))
        for begin, end, instant in zip(first.tolist(), ends.tolist(), at_ms.tolist(), strict=True):
            own = slice(begin, end)
            yield UsageBatch(
                instant, None, rows.slice(begin, end - begin), clients[own], used_bytes[own], used_at_ms[own]
            )

    def _numbered(self, rows: pa.Table) -> Ints:
        """The number of the client of each row; a new client gets the next number."""
        names = _NAMES if self._by_broker else _NAMES[1:]
        local = np.zeros(rows.num_rows, np.int64)
        for name in names:
            column = rows[name].combine_chunks()
            local = local * len(column.dictionary) + column.indices.to_numpy(zero_copy_only=False)
        _, first, of_row = np.unique(local, return_index=True, return_inverse=True)
        found = rows.select(names).take(pa.array(first)).to_pylist()
        numbers = [
            self._numbers.setdefault((row.get("broker_id", ""), row["user"], row["client_id"]), len(self._numbers))
            for row in found
        ]
        return np.array(numbers, np.int64)[of_row]


def _bytes_of(rows: pa.Table) -> Ints:
    both = pc.add(pc.fill_null(rows["produced_bytes"], 0), pc.fill_null(rows["fetched_bytes"], 0))
    total: Ints = both.to_numpy()
    return total
