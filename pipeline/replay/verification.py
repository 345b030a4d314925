"""Stored decisions and throttle records compared with what the stored usage and quotas lead to."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from itertools import groupby
from typing import Any, Final, Self

import pyarrow as pa

from pipeline.clock import Moment
from pipeline.replay.request import usage_not_kept
from pipeline.settings.model import EngineSettings, Settings
from pipeline.tables.address import table_uri
from pipeline.tables.reading import TimeSlices, read_table, split_range
from pipeline.throttle.assembly import Rehearsal
from pipeline.throttle.decider import Decider
from quota.engine import Scope
from quota.entity import QUOTA_TYPES
from quota.replay import (
    KEY,
    USAGE_COLUMNS,
    Difference,
    Evaluation,
    SnapshotAt,
    StoredBatch,
    batches_of,
    differences,
    evaluation_of,
)
from quota.resolution import ClientsApart
from schemas.arrow import arrow_schema
from schemas.rows import DecisionRow
from schemas.throttle_record import BATCH_CAUSES, Target

_DERIVED: Final = frozenset({"evaluated_at", "date"})
_ROWS: Final = pa.schema([field.remove_metadata() for field in arrow_schema(DecisionRow) if field.name not in _DERIVED])

Progress = Callable[[int, int], None]
"""Called with how much is done and how much there is, in ms of the range."""


# Stored batches that were decided with the same engine settings, so that one engine can decide them again.

_SLICE_MS: Final = 60_000

BATCH_COLUMNS: Final = ("cluster", "query_id", "batch_id", "time_epoch", "evaluated_at_ms", "engine_settings")

Redecided = tuple[StoredBatch, pa.Table]
"""A batch, and its decisions by the quotas it was decided with."""


@dataclass(frozen=True, slots=True)
class RecordedBatches:
    """Consecutive batches of one time epoch with the same engine settings.

    Attributes:
        first_ms: Instant at which the first one was evaluated; `last_ms` the last one.
        time_epoch: The epoch that these instants belong to. At its begin the engine's sample windows were empty.
        begins_after: The engine began empty after this batch, which had another sample window. None if there is
            no such batch.
    """

    cluster: str
    settings: EngineSettings
    batches: frozenset[tuple[str, int]]
    first_ms: int
    last_ms: int
    last_query_id: str
    time_epoch: int
    begins_after: Evaluation | None

    @classmethod
    def from_rows(cls, rows: list[dict[str, Any]], known: list[dict[str, Any]]) -> Self:
        """From rows of `batches`, in order, with the same cluster and settings; `known` as of `split_by_settings`."""
        return cls(
            cluster=rows[0]["cluster"],
            settings=EngineSettings.model_validate_json(rows[0]["engine_settings"]),
            batches=frozenset((row["query_id"], row["batch_id"]) for row in rows),
            first_ms=rows[0]["evaluated_at_ms"],
            last_ms=rows[-1]["evaluated_at_ms"],
            last_query_id=rows[-1]["query_id"],
            time_epoch=rows[0]["time_epoch"],
            begins_after=_begins_after(rows[0], known),
        )

    @property
    def begin_ms(self) -> int:
        """The first instant whose usage is read: the rates of the first batch reach back this far."""
        return self.first_ms - self.settings.rate_span_ms


def split_by_settings(rows: list[dict[str, Any]], known: list[dict[str, Any]] | None = None) -> list[RecordedBatches]:
    """Split rows of `batches` wherever cluster, time epoch or settings change.

    Args:
        known: All rows with the start of an engine: `rows`, and those of batches before them. None: `rows`.
    """
    groups = groupby(sorted(rows, key=_order), lambda row: (row["cluster"], row["engine_settings"], _order(row)[0]))
    return [RecordedBatches.from_rows([*alike], known or rows) for _, alike in groups]


def _begins_after(first: dict[str, Any], known: list[dict[str, Any]]) -> Evaluation | None:
    """The newest batch before the first one that had another sample window; None without such a batch."""
    span_ms = _window_ms(first["engine_settings"])
    unfit = (row for row in known if _window_ms(row["engine_settings"]) != span_ms)
    newest = max((row for row in unfit if _order(row) < _order(first)), key=_order, default=None)
    if newest is None:
        return None
    identity = {name: newest[name] for name in ("query_id", "batch_id", "evaluated_at_ms")}
    return Evaluation(**identity, quota_version=-1, time_epoch=_order(newest)[0])


def _order(row: dict[str, Any]) -> tuple[int, int, int, str]:
    return row["time_epoch"], row["evaluated_at_ms"], row["batch_id"], row["query_id"]


@cache
def _window_ms(engine_settings: str) -> int:
    return EngineSettings.model_validate_json(engine_settings).sample_window_ms


def decided_again(
    recorded: RecordedBatches,
    scope: Scope,
    usage: TimeSlices,
    snapshot_at: SnapshotAt,
) -> Iterator[tuple[int, list[Redecided]]]:
    """Decide batches again, slice by slice: the end of each slice in ms, exclusive, and its batches with usage.

    Args:
        usage: The table `usage` by `evaluated_at_ms`.
    """
    decider = Rehearsal(Settings(engine=recorded.settings), scope, cluster=recorded.cluster).decider
    unfit = recorded.begins_after
    last_query_id = recorded.last_query_id
    for start_ms, end_ms in split_range(recorded.begin_ms, recorded.last_ms + 1, _SLICE_MS):
        rows = usage.read(USAGE_COLUMNS, start_ms, end_ms, [("time_epoch", "=", recorded.time_epoch)])
        batches = (
            batch
            for batch in batches_of(rows, last_query_id)
            if unfit is None or evaluation_of(batch).is_after(unfit, last_query_id)
        )
        again = [(batch, _decide(decider, batch, snapshot_at)) for batch in batches]
        yield end_ms, [(batch, rows) for batch, rows in again if (batch.query_id, batch.batch_id) in recorded.batches]


def _decide(decider: Decider, batch: StoredBatch, snapshot_at: SnapshotAt) -> pa.Table:
    at_ms = batch.evaluated_at_ms
    snapshot = snapshot_at(batch.quota_version)
    return decider.decide(snapshot, batch.usage, evaluation_of(batch), Moment(at_ms, at_ms)).decisions


@dataclass(slots=True)
class Verification:
    """What the comparison of a range has found, from its first batch to its last one.

    Attributes:
        batches: How many batches with usage were decided again.
        records: How many throttle records were compared: whom they hold, and for which quota type.
        mismatches: Every row that differs, is missing, or should not be there.
    """

    since_ms: int
    until_ms: int
    batches: int = 0
    decisions: int = 0
    records: int = 0
    mismatches: list[Difference] = field(default_factory=list)


def verify(
    root: str, scope: Scope, snapshot_at: SnapshotAt, since_ms: int, until_ms: int, progress: Progress
) -> Verification:
    """Decide all stored batches of a range again and compare every row of `decisions`, and whom the records hold.

    Only batches whose rates can be recomputed in full are compared: their windows must not reach back further than
    the stored usage. Batches that a running job adds meanwhile are left out. `until_ms` is inclusive.

    Raises:
        NotFound: No batch of the range can be recomputed.
    """
    # `batches` is read first: the decisions of a batch that is in it are stored before they are read below.
    rows = read_table(table_uri(root, "batches"), [*BATCH_COLUMNS, "good_count"])
    usage = TimeSlices(table_uri(root, "usage"), "evaluated_at_ms")
    known = rows.to_pylist()
    within = _recomputable(known, usage, since_ms, until_ms)
    if not within:
        raise usage_not_kept(usage.uri)
    parts = split_by_settings(within, known)
    result, excepted_at = Verification(parts[0].first_ms, parts[-1].last_ms), _exceptions(snapshot_at)
    whole_ms = sum(part.last_ms - part.begin_ms for part in parts)
    done_ms = 0
    for part in parts:
        slices_end_ms = part.begin_ms
        for end_ms, batches in decided_again(part, scope, usage, snapshot_at):
            decided = _check(root, part, slices_end_ms, end_ms, batches, result)
            _check_records(root, part, slices_end_ms, end_ms, excepted_at, decided, result)
            done_ms += end_ms - slices_end_ms
            slices_end_ms = end_ms
            progress(done_ms, whole_ms)
    return result


def _recomputable(rows: list[dict[str, Any]], usage: TimeSlices, since_ms: int, until_ms: int) -> list[dict[str, Any]]:
    """Rows of `batches` in the range whose windows do not reach back further than the stored usage of their epoch."""
    span = usage.span()
    if span is None:
        return []
    stored = usage.read(["time_epoch", "evaluated_at_ms"], span[0], span[1] + 1)
    oldest = stored.group_by("time_epoch").aggregate([("evaluated_at_ms", "min")]).to_pydict()
    oldest_ms = dict(zip(oldest["time_epoch"], oldest["evaluated_at_ms_min"], strict=True))
    for epoch in {row["time_epoch"] for row in rows} & oldest_ms.keys():
        of_epoch = [row for row in rows if row["time_epoch"] == epoch]
        if any(row["good_count"] and row["evaluated_at_ms"] < oldest_ms[epoch] for row in of_epoch):
            oldest_ms[epoch] += max(part.settings.rate_span_ms for part in split_by_settings(of_epoch))
    return [
        row
        for row in rows
        if max(since_ms, oldest_ms.get(row["time_epoch"], until_ms + 1)) <= row["evaluated_at_ms"] <= until_ms
    ]


def _check(
    root: str, part: RecordedBatches, start_ms: int, end_ms: int, batches: Sequence[Redecided], result: Verification
) -> pa.Table:
    stored = _rows_of(root, "decisions", _ROWS.names, part, start_ms, end_ms)
    recomputed = _identified(batches, part.cluster)
    result.batches += len(batches)
    result.decisions += stored.num_rows
    result.mismatches += differences(stored, recomputed)
    return recomputed


def _rows_of(
    root: str, name: str, columns: Sequence[str], part: RecordedBatches, start_ms: int, end_ms: int
) -> pa.Table:
    """The rows of a slice of time that are of these batches."""
    conditions = [("evaluated_at_ms", ">=", start_ms), ("evaluated_at_ms", "<", end_ms)]
    stored = read_table(table_uri(root, name), [*columns], conditions)
    mine = [key in part.batches for key in zip(*(stored[name].to_pylist() for name in KEY[:2]), strict=True)]
    return stored.filter(pa.array(mine, pa.bool_()))


ExceptedAt = Callable[[int, str, int], Collection[str] | None]
"""By version of the quotas, user and quota type: `ClientsApart.of`."""


def _exceptions(snapshot_at: SnapshotAt) -> ExceptedAt:
    @lru_cache(maxsize=12)
    def apart_at(version: int, quota_type: int) -> ClientsApart:
        return ClientsApart(snapshot_at(version).quotas, quota_type)

    return lambda version, user, quota_type: apart_at(version, quota_type).of(user)


_RECORD: Final = (
    *("query_id", "batch_id", "publish_seq", "action", "cause", "broker_id", "user", "client_id", "quota_type"),
    *("except_client_ids", "sensor_user", "sensor_client_id", "quota_version"),
)


def _check_records(
    root: str,
    part: RecordedBatches,
    start_ms: int,
    end_ms: int,
    excepted_at: ExceptedAt,
    decided: pa.Table,
    result: Verification,
) -> None:
    """Compare whom the records of a slice hold with the decisions and quotas that they are based on.

    A release names whom it lets go, whatever the quotas are by then.
    """
    rows = _rows_of(root, "throttle_events", _RECORD, part, start_ms, end_ms).sort_by("publish_seq").to_pylist()
    asking = decided.filter(decided["asks_hold"]).to_pylist()
    asked = {(row["query_id"], row["batch_id"], row["quota_type"], Target.of(row)) for row in asking}
    versions = sorted({row["quota_version"] for row in (*rows, *decided.select(["quota_version"]).to_pylist())})
    result.records += len(rows)
    for row in rows:
        if row["action"] == "release":
            continue
        of_batch = row["cause"] in BATCH_CAUSES
        # A batch may have pinned its quotas before an edit of the exceptions: then its record has the later ones.
        later = (one for one in versions if one > row["quota_version"] and of_batch)
        wanted = [_whom(row, version, excepted_at) for version in (row["quota_version"], *later)]
        stored = {"holds_user": row["client_id"] is None, "except_client_ids": row["except_client_ids"]}
        is_known = not of_batch or (*(row[name] for name in KEY[:2]), row["quota_type"], Target.of(row)) in asked
        columns = {name: (stored[name], one) for name, one in wanted[0].items() if stored[name] != one}
        if not is_known or stored not in wanted:
            key = {**{name: row[name] for name in KEY if name in row}, "publish_seq": row["publish_seq"]}
            result.mismatches.append(Difference(key, columns if is_known else {}, is_recomputed=is_known))


def _whom(row: Mapping[str, Any], version: int, excepted_at: ExceptedAt) -> dict[str, Any]:
    """Whom a throttle of a record's sensor holds under a version of the quotas."""
    of_user = row["sensor_user"] if not row["sensor_client_id"] else ""
    excepted = excepted_at(version, of_user, QUOTA_TYPES.index(row["quota_type"])) if of_user else None
    return {"holds_user": excepted is not None, "except_client_ids": None if excepted is None else [*excepted]}


def _identified(batches: Sequence[Redecided], cluster: str) -> pa.Table:
    """The decisions of batches as rows of `decisions`, with all columns that are compared."""
    tables = [_ROWS.empty_table()]
    for batch, rows in batches:
        if not rows.num_rows:
            continue
        copied = ("query_id", "batch_id", "time_epoch", "evaluated_at_ms", "quota_version")
        constants = {"cluster": cluster} | {name: getattr(batch, name) for name in copied}
        columns = {name: pa.repeat(pa.scalar(value), rows.num_rows) for name, value in constants.items()}
        columns |= dict(zip(rows.column_names, rows.columns, strict=True))
        tables.append(pa.table(columns).select(_ROWS.names).cast(_ROWS))
    return pa.concat_tables(tables)
