"""Stored usage, cut into the batches it is decided in: the seconds of `usage_by_second`, or the batches of `usage`."""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.tables.address import table_uri
from pipeline.tables.reading.time_slices import TimeSlices
from quota.replay import batches_of
from quota.replay_engine import NumberedUsage
from quota.shares import ALL_USERS, Share
from quota.usage import Usage
from schemas.names import ClientKey

Ints = NDArray[np.int64]
Source = Literal["usage_by_second", "usage"]
_BYTES: Final = ("produced_bytes", "fetched_bytes")
_TIMES: Final = ("io_time_ns", "network_time_ns")
_CLIENT: Final = "client"
_LEFT_OUT: Final = -1
_NAMES: Final = ("broker_id", "user", "client_id")


@dataclass(frozen=True, slots=True)
class UsageBatch:
    """Usage that is decided together, at one instant.

    Attributes:
        at_ms: The instant.
        quota_version: Version of the quotas that the job decided it with; None if the table does not store it.
        usage: What `ReplayEngine.throttles` takes.
        used_bytes: Produced and fetched bytes of each row.
    """

    at_ms: int
    quota_version: int | None
    usage: NumberedUsage
    used_bytes: Ints


class UsageReader:
    """Reads the usage of a range in batches, in the order they are decided, and numbers the clients.

    Args:
        root: Of the tables.
        source: Which table.
        by_broker: The same client at two brokers counts as two clients.
        sample_window_ms: The engine's; must be whole seconds for `usage_by_second`.
        version: Of the table; None = the newest.
        share: Usage of other users is left out; the instants of all batches stay.
        reads_times: False = request times are null, because no quota bounds them: reading them takes time.
    """

    def __init__(
        self,
        root: str,
        source: Source,
        by_broker: bool,
        sample_window_ms: int,
        version: int | None = None,
        share: Share = ALL_USERS,
        reads_times: bool = True,
    ) -> None:
        self._source = source
        self._time = "second_start_ms" if source == "usage_by_second" else "evaluated_at_ms"
        self.table = TimeSlices(table_uri(root, source), self._time, dictionaries=_NAMES, version=version)
        self._names = _NAMES if by_broker else _NAMES[1:]
        self._by_broker = by_broker
        self._reads_times = reads_times
        self._w = sample_window_ms
        self._share = share
        self._numbers: dict[ClientKey, int] = {}

    @property
    def numbers(self) -> Mapping[ClientKey, int]:
        """The number of every client read so far, in the order of the numbers. It changes as more is read."""
        return self._numbers

    def read(self, slices: Sequence[tuple[int, int]]) -> Iterator[Iterator[UsageBatch]]:
        """The batches of consecutive slices of time; to be taken in order.

        While the batches of one slice are taken, the rows of the next one are read. So the rows of two are in memory.

        Args:
            slices: (start inclusive, end exclusive) of each.

        Yields:
            The batches of each slice.
        """
        with ThreadPoolExecutor(1) as ahead:
            coming = deque(ahead.submit(self._rows, *ends) for ends in slices[:1])
            for place in range(1, len(slices) + 1):
                rows = coming.popleft().result()
                coming.extend(ahead.submit(self._rows, *ends) for ends in slices[place : place + 1])
                yield self._seconds(rows) if self._source == "usage_by_second" else self._batches(rows)

    def _rows(self, start_ms: int, end_ms: int) -> pa.Table:
        columns = [self._time, *self._names, *_BYTES, "last_event_ms", *(_TIMES if self._reads_times else ())]
        if self._source == "usage":
            # Not the time epoch: usage counts at its own time here, as the seconds of `usage_by_second` do.
            columns += ["query_id", "batch_id", "quota_version", "sample_start_ms"]
        # One dictionary for all chunks, so that the batches are slices of one array.
        rows = self.table.read(columns, start_ms, end_ms).unify_dictionaries()
        for name in () if self._reads_times else _TIMES:
            rows = rows.append_column(name, pa.nulls(rows.num_rows))
        return rows

    def _batches(self, rows: pa.Table) -> Iterator[UsageBatch]:
        kept = self._kept(rows)
        clients = np.full(rows.num_rows, _LEFT_OUT, np.int64)
        clients[kept] = self._numbered(rows.filter(pa.array(kept)))
        for batch in batches_of(rows.append_column(_CLIENT, pa.array(clients))):
            usage, own = batch.usage, batch.usage[_CLIENT].to_numpy()
            if self._share != ALL_USERS:
                usage, own = usage.filter(pa.array(own != _LEFT_OUT)).combine_chunks(), own[own != _LEFT_OUT]
            checked = Usage.read(usage, self._by_broker, self._w, batch.evaluated_at_ms)
            numbered = NumberedUsage.of(checked, own)
            yield UsageBatch(batch.evaluated_at_ms, batch.quota_version, numbered, _bytes_of(checked))

    def _seconds(self, rows: pa.Table) -> Iterator[UsageBatch]:
        if not rows.num_rows:
            return
        start_ms = rows["second_start_ms"].to_numpy()
        if (np.diff(start_ms) < 0).any():
            order = np.argsort(start_ms, kind="stable")
            rows, start_ms = rows.take(pa.array(order)), start_ms[order]
        rows = rows.combine_chunks()
        sample_start_ms = pa.array(start_ms // self._w * self._w)
        rows = rows.set_column(0, "sample_start_ms", sample_start_ms)
        first = np.flatnonzero(np.diff(start_ms, prepend=-1))
        at_ms = np.maximum.reduceat(rows["last_event_ms"].to_numpy(), first)
        ends = np.append(first, len(start_ms))
        kept = self._kept(rows)
        if not kept.all():
            rows = rows.filter(pa.array(kept)).combine_chunks()
            ends = np.append(0, np.cumsum(kept))[ends]
        checked = Usage.read(rows, self._by_broker, self._w, int(at_ms[-1]))
        usage, used_bytes = NumberedUsage.of(checked, self._numbered(rows)), _bytes_of(checked)
        for begin, end, instant in zip(ends[:-1].tolist(), ends[1:].tolist(), at_ms.tolist(), strict=True):
            yield UsageBatch(instant, None, usage.rows(begin, end), used_bytes[begin:end])

    def _kept(self, rows: pa.Table) -> NDArray[np.bool_]:
        """Which rows are of users of the share."""
        if self._share == ALL_USERS:
            return np.ones(rows.num_rows, np.bool_)
        users = rows["user"].combine_chunks()
        has: NDArray[np.bool_] = np.array([self._share.has(user) for user in users.dictionary.to_pylist()], np.bool_)
        kept: NDArray[np.bool_] = has[users.indices.to_numpy(zero_copy_only=False)]
        return kept

    def _numbered(self, rows: pa.Table) -> Ints:
        """The number of the client of each row; a new client gets the next number."""
        names = self._names
        local = np.zeros(rows.num_rows, np.int64)
        for name in names:
            column = rows[name].combine_chunks()
            local = local * len(column.dictionary) + column.indices.to_numpy(zero_copy_only=False)
        _, first, of_row = np.unique(local, return_index=True, return_inverse=True)
        found = rows.select(names).take(pa.array(first)).to_pylist()
        numbers = [
            self._numbers.setdefault(
                ClientKey(row.get("broker_id", ""), row["user"], row["client_id"]), len(self._numbers)
            )
            for row in found
        ]
        return np.array(numbers, np.int64)[of_row]


def _bytes_of(usage: Usage) -> Ints:
    produced, fetched, _ = usage.measures
    return produced.values + fetched.values
