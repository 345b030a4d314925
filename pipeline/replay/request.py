"""What to replay: the range of stored usage, the part that is kept, and the quotas of each replay."""

from bisect import bisect_right
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.errors import NotFound, TableMissing, UsageError
from pipeline.replay.usage_batches import VERSIONS, Source
from pipeline.settings.model import EngineSettings, Settings
from pipeline.tables.port import TARGET, Condition, table_uri
from pipeline.tables.queries import EpochSpan, StoredTable, TimeSlices, read_table, rows_of
from pipeline.tables.quotas.table import TenantTable
from quota.engine import Scope
from quota.errors import InvalidQuotas
from quota.rates import MAX_DEBT_BURSTS
from quota.sensors import BUCKETS_SCHEMA, of_sensors_with_parts
from quota.snapshot import QuotaSnapshot
from schemas.arrow import arrow_schema
from schemas.throttle_record import ThrottleEventRow

if TYPE_CHECKING:
    from pipeline.tables.quotas.source import QuotaSource
    from pipeline.tables.quotas.table import EditedTable, QuotaTable, State


def usage_not_kept(uri: str) -> NotFound:
    """The error of a range of which the table at a URI has no usage."""
    kept = "`usage` is kept for `tables.usage_retention_ms`, and usage_by_second is written some minutes after it"
    fix = f"give another range: {kept}"
    return NotFound(f"{uri} has no usage of this range", fix)


Versions = tuple[int, int]
"""Of the quotas and of the tenants, see `QuotaSnapshot.versions`."""


@dataclass(frozen=True, slots=True)
class Timeline:
    """Which quotas and tenants were in force when.

    `from_ms` is when each snapshot came into force, ascending. The first one also holds before its time.
    """

    from_ms: tuple[int, ...]
    snapshots: tuple[QuotaSnapshot, ...]

    def at(self, instant_ms: int) -> QuotaSnapshot:
        """The quotas in force at an instant."""
        return self.snapshots[max(bisect_right(self.from_ms, instant_ms) - 1, 0)]

    def of(self, versions: Versions) -> QuotaSnapshot:
        """The quotas and tenants of these versions, or of the newest earlier ones if those are not here."""
        known = [snapshot.versions for snapshot in self.snapshots]
        return self.snapshots[max(bisect_right(known, versions) - 1, 0)]

    def of_versions(self, used: Collection[Versions]) -> "Timeline":
        """Only the quotas and tenants of these versions, and of later ones; all if there are none."""
        kept = {self.of(one).versions for one in used}
        newest = max(used, default=(0, -1))
        pairs = zip(self.from_ms, self.snapshots, strict=True)
        left = [(at_ms, one) for at_ms, one in pairs if not kept or one.versions in kept or one.versions > newest]
        return Timeline(tuple(at_ms for at_ms, _ in left), tuple(one for _, one in left))


def live_timeline(table: "QuotaTable", source: "QuotaSource", since_ms: int) -> Timeline:
    """What was in force from an instant on, by the times of the commits to both tables, without invalid versions."""
    quotas = _valid_commits(table, source.at, since_ms)
    of_tenants = TenantTable.found(table.root)
    with_tenants = partial(source.at, quotas[-1][1])
    tenants = [] if of_tenants is None else _valid_commits(of_tenants, with_tenants, since_ms)
    edits = [(at_ms, 0, version) for at_ms, version in quotas] + [(at_ms, 1, version) for at_ms, version in tenants]
    versions = [quotas[0][1], -1]
    in_force: list[tuple[int, QuotaSnapshot]] = []
    for at_ms, place, version in sorted(edits):
        versions[place] = version
        in_force.append((at_ms, source.at(*versions)))
    return Timeline(tuple(at_ms for at_ms, _ in in_force), tuple(snapshot for _, snapshot in in_force))


def _valid_commits(table: "EditedTable[State]", read: Callable[[int], object], since_ms: int) -> list[tuple[int, int]]:
    """When each valid version was stored, and its number, from the one in force at an instant on."""
    found: list[tuple[int, int]] = []
    for commit in table.history(None):
        with suppress(InvalidQuotas, TableMissing):
            read(commit.version)
            found.append((commit.committed_at_ms, commit.version))
            if commit.committed_at_ms <= since_ms:
                break
    return found[::-1]


def old_batches(
    root: str, since_ms: int, until_ms: int, max_age_ms: int
) -> tuple[frozenset[tuple[str, int]], frozenset[Versions]]:
    """The batches of a span that were older than `stream.max_decision_age_ms` when the job collected them.

    The job recorded their decisions and published none: so it is after an outage, and in the first seconds of a job.
    Also returns the versions of the quotas and tenants that all batches of the span were decided with.
    """
    span = [("evaluated_at_ms", ">=", since_ms), ("evaluated_at_ms", "<", until_ms)]
    columns = ["query_id", "batch_id", "evaluated_at_ms", "processed_at_ms", *VERSIONS]
    try:
        rows = read_table(table_uri(root, "batches"), columns, span)
    except TableMissing:
        return frozenset(), frozenset()
    old = rows.filter(pc.greater(pc.subtract(rows["processed_at_ms"], rows["evaluated_at_ms"]), max_age_ms))
    found = frozenset(zip(old["query_id"].to_pylist(), old["batch_id"].to_pylist(), strict=True))
    return found, frozenset(zip(*(rows[name].to_pylist() for name in VERSIONS), strict=True))


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
    hour_before: list[Condition] = [("evaluated_at_ms", ">=", at_ms - _LONGEST_MS), ("evaluated_at_ms", "<=", at_ms)]
    events = StoredTable(table_uri(root, "throttle_events"), ThrottleEventRow)
    last = rows_of(events.last_of_each(TARGET, "publish_seq", hour_before, [("action", "=", "throttle")]))
    running = [row for row in last if row["evaluated_at_ms"] + row["throttle_time_ms"] > at_ms]
    return Start(at_ms, batch_id, buckets, pa.Table.from_pylist(running, arrow_schema(ThrottleEventRow)))


def exact_batches_kept(root: str, since_ms: int) -> bool:
    """Whether `usage`, which has the batches as the job cut them, reaches back to an instant, or as far as seconds."""
    oldest_ms = _oldest_ms(root, "usage", "evaluated_at_ms")
    if oldest_ms is None:
        return False
    of_seconds_ms = _oldest_ms(root, "usage_by_second", "second_start_ms")
    return oldest_ms <= since_ms or of_seconds_ms is None or oldest_ms <= of_seconds_ms + _SHORTEST_MS


def _oldest_ms(root: str, name: str, column: str) -> int | None:
    with suppress(TableMissing):
        return StoredTable(table_uri(root, name)).oldest_value(column)
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
        quotas: A timeline for each replay: one snapshot throughout, or those that were in force.
        time_epoch: Only rows of this time epoch count; None = all rows do.
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
    time_epoch: int | None = None
    old: frozenset[tuple[str, int]] = frozenset()
    start: Start | None = None

    @property
    def begin_ms(self) -> int:
        """The first instant whose usage is read: the windows of the start, or the warm-up, begin there."""
        return begin_ms(self.settings.engine, self.since_ms, self.start)

    def refuse_divided_seconds(self) -> None:
        """Raise `UsageError` if the source has one row per second, and the sample windows are not whole seconds."""
        w = self.settings.engine.sample_window_ms
        if self.source == "usage_by_second" and w % _SECOND_MS:
            msg = f"usage_by_second cannot replay sample windows of {w} ms, which are not whole seconds"
            raise UsageError(msg, "begin with a later --since: the exact batches of `usage` can be replayed")

    def has_bounds(self, quota_type: int) -> bool:
        """Whether a quota or a tenant of some replay has a bound of this type, a position in `QUOTA_TYPES`."""
        snapshots = [snapshot for timeline in self.quotas for snapshot in timeline.snapshots]
        bounds = [one.bounds for snapshot in snapshots for one in snapshot.quotas]
        bounds += [one.bounds for snapshot in snapshots for one in snapshot.tenants]
        return any(one[quota_type] is not None for one in bounds)


def begin_ms(settings: EngineSettings, since_ms: int, start: Start | None) -> int:
    """The first instant whose usage a replay of a range from `since_ms` on needs."""
    return since_ms - warm_up_ms(settings) if start is None else start.at_ms - settings.rate_span_ms


def warm_up_ms(settings: EngineSettings) -> int:
    """The span of usage that is read before a range without a start, so that rates and debts are right in it.

    Rates need (N + 1) · w. Buckets count as full when the warm-up begins. From there a client at k times its quota
    comes to the largest debt, of ten bursts, after N · w · 11 / (k − 1). The warm-up is long enough for k = 1.2.
    """
    return round(_WARM_UP_DEBTS * (1 + MAX_DEBT_BURSTS) * settings.num_samples * settings.sample_window_ms)


def slice_length_ms(whole_ms: int, rows: int) -> int:
    """How long slices are: about 1.2 million rows, a twentieth of the range, at least a minute, at most an hour."""
    return max(min(whole_ms * _SLICE_ROWS // max(rows, 1), whole_ms // _LEAST_SLICES, _LONGEST_MS), _SHORTEST_MS)


@dataclass(frozen=True, slots=True)
class Coverage:
    """The part of a range that stored usage of one time epoch covers. Both ends lie in the range.

    Attributes:
        until_ms: Exclusive.
        time_epoch: That of the usage; None = there is no usage.
    """

    since_ms: int
    until_ms: int
    time_epoch: int | None = None

    @classmethod
    def of(cls, root: str, source: Source, since_ms: int, until_ms: int) -> "Coverage":
        """The covered part of a range, by the statistics of the tables.

        It is of the newest time epoch that begins before the end of the range: where a clock was set back, from then
        on. It begins with the oldest row of usage. It ends after the newest row; or after the newest throttle record,
        if that is later and no newer usage is waiting to be rolled up: the job was at work, and there was no usage.
        No data file is read, but for those with rows of several epochs.

        The whole range if the table has no rows or is missing, so that reading it shows which.
        """
        column = "second_start_ms" if source == "usage_by_second" else "evaluated_at_ms"
        try:
            epochs = TimeSlices(table_uri(root, source), column).epochs
        except TableMissing:
            epochs = []
        if not epochs:
            return cls(since_ms, until_ms)
        epoch = next((one for one in reversed(epochs) if one.first_ms < until_ms), epochs[-1])
        end_ms = epoch.last_ms + (_SECOND_MS if source == "usage_by_second" else 1)
        usage = epochs[-1] if source == "usage" else _newest_epoch(table_uri(root, "usage"))
        if epoch == epochs[-1] and usage is not None and usage.last_ms < end_ms:
            events = _newest_epoch(table_uri(root, "throttle_events"))
            if events is not None and events.time_epoch == epoch.time_epoch:
                end_ms = max(end_ms, events.last_ms + 1)
        start_ms = min(max(since_ms, epoch.first_ms), until_ms)
        end_ms = max(min(until_ms, end_ms), start_ms)
        return cls(start_ms, end_ms, epoch.time_epoch)


def _newest_epoch(uri: str) -> EpochSpan | None:
    """The newest time epoch of a table; None if it has no rows or is missing."""
    with suppress(TableMissing):
        return next(reversed(TimeSlices(uri, "evaluated_at_ms").epochs), None)
    return None
