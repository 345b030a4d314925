"""Stored decisions and throttle records compared with what the stored usage and quotas lead to."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache, lru_cache
from itertools import groupby
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.clock import Moment
from pipeline.replay.request import usage_not_kept
from pipeline.settings.model import EngineSettings, Settings
from pipeline.tables.port import table_uri
from pipeline.tables.queries import TimeSlices, read_table, rows_of
from pipeline.throttle.assembly import Rehearsal
from pipeline.throttle.decider import Decider
from quota.decisions import FACTS, USAGE_COLUMNS, Evaluation, StoredBatch, batches_of
from quota.engine import Scope
from quota.entity import QUOTA_TYPES
from quota.resolution import ClientsApart
from quota.sensors import BUCKETS_SCHEMA, of_sensors_with_parts
from quota.snapshot import SnapshotAt
from schemas.arrow import arrow_schema
from schemas.rows import DecisionRow
from schemas.throttle_record import BATCH_CAUSES, Target

_DERIVED: Final = frozenset({"evaluated_at", "date"})
_ROWS: Final = pa.schema([field.remove_metadata() for field in arrow_schema(DecisionRow) if field.name not in _DERIVED])

Progress = Callable[[int, int], None]
"""Called with how many batches are done and how many there are."""


# Stored batches that were decided with the same engine settings, so that one engine can decide them again.
#
# It begins after a snapshot of the token buckets, with the usage of the sample windows before, and takes up each later
# snapshot, as the job did: see `pipeline.stream.job_tables.SensorStateTable`. Without an earlier snapshot it begins
# with the first batch of the tables, if all usage since then is kept, or after the last one with another sample window.

_SLICE_MS: Final = 60_000
_NEVER_MS: Final = 1 << 62

BATCH_COLUMNS: Final = ("cluster", *FACTS)
_STATE_COLUMNS: Final = ("query_id", "batch_id", *BUCKETS_SCHEMA.names)

Key = tuple[str, int]
"""A batch: its query and number."""


@dataclass(frozen=True, slots=True)
class Slice:
    """Batches that were decided again, each with its decisions by the quotas it was decided with.

    Attributes:
        begin_ms: No row that is based on them was evaluated before; `end_ms` none from there on.
    """

    begin_ms: int
    end_ms: int
    batches: Sequence[tuple[StoredBatch, pa.Table]]


@dataclass(frozen=True, slots=True)
class Stretch:
    """Consecutive batches with the same engine settings.

    Attributes:
        batches: In the order they were decided; the first ones only fill the sample windows.
        compared: Those whose decisions can be compared.
    """

    cluster: str
    settings: EngineSettings
    batches: tuple[Evaluation, ...]
    compared: frozenset[Key]


class Kept:
    """What is still stored to decide batches again from.

    Args:
        rows: Rows of `batches`, with `engine_settings` and `good_count`, in the order they were decided.
        snapshots: The batches after which the buckets are stored.
        oldest: Time epoch and instant of the oldest stored usage.
    """

    def __init__(self, rows: list[dict[str, Any]], snapshots: Collection[Key], oldest: tuple[int, int]) -> None:
        self._rows, self._oldest = rows, oldest
        self._has_snapshot = [_key_of(row) in snapshots for row in rows]
        self._window_ms = [_settings_of(row["engine_settings"]).sample_window_ms for row in rows]

    def stretches(self, since_ms: int, until_ms: int) -> tuple[list[Stretch], int]:
        """The stretches of a range, both ends inclusive, and how many batches with usage cannot be compared."""
        found, uncomparable = list[Stretch](), 0
        places = groupby(
            range(len(self._rows)), lambda at: (self._rows[at]["cluster"], self._rows[at]["engine_settings"])
        )
        for (cluster, engine_settings), group in places:
            asked = [at for at in group if since_ms <= self._rows[at]["evaluated_at_ms"] <= until_ms]
            if not asked:
                continue
            settings = _settings_of(engine_settings)
            first, compared_from = self._begin(asked, settings)
            batches = tuple(_evaluation(self._rows[at]) for at in range(first, asked[-1] + 1))
            compared = frozenset(_key_of(self._rows[at]) for at in asked if at >= compared_from)
            if compared:
                found.append(Stretch(cluster, settings, batches, compared))
            uncomparable += sum(self._rows[at]["good_count"] > 0 for at in asked if at < compared_from)
        return found, uncomparable

    def _begin(self, asked: list[int], settings: EngineSettings) -> tuple[int, int]:
        """The place of the first batch to decide, and of the first one that can be compared."""
        rows, span_ms = self._rows, settings.rate_span_ms
        others = (at for at in range(asked[0]) if self._window_ms[at] != settings.sample_window_ms)
        floor = 1 + max(others, default=-1)
        with_usage = (self._instant(at) for at in range(floor, len(rows)) if rows[at]["good_count"])
        is_whole = next(with_usage, self._oldest) >= self._oldest
        snapshots = [
            at
            for at in range(floor, asked[-1])
            if self._has_snapshot[at] and (is_whole or self._instant(at, span_ms) >= self._oldest)
        ]
        before = [at for at in snapshots if at < asked[0]]
        if not before and is_whole:
            return floor, asked[0]
        if not snapshots:
            return asked[-1], asked[-1] + 1
        begin = before[-1] if before else snapshots[0]
        filling = (at for at in range(floor, begin) if self._instant(at) >= self._instant(begin, span_ms))
        return next(filling, begin), max(begin + 1, asked[0])

    def _instant(self, at: int, before_ms: int = 0) -> tuple[int, int]:
        return self._rows[at]["time_epoch"], self._rows[at]["evaluated_at_ms"] - before_ms


def _key_of(row: Mapping[str, Any]) -> Key:
    return row["query_id"], row["batch_id"]


def _evaluation(row: Mapping[str, Any]) -> Evaluation:
    return Evaluation(**{name: row[name] for name in FACTS})


@cache
def _settings_of(engine_settings: str) -> EngineSettings:
    return EngineSettings.model_validate_json(engine_settings)


def decided_again(
    stretch: Stretch, scope: Scope, usage: TimeSlices, states: TimeSlices, snapshot_at: SnapshotAt
) -> Iterator[Slice]:
    """Decide batches again, slice by slice; a slice has those that are compared.

    Args:
        usage: The table `usage` by `evaluated_at_ms`; `states` the table `sensor_state`.
    """
    decider = Rehearsal(Settings(engine=stretch.settings), scope, cluster=stretch.cluster).decider
    groups = groupby(stretch.batches, lambda one: (one.time_epoch, one.evaluated_at_ms // _SLICE_MS))
    slices = [tuple(group) for _, group in groups]
    for batches, following in zip(slices, [*slices[1:], ()], strict=True):
        epoch, begin_ms, end_ms = batches[0].time_epoch, batches[0].evaluated_at_ms, batches[-1].evaluated_at_ms + 1
        rows = usage.read(USAGE_COLUMNS, begin_ms, end_ms, [("time_epoch", "=", epoch)])
        found = {(one.evaluation.query_id, one.evaluation.batch_id): one for one in batches_of(rows)}
        stored = states.read(_STATE_COLUMNS, begin_ms, end_ms, [("time_epoch", "=", epoch)])
        snapshots = {*zip(stored["query_id"].to_pylist(), stored["batch_id"].to_pylist(), strict=True)}
        again = list[tuple[StoredBatch, pa.Table]]()
        for one in batches:
            key = one.query_id, one.batch_id
            batch = found.get(key) or StoredBatch(one, rows.slice(0, 0))
            decided = _decide(decider, batch, snapshot_at)
            if key in stretch.compared:
                again.append((batch, decided))
            if key in snapshots:
                own = (pc.field("query_id") == key[0]) & (pc.field("batch_id") == key[1])
                decider.restore_buckets(of_sensors_with_parts(stored.filter(own)))
        is_last = not following or following[0].time_epoch != epoch
        yield Slice(begin_ms, _NEVER_MS if is_last else following[0].evaluated_at_ms, again)


def _decide(decider: Decider, batch: StoredBatch, snapshot_at: SnapshotAt) -> pa.Table:
    at_ms = batch.evaluation.evaluated_at_ms
    snapshot = snapshot_at(*batch.evaluation.versions)
    return decider.decide(snapshot, batch.usage, batch.evaluation, Moment(at_ms, at_ms)).decisions


# Every difference between two tables of decisions.

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


# Whether what is stored is what is decided again.


@dataclass(slots=True)
class Verification:
    """What the comparison of a range has found, from its first batch to its last one.

    Attributes:
        batches: How many batches with usage were decided again.
        uncomparable: How many batches with usage could not be: they are older than the oldest snapshot of the buckets
            and the usage before it that are kept.
        records: How many throttle records were compared: whom they hold, and for which quota type.
        mismatches: Every row that differs, is missing, or should not be there.
    """

    since_ms: int
    until_ms: int
    batches: int = 0
    uncomparable: int = 0
    decisions: int = 0
    records: int = 0
    mismatches: list[Difference] = field(default_factory=list)


def verify(
    root: str, scope: Scope, snapshot_at: SnapshotAt, since_ms: int, until_ms: int, progress: Progress
) -> Verification:
    """Decide all stored batches of a range again and compare every row of `decisions`, and whom the records hold.

    Only batches whose rates and buckets can be recomputed in full are compared: see `Kept`. Batches that a running job
    adds meanwhile are left out. `until_ms` is inclusive.

    Raises:
        NotFound: No batch of the range can be recomputed.
    """
    # `batches` is read first: the decisions of a batch that is in it are stored before they are read below.
    rows = read_table(table_uri(root, "batches"), [*BATCH_COLUMNS, "engine_settings", "good_count"]).to_pylist()
    usage, states = (TimeSlices(table_uri(root, name), "evaluated_at_ms") for name in ("usage", "sensor_state"))
    epochs = usage.epochs
    if not rows or not epochs:
        raise usage_not_kept(usage.uri)
    rows.sort(key=lambda row: _evaluation(row).order)
    snapshots = {_key_of(row) for row in rows_of(states.distinct(["query_id", "batch_id"]))}
    kept = Kept(rows, snapshots, (epochs[0].time_epoch, epochs[0].first_ms))
    stretches, uncomparable = kept.stretches(since_ms, until_ms)
    if not stretches:
        raise usage_not_kept(usage.uri)
    compared = [
        one for stretch in stretches for one in stretch.batches if (one.query_id, one.batch_id) in stretch.compared
    ]
    # A batch before all usage was evaluated at no instant.
    first_ms = {one.time_epoch: one.first_ms for one in epochs}.get(compared[0].time_epoch, 0)
    begin_ms = max(compared[0].evaluated_at_ms, first_ms)
    result = Verification(begin_ms, compared[-1].evaluated_at_ms, uncomparable=uncomparable)
    excepted_at, done, whole, before = _exceptions(snapshot_at), 0, len(compared), dict[Target, int]()
    for stretch in stretches:
        for part in decided_again(stretch, scope, usage, states, snapshot_at):
            decided = _check(root, stretch.cluster, part, result)
            _check_records(root, part, snapshot_at, excepted_at, decided, before, result)
            done += len(part.batches)
            progress(done, whole)
    return result


def _check(root: str, cluster: str, part: Slice, result: Verification) -> pa.Table:
    stored = _rows_of(root, "decisions", _ROWS.names, part)
    recomputed = _identified(part, cluster)
    result.batches += sum(batch.usage.num_rows > 0 for batch, _ in part.batches)
    result.decisions += stored.num_rows
    result.mismatches += differences(stored, recomputed)
    return recomputed


def _rows_of(root: str, name: str, columns: Sequence[str], part: Slice) -> pa.Table:
    """The rows that are based on the batches of a slice."""
    # A check is evaluated a moment after its batch, and perhaps after the first batch of the next slice.
    end_ms = part.end_ms + _SLICE_MS
    conditions = [("evaluated_at_ms", ">=", part.begin_ms), ("evaluated_at_ms", "<", end_ms)]
    stored = read_table(table_uri(root, name), [*columns], conditions)
    keys = {(batch.evaluation.query_id, batch.evaluation.batch_id) for batch, _ in part.batches}
    mine = [key in keys for key in zip(*(stored[name].to_pylist() for name in KEY[:2]), strict=True)]
    return stored.filter(pa.array(mine, pa.bool_()))


Versions = tuple[int, int]
"""Of quotas and tenants."""
ExceptedAt = Callable[[Versions, int, str, str | None], Collection[str] | None]
"""By versions and quota type: `ClientsApart.of`."""


def _exceptions(snapshot_at: SnapshotAt) -> ExceptedAt:
    @lru_cache(maxsize=12)
    def apart_at(versions: Versions, quota_type: int) -> ClientsApart:
        return ClientsApart(snapshot_at(*versions), quota_type)

    return lambda versions, quota_type, *sensor: apart_at(versions, quota_type).of(*sensor)


_RECORD: Final = (
    *("query_id", "batch_id", "publish_seq", "action", "cause", "broker_id", "user", "client_id", "quota_type"),
    *("except_client_ids", "sensor_user", "sensor_client_id", "quota_version", "tenants_version", "tenant"),
)


def _check_records(
    root: str,
    part: Slice,
    snapshot_at: SnapshotAt,
    excepted_at: ExceptedAt,
    decided: pa.Table,
    before: dict[Target, int],
    result: Verification,
) -> None:
    """Compare whom the records of a slice hold with the decisions and quotas that they are based on.

    A release names whom it lets go, whatever the quotas are by then. If it says so, they forgive what was owed.

    * `before`: The quota version of the last record of each target; goes on with these.
    """
    rows = _rows_of(root, "throttle_events", _RECORD, part).sort_by("publish_seq").to_pylist()
    asking = decided.filter(decided["asks_hold"]).to_pylist()
    asked = {(row["query_id"], row["batch_id"], row["quota_type"], Target.of(row)) for row in asking}
    versions = sorted({_versions_of(row) for row in (*rows, *decided.select(_VERSIONS).to_pylist())})
    result.records += len(rows)
    for row in rows:
        key = {**{name: row[name] for name in KEY if name in row}, "publish_seq": row["publish_seq"]}
        target = Target.of(row)
        before[target], last = row["quota_version"], before.get(target)
        if row["action"] == "release":
            if row["cause"] == "forgiven" and not _is_forgiven(row, last, snapshot_at):
                result.mismatches.append(Difference(key, {"cause": ("forgiven", "its quotas forgive nothing")}))
            continue
        of_batch = row["cause"] in BATCH_CAUSES
        # A batch may have pinned its quotas before an edit of the exceptions: then its record has the later ones.
        later = (one for one in versions if one > _versions_of(row) and of_batch)
        wanted = [_whom(row, of_both, excepted_at) for of_both in (_versions_of(row), *later)]
        stored = {"holds_user": row["client_id"] is None, "except_client_ids": row["except_client_ids"]}
        is_known = not of_batch or (*(row[name] for name in KEY[:2]), row["quota_type"], Target.of(row)) in asked
        columns = {name: (stored[name], one) for name, one in wanted[0].items() if stored[name] != one}
        if not is_known or stored not in wanted:
            result.mismatches.append(Difference(key, columns if is_known else {}, is_recomputed=is_known))


def _is_forgiven(release: Mapping[str, Any], last: int | None, snapshot_at: SnapshotAt) -> bool:
    """Whether the quotas of a release forgive the debts of its sensor, and those of the record before did not.

    * `last`: The quota version of that record; None if it is not known.
    """
    sensor = release["sensor_user"], release["sensor_client_id"]
    versions = [release["quota_version"], *([] if last is None else [last])]
    now_ms, *before_ms = (snapshot_at(version, -1).forgiven_until_ms([sensor])[0] for version in versions)
    return now_ms > max(before_ms, default=0)


_VERSIONS: Final = ("quota_version", "tenants_version")


def _versions_of(row: Mapping[str, Any]) -> Versions:
    return row["quota_version"], row["tenants_version"]


def _whom(row: Mapping[str, Any], versions: Versions, excepted_at: ExceptedAt) -> dict[str, Any]:
    """Whom a throttle of a record's sensor holds under these versions."""
    of_user = row["sensor_user"] if not row["sensor_client_id"] else ""
    quota_type = QUOTA_TYPES.index(row["quota_type"])
    excepted = excepted_at(versions, quota_type, of_user, row["tenant"]) if of_user else None
    return {"holds_user": excepted is not None, "except_client_ids": None if excepted is None else [*excepted]}


def _identified(part: Slice, cluster: str) -> pa.Table:
    """The decisions of a slice as rows of `decisions`, with all columns that are compared."""
    tables = [_ROWS.empty_table()]
    for batch, rows in part.batches:
        if not rows.num_rows:
            continue
        constants = {"cluster": cluster, **asdict(batch.evaluation)}
        columns = {name: pa.repeat(pa.scalar(value), rows.num_rows) for name, value in constants.items()}
        columns |= dict(zip(rows.column_names, rows.columns, strict=True))
        tables.append(pa.table(columns).select(_ROWS.names).cast(_ROWS))
    return pa.concat_tables(tables)
