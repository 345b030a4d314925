"""Stored decisions checked against what their usage and quotas come to."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.replay.errors import BatchNotRecorded, NothingKept
from pipeline.replay.stretch import BATCH_COLUMNS, Scope, Stretch, replayed, stretches
from pipeline.tables.layout import table_uri
from pipeline.tables.reader import read_table
from pipeline.tables.time_slices import TimeSlices
from quota.comparison import KEY, Difference, differences
from quota.replay import Replayed, SnapshotAt
from schemas.arrow import arrow_schema
from schemas.decision_id import decision_ids
from schemas.decision_row import DecisionRow

_DERIVED: Final = frozenset({"evaluated_at", "date"})
_ROWS: Final = pa.schema([field.remove_metadata() for field in arrow_schema(DecisionRow) if field.name not in _DERIVED])

Progress = Callable[[int, int], None]
"""Told how much is done, and of how much."""


@dataclass(slots=True)
class Verification:
    """What a check has found.

    Attributes:
        since_ms: Instant of the first batch that was checked.
        until_ms: Instant of the last one.
        batches: How many batches with usage were decided again.
        decisions: How many stored decisions were compared.
        mismatches: All that is not as it was recomputed.
    """

    since_ms: int
    until_ms: int
    batches: int = 0
    decisions: int = 0
    mismatches: list[Difference] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class VerifiedDecision:
    """One decision checked.

    Attributes:
        usage_rows: How many rows of usage it was recomputed from.
        difference: What is not the same; None if the rows are equal.
    """

    usage_rows: int
    difference: Difference | None


def verify(
    root: str, scope: Scope, snapshot_at: SnapshotAt, since_ms: int, until_ms: int, progress: Progress
) -> Verification:
    """Decide all kept batches of a range again and compare every row of `decisions`.

    The range is cut down to the batches whose rates can be recomputed in full: those whose windows reach back no
    further than the usage that is kept. What a running job adds meanwhile is left out.

    Args:
        root: Of the tables.
        scope: The engine's.
        snapshot_at: Quotas by version.
        since_ms: First instant, inclusive.
        until_ms: Last instant, inclusive.
        progress: Told about each slice.

    Raises:
        NothingKept: No batch of the range can be recomputed.
    """
    # First of all: what is decided by now has its decisions stored when they are read, at the end of each slice.
    rows = read_table(table_uri(root, "batches"), [*BATCH_COLUMNS, "good_count"])
    usage = TimeSlices(table_uri(root, "usage"), "evaluated_at_ms")
    within = _recomputable(rows.to_pylist(), usage, since_ms, until_ms)
    if not within:
        raise NothingKept(usage.uri)
    parts = stretches(within)
    result = Verification(parts[0].first_ms, parts[-1].last_ms)
    whole_ms = sum(part.last_ms - part.first_ms + part.settings.rate_span_ms for part in parts)
    done_ms = 0
    for part in parts:
        slices_end_ms = part.first_ms - part.settings.rate_span_ms
        for end_ms, batches in replayed(part, scope, usage, snapshot_at):
            _check(root, part, slices_end_ms, end_ms, batches, result)
            done_ms += end_ms - slices_end_ms
            slices_end_ms = end_ms
            progress(done_ms, whole_ms)
    return result


def verify_decision(root: str, scope: Scope, snapshot_at: SnapshotAt, stored: dict[str, Any]) -> VerifiedDecision:
    """Recompute one decision from the usage of its sensor, up to and including its batch.

    Args:
        root: Of the tables.
        scope: The engine's.
        snapshot_at: Quotas by version.
        stored: The row of `decisions`.

    Raises:
        BatchNotRecorded: Its batch is not in `batches`.
        NothingKept: The usage of its batch is no longer there.
    """
    own = stored["query_id"], stored["batch_id"]
    conditions = [("query_id", "=", own[0]), ("batch_id", "=", own[1])]
    rows = read_table(table_uri(root, "batches"), list(BATCH_COLUMNS), conditions).to_pylist()
    if not rows:
        raise BatchNotRecorded(*own)
    stretch = Stretch.from_rows(rows)
    usage = TimeSlices(table_uri(root, "usage"), "evaluated_at_ms")
    sensor = _sensor_of(stored)
    found: Replayed | None = None
    for _, batches in replayed(stretch, scope, usage, snapshot_at, sensor):
        found = batches[0] if batches else found
    if found is None:
        raise NothingKept(usage.uri, stored["decision_id"])
    start_ms = stretch.first_ms - stretch.settings.rate_span_ms
    count = usage.read(["batch_id"], start_ms, stretch.last_ms + 1, sensor).num_rows
    kept = pa.Table.from_pylist([stored], _ROWS)
    recomputed = _identified([found], stretch.cluster)
    for name in KEY:
        recomputed = recomputed.filter(pc.equal(recomputed[name], stored[name]))
    return VerifiedDecision(count, next(iter(differences(kept, recomputed)), None))


def _recomputable(rows: list[dict[str, Any]], usage: TimeSlices, since_ms: int, until_ms: int) -> list[dict[str, Any]]:
    """Rows of `batches` in the range whose windows reach back no further than the kept usage."""
    span = usage.span()
    if span is None:
        return []
    oldest_ms = span[0]
    trimmed = any(row["good_count"] and row["evaluated_at_ms"] < oldest_ms for row in rows)
    if trimmed:
        oldest_ms += max(stretch.settings.rate_span_ms for stretch in stretches(rows))
    return [row for row in rows if max(since_ms, oldest_ms) <= row["evaluated_at_ms"] <= until_ms]


def _check(
    root: str, part: Stretch, start_ms: int, end_ms: int, batches: Sequence[Replayed], result: Verification
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
    """The decisions of batches as rows of `decisions`, with all that is compared."""
    tables = [_ROWS.empty_table()]
    for replay in batches:
        rows, batch = replay.decisions, replay.batch
        if not rows.num_rows:
            continue
        ids = decision_ids(
            cluster=cluster,
            query_id=batch.query_id,
            batch_id=batch.batch_id,
            broker_ids=rows["broker_id"].to_pylist(),
            users=rows["user"].to_pylist(),
            client_ids=rows["client_id"].to_pylist(),
            quota_types=rows["quota_type"].to_pylist(),
        )
        constants = {
            "query_id": batch.query_id,
            "batch_id": batch.batch_id,
            "cluster": cluster,
            "evaluated_at_ms": batch.evaluated_at_ms,
            "quota_version": batch.quota_version,
        }
        columns = {name: pa.repeat(pa.scalar(value), rows.num_rows) for name, value in constants.items()}
        columns |= dict(zip(rows.column_names, rows.columns, strict=True))
        tables.append(pa.table({**columns, "decision_id": ids}).select(_ROWS.names).cast(_ROWS))
    return pa.concat_tables(tables)


def _sensor_of(stored: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    """What all usage of a decision's sensor has in common."""
    tags = (("user", "sensor_user"), ("client_id", "sensor_client_id"), ("broker_id", "broker_id"))
    return tuple((column, stored[tag]) for column, tag in tags if stored[tag])
