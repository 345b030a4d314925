"""What to replay: the range of stored usage, the part that is kept, the quotas of each replay, and their parts."""

from bisect import bisect_right
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.errors import NotFound, TableMissing, UsageError
from pipeline.replay.usage_batches import Slice, Source, UsageReader, joined_spans, last_records
from pipeline.settings.model import EngineSettings, Settings
from pipeline.tables.address import table_uri
from pipeline.tables.reading import DeltaRsReader, TimeSlices, read_table
from quota.engine import Scope
from quota.errors import InvalidQuotas
from quota.rates import MAX_DEBT_BURSTS
from quota.replay import EpochSpan
from quota.sensors import BUCKETS_SCHEMA, of_sensors_with_parts
from quota.snapshot import Quota, QuotaSnapshot

if TYPE_CHECKING:
    from pipeline.tables.quotas.source import QuotaSource
    from pipeline.tables.quotas.table import QuotaTable


def usage_not_kept(uri: str) -> NotFound:
    """The error of a range of which the table at a URI has no usage."""
    kept = "`usage` is kept for `tables.usage_retention_ms`, and usage_by_second is written some minutes after it"
    fix = f"give another range: {kept} (what-if reads the exact batches with --from usage)"
    return NotFound(f"{uri} has no usage of this range", fix)


@dataclass(frozen=True, slots=True)
class Timeline:
    """Which quotas were in force when. Plain values, so that it can be sent to other processes.

    `from_ms` is when each snapshot came into force, ascending. The first one also holds before its time.
    """

    from_ms: tuple[int, ...]
    snapshots: tuple[QuotaSnapshot, ...]

    def at(self, instant_ms: int) -> QuotaSnapshot:
        """The quotas in force at an instant."""
        return self.snapshots[max(bisect_right(self.from_ms, instant_ms) - 1, 0)]

    def version(self, version: int) -> QuotaSnapshot:
        """The quotas of a version of the table, or of the newest earlier version if that one is not here."""
        versions = [snapshot.version for snapshot in self.snapshots]
        return self.snapshots[max(bisect_right(versions, version) - 1, 0)]

    def of_versions(self, used: Collection[int]) -> "Timeline":
        """Only the quotas of these versions, and of later ones; all if there are none."""
        kept = {self.version(one).version for one in used}
        newest = max(used, default=0)
        pairs = zip(self.from_ms, self.snapshots, strict=True)
        left = [(at_ms, one) for at_ms, one in pairs if not kept or one.version in kept or one.version > newest]
        return Timeline(tuple(at_ms for at_ms, _ in left), tuple(one for _, one in left))


def live_timeline(table: "QuotaTable", source: "QuotaSource", since_ms: int) -> Timeline:
    """The quotas that were in force from an instant on, by the times of their commits, without invalid versions."""
    in_force: list[tuple[int, QuotaSnapshot]] = []
    for commit in table.history(None):
        try:
            snapshot = source.at(commit.version)
        except (InvalidQuotas, TableMissing):
            continue
        in_force.append((commit.committed_at_ms, snapshot))
        if commit.committed_at_ms <= since_ms:
            break
    in_force.reverse()
    return Timeline(tuple(at_ms for at_ms, _ in in_force), tuple(snapshot for _, snapshot in in_force))


def old_batches(
    root: str, since_ms: int, until_ms: int, max_age_ms: int
) -> tuple[frozenset[tuple[str, int]], frozenset[int]]:
    """The batches of a span that were older than `stream.max_decision_age_ms` when the job collected them.

    The job recorded their decisions and published none: so it is after an outage, and in the first seconds of a job.
    Also returns the versions of the quotas that all batches of the span were decided with.
    """
    span = [("evaluated_at_ms", ">=", since_ms), ("evaluated_at_ms", "<", until_ms)]
    columns = ["query_id", "batch_id", "evaluated_at_ms", "processed_at_ms", "quota_version"]
    try:
        rows = read_table(table_uri(root, "batches"), columns, span)
    except TableMissing:
        return frozenset(), frozenset()
    old = rows.filter(pc.greater(pc.subtract(rows["processed_at_ms"], rows["evaluated_at_ms"]), max_age_ms))
    found = frozenset(zip(old["query_id"].to_pylist(), old["batch_id"].to_pylist(), strict=True))
    return found, frozenset(pc.unique(rows["quota_version"]).to_pylist())


@dataclass(frozen=True, slots=True)
class Start:
    """What a job had in memory after one of its batches. A replay from there decides as the job did.

    Attributes:
        at_ms: Instant of the batch.
        buckets: As `QuotaEngine.buckets` returns them.
        throttles: The row of `throttle_events` of each target that is held at that instant.
    """

    at_ms: int
    batch_id: int
    buckets: pa.Table
    throttles: pa.Table


def newest_start(root: str, settings: EngineSettings, before_ms: int) -> Start | None:
    """The newest start that is stored in the warm-up before an instant; None without one, and if a clock was set back.

    Not an older one: after a stop as long as that rates are empty, and buckets full.
    """
    try:
        usage, states = (TimeSlices(table_uri(root, name), "evaluated_at_ms") for name in ("usage", "sensor_state"))
    except TableMissing:
        return None
    if len({one.time_epoch for table in (usage, states) for one in table.epochs}) != 1:
        return None
    at_ms = states.last_time(before_ms - warm_up_ms(settings), before_ms)
    if at_ms is None:
        return None
    rows = states.read([*BUCKETS_SCHEMA.names, "batch_id"], at_ms, at_ms + 1)
    batch_id = pc.max(rows["batch_id"]).as_py()
    buckets = of_sensors_with_parts(rows.filter(pc.field("batch_id") == batch_id)).select(BUCKETS_SCHEMA.names)
    records = last_records(root, at_ms)
    ends_ms = pc.add(records["evaluated_at_ms"], records["throttle_time_ms"])
    runs = pc.and_(pc.equal(records["action"], "throttle"), pc.greater(ends_ms, at_ms))
    return Start(at_ms, batch_id, buckets, records.filter(runs))


def exact_batches_kept(root: str, since_ms: int) -> bool:
    """Whether `usage`, which has the batches as the job cut them, reaches back to an instant, or as far as seconds."""
    oldest_ms = _oldest_ms(root, "usage", "evaluated_at_ms")
    if oldest_ms is None:
        return False
    of_seconds_ms = _oldest_ms(root, "usage_by_second", "second_start_ms")
    return oldest_ms <= since_ms or of_seconds_ms is None or oldest_ms <= of_seconds_ms + _SHORTEST_MS


def _oldest_ms(root: str, name: str, column: str) -> int | None:
    with suppress(TableMissing):
        return DeltaRsReader(table_uri(root, name)).oldest_value(column)
    return None


_WARM_UP_DEBTS: Final = 5
_SLICE_ROWS: Final = 1_200_000
"""Rows that a process holds in memory at a time, about 100 MB."""
_LEAST_SLICES: Final = 20  # each is a step of a progress bar
_SHORTEST_MS: Final = 60_000
_LONGEST_MS: Final = 3_600_000
_SECOND_MS: Final = 1_000


@dataclass(frozen=True, slots=True)
class ReplayRequest:
    """What to replay.

    Attributes:
        until_ms: End of the range, exclusive.
        quotas: Of each replay: one snapshot throughout, or those that were in force.
        usage: Of one version, for all parts; None = that of the newest.
        old: Batches of the range that were too old to throttle by; see `old_batches`.
        start: Where it begins; None = with empty rates and full buckets, and a warm-up.
    """

    root: str
    source: Source
    scope: Scope
    settings: Settings
    since_ms: int
    until_ms: int
    quotas: tuple[Timeline, ...]
    usage: TimeSlices | None = None
    old: frozenset[tuple[str, int]] = frozenset()
    start: Start | None = None

    @property
    def begin_ms(self) -> int:
        """The first instant whose usage is read: the windows of the start, or the warm-up, begin there."""
        return begin_ms(self.settings.engine, self.since_ms, self.start)

    def all_quotas(self) -> Iterator[Quota]:
        """Of all replays and times."""
        snapshots = (snapshot for timeline in self.quotas for snapshot in timeline.snapshots)
        return (quota for snapshot in snapshots for quota in snapshot.quotas)


@dataclass(frozen=True, slots=True)
class Plan:
    """What is replayed, and how it is cut.

    Attributes:
        request: With the usage that all replays read: the files of one version of the table. The last slice is read
            minutes after the first one, when the log of the table may have forgotten the version.
        slices: The range with its warm-up in pieces that fit into memory, epoch by epoch.
    """

    request: ReplayRequest
    slices: tuple[Slice, ...]
    uri: str

    @classmethod
    def of(cls, request: ReplayRequest, slice_ms: int | None = None) -> "Plan":
        """Cut the range into slices of about `slice_ms` (None = `slice_length_ms`).

        Raises:
            UsageError: The source has one row per second, and the sample windows are not whole seconds.
            TableMissing: The root has no such table.
        """
        w = request.settings.engine.sample_window_ms
        if request.source == "usage_by_second" and w % _SECOND_MS:
            msg = f"usage_by_second cannot replay sample windows of {w} ms, which are not whole seconds"
            raise UsageError(msg, "replay the exact batches: --from usage")
        reader = UsageReader(request)
        table = reader.table
        whole_ms = request.until_ms - request.begin_ms
        if slice_ms is None:
            rows = table.estimated_rows(request.begin_ms, request.until_ms)
            slice_ms = slice_length_ms(whole_ms, rows)
        pinned = replace(request, usage=table)
        return cls(pinned, tuple(_cut(request, reader.epochs, slice_ms)), table.uri)


def begin_ms(settings: EngineSettings, since_ms: int, start: Start | None) -> int:
    """The first instant whose usage a replay of a range from `since_ms` on needs."""
    return since_ms - warm_up_ms(settings) if start is None else start.at_ms - settings.rate_span_ms


def warm_up_ms(settings: EngineSettings) -> int:
    """The span of usage that is read before a range without a start, so that rates and debts are right in it.

    Rates need (N + 1) · w. Buckets count as full when the warm-up begins. From there a client at k times its quota
    comes to the largest debt, of ten bursts, after N · w · 11 / (k − 1). The warm-up is long enough for k = 1.2.
    """
    return round(_WARM_UP_DEBTS * (1 + MAX_DEBT_BURSTS) * settings.num_samples * settings.sample_window_ms)


def _cut(request: ReplayRequest, epochs: Sequence[EpochSpan], slice_ms: int) -> list[Slice]:
    """Slices end at multiples of the sample window, so that no second is divided."""
    w = request.settings.engine.sample_window_ms
    slices = []
    for start_ms, last_ms, time_epoch in _spans(request, epochs):
        begin_ms = start_ms
        while begin_ms < last_ms:
            end_ms = min(-(-(begin_ms + slice_ms) // w) * w, last_ms)
            slices.append(Slice(begin_ms, end_ms, time_epoch))
            begin_ms = end_ms
    return slices


def _spans(request: ReplayRequest, epochs: Sequence[EpochSpan]) -> list[Slice]:
    """What is read of each time epoch, in order: the range with its warm-up, which may begin in the epoch before."""
    if len(epochs) < 2:
        return [Slice(request.begin_ms, request.until_ms, epochs[0].time_epoch if epochs else 0)]
    spans: list[Slice] = []
    before_ms = 0
    for epoch in reversed(epochs):
        end_ms = epoch.last_ms + 1
        wanted = [(end_ms - before_ms, end_ms)]
        if epoch.first_ms < request.until_ms and request.since_ms < end_ms:
            warm_from_ms = max(request.since_ms, epoch.first_ms) - (request.since_ms - request.begin_ms)
            wanted.append((warm_from_ms, min(request.until_ms, end_ms)))
        wanted = joined_spans(wanted)
        before_ms = max(epoch.first_ms - wanted[0][0], 0) if wanted else 0
        spans += [Slice(max(start, epoch.first_ms), end, epoch.time_epoch) for start, end in reversed(wanted)]
    return spans[::-1]


def slice_length_ms(whole_ms: int, rows: int) -> int:
    """How long slices are: about 1.2 million rows, a twentieth of the range, at least a minute, at most an hour."""
    return max(min(whole_ms * _SLICE_ROWS // max(rows, 1), whole_ms // _LEAST_SLICES, _LONGEST_MS), _SHORTEST_MS)


@dataclass(frozen=True, slots=True)
class Coverage:
    """The part of a range that stored usage covers. Both ends lie in the range; `until_ms` is exclusive."""

    since_ms: int
    until_ms: int

    @classmethod
    def of(cls, root: str, source: Source, since_ms: int, until_ms: int) -> "Coverage":
        """The covered part of a range, by the statistics of the tables.

        It begins with the oldest row of usage. It ends after the newest row; or after the newest throttle record, if
        that is later and no newer usage is waiting to be rolled up: the job was at work then, and there was no usage.
        Newest means of the newest time epoch that begins before the end of the range. If that one does not reach it,
        rows of older epochs count where they lie before it: the clock that dated them was ahead.
        No data file is read, but for those with rows of several epochs.

        The whole range if the table has no rows or is missing, so that reading it shows which.
        """
        column = "second_start_ms" if source == "usage_by_second" else "evaluated_at_ms"
        try:
            table = TimeSlices(table_uri(root, source), column)
        except TableMissing:
            return cls(since_ms, until_ms)
        epochs = table.epochs
        if not epochs:
            return cls(since_ms, until_ms)
        first_ms = min(one.first_ms for one in epochs)
        last_ms = next((one.last_ms for one in reversed(epochs) if one.first_ms < until_ms), epochs[-1].last_ms)
        if len(epochs) > 1 and last_ms < until_ms:
            last_ms = max(last_ms, table.last_time(last_ms, until_ms) or last_ms)
        end_ms = last_ms + (_SECOND_MS if source == "usage_by_second" else 1)
        newest_usage_ms = epochs[-1].last_ms if source == "usage" else _newest_ms(table_uri(root, "usage"))
        if newest_usage_ms is not None and newest_usage_ms < end_ms:
            end_ms = max(end_ms, (_newest_ms(table_uri(root, "throttle_events")) or 0) + 1)
        start_ms = min(max(since_ms, first_ms), until_ms)
        return cls(start_ms, max(min(until_ms, end_ms), start_ms))


def _newest_ms(uri: str) -> int | None:
    """The newest instant of the newest time epoch of a table; None if it has no rows or is missing."""
    with suppress(TableMissing):
        if epochs := TimeSlices(uri, "evaluated_at_ms").epochs:
            return epochs[-1].last_ms
    return None
