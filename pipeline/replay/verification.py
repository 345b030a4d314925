"""Stored decisions compared with those that the stored usage and quotas lead to."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.errors import NotFound, PipelineError
from pipeline.replay.request import usage_not_kept
from pipeline.replay.usage_batches import (
    BATCH_COLUMNS,
    RecordedBatches,
    decided_again,
    split_by_settings,
    usage_of,
)
from pipeline.tables.address import table_uri
from pipeline.tables.port import Condition
from pipeline.tables.reading import TimeSlices, read_table
from quota.engine import Scope
from quota.replay import KEY, Difference, Replayed, SnapshotAt, differences
from schemas.arrow import arrow_schema, decision_id_column
from schemas.decisions import DecisionRow

_DERIVED: Final = frozenset({"evaluated_at", "date"})
_ROWS: Final = pa.schema([field.remove_metadata() for field in arrow_schema(DecisionRow) if field.name not in _DERIVED])

Progress = Callable[[int, int], None]
"""Called with how much is done and how much there is, in ms of the range."""


@dataclass(slots=True)
class Verification:
    """What the comparison of a range has found, from its first batch to its last one.

    Attributes:
        batches: How many batches with usage were decided again.
        mismatches: Every row that differs, is missing, or should not be there.
    """

    since_ms: int
    until_ms: int
    batches: int = 0
    decisions: int = 0
    mismatches: list[Difference] = field(default_factory=list)


def verify(
    root: str, scope: Scope, snapshot_at: SnapshotAt, since_ms: int, until_ms: int, progress: Progress
) -> Verification:
    """Decide all stored batches of a range again and compare every row of `decisions`.

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
    result = Verification(parts[0].first_ms, parts[-1].last_ms)
    whole_ms = sum(part.last_ms - part.begin_ms for part in parts)
    done_ms = 0
    for part in parts:
        slices_end_ms = part.begin_ms
        for end_ms, batches in decided_again(part, scope, usage, snapshot_at):
            _check(root, part, slices_end_ms, end_ms, batches, result)
            done_ms += end_ms - slices_end_ms
            slices_end_ms = end_ms
            progress(done_ms, whole_ms)
    return result


def verify_decision(
    root: str, scope: Scope, snapshot_at: SnapshotAt, stored: dict[str, Any]
) -> tuple[int, Difference | None]:
    """Recompute one row of `decisions` from the usage of its sensor, up to its own batch inclusive.

    Returns:
        How many rows of usage it was recomputed from, and what differs; None if the rows are equal.

    Raises:
        PipelineError: Its batch is not in `batches`, so the settings of its engine are not known.
        NotFound: The usage of its batch is no longer stored.
    """
    own = stored["query_id"], stored["batch_id"]
    conditions = [("query_id", "=", own[0]), ("batch_id", "=", own[1])]
    rows = read_table(table_uri(root, "batches"), list(BATCH_COLUMNS), conditions).to_pylist()
    if not rows:
        msg = f"batch {own[1]} of query {own[0]} is not in `batches`"
        raise PipelineError(msg, "if the job runs, repeat this in a second: a batch gets its row after its decisions")
    recorded = RecordedBatches.from_rows(rows, rows)
    span = [("evaluated_at_ms", ">=", recorded.begin_ms), ("evaluated_at_ms", "<=", recorded.last_ms)]
    known = read_table(table_uri(root, "batches"), list(BATCH_COLUMNS), span).to_pylist()
    (recorded,) = split_by_settings(rows, known)
    usage = TimeSlices(table_uri(root, "usage"), "evaluated_at_ms")
    sensor = _sensor_of(stored)
    found: Replayed | None = None
    for _, batches in decided_again(recorded, scope, usage, snapshot_at, sensor):
        found = batches[0] if batches else found
    if found is None:
        msg = f"the usage of decision {stored['decision_id']} is no longer in {usage.uri}"
        raise NotFound(msg, "explain newer decisions, or keep usage longer: `tables.usage_retention_ms`")
    count = usage_of(recorded, usage, recorded.begin_ms, recorded.last_ms + 1, sensor).num_rows
    kept = pa.Table.from_pylist([stored], _ROWS)
    recomputed = _identified([found], recorded.cluster)
    for name in KEY:
        recomputed = recomputed.filter(pc.equal(recomputed[name], stored[name]))
    return count, next(iter(differences(kept, recomputed)), None)


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
    root: str, part: RecordedBatches, start_ms: int, end_ms: int, batches: Sequence[Replayed], result: Verification
) -> None:
    conditions = [("evaluated_at_ms", ">=", start_ms), ("evaluated_at_ms", "<", end_ms)]
    stored = read_table(table_uri(root, "decisions"), _ROWS.names, conditions)
    mine = [key in part.batches for key in zip(*(stored[name].to_pylist() for name in KEY[:2]), strict=True)]
    stored = stored.filter(pa.array(mine, pa.bool_()))
    recomputed = _identified(batches, part.cluster)
    result.batches += len(batches)
    result.decisions += stored.num_rows
    result.mismatches += differences(stored, recomputed)


def _identified(batches: Sequence[Replayed], cluster: str) -> pa.Table:
    """The decisions of batches as rows of `decisions`, with all columns that are compared."""
    tables = [_ROWS.empty_table()]
    for replay in batches:
        rows, batch = replay.decisions, replay.batch
        if not rows.num_rows:
            continue
        ids = decision_id_column(rows, cluster=cluster, query_id=batch.query_id, batch_id=batch.batch_id)
        copied = ("query_id", "batch_id", "time_epoch", "evaluated_at_ms", "quota_version")
        constants = {"cluster": cluster} | {name: getattr(batch, name) for name in copied}
        columns = {name: pa.repeat(pa.scalar(value), rows.num_rows) for name, value in constants.items()}
        columns |= dict(zip(rows.column_names, rows.columns, strict=True))
        tables.append(pa.table({**columns, "decision_id": ids}).select(_ROWS.names).cast(_ROWS))
    return pa.concat_tables(tables)


def _sensor_of(stored: dict[str, Any]) -> list[Condition]:
    tags = (("user", "sensor_user"), ("client_id", "sensor_client_id"), ("broker_id", "broker_id"))
    return [(column, "=", stored[tag]) for column, tag in tags if stored[tag]]
