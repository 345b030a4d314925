"""Stored batches that were decided with the same engine settings, so that one engine can decide them again."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final, Literal, Self

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.settings.model import EngineSettings
from pipeline.stream.stored_usage import evaluation_of
from pipeline.tables.reading.time_slices import TimeSlices, split_range
from pipeline.throttle.assembly import new_engine
from quota.evaluation import Evaluation
from quota.regrid import on_windows, windows_divide
from quota.replay import USAGE_COLUMNS, Replayed, SnapshotAt, StoredBatch, batches_of, replay, with_time_epoch

SLICE_MS: Final = 60_000

BATCH_COLUMNS: Final = ("cluster", "query_id", "batch_id", "time_epoch", "evaluated_at_ms", "engine_settings")

Scope = Literal["cluster", "broker"]


@dataclass(frozen=True, slots=True)
class RecordedBatches:
    """Consecutive batches of one time epoch with the same engine settings.

    Attributes:
        cluster: Of the rows.
        settings: The engine's.
        batches: (query_id, batch_id) of each.
        first_ms: Instant at which the first one was evaluated.
        last_ms: Instant at which the last one was evaluated.
        last_query_id: Query of the last one.
        time_epoch: The epoch that these instants belong to. At its begin the engine's sample windows were empty.
        begins_after: The engine began empty after this batch: its sample windows and those of the settings do not
            divide each other. None if there is no such batch.
    """

    cluster: str
    settings: EngineSettings
    batches: frozenset[tuple[str, int]]
    first_ms: int
    last_ms: int
    last_query_id: str
    time_epoch: int = 0
    begins_after: Evaluation | None = None

    @classmethod
    def from_rows(cls, rows: list[dict[str, Any]]) -> Self:
        """From rows of `batches`, in order, with the same cluster and settings."""
        return cls(
            cluster=rows[0]["cluster"],
            settings=EngineSettings.model_validate_json(rows[0]["engine_settings"]),
            batches=frozenset((row["query_id"], row["batch_id"]) for row in rows),
            first_ms=rows[0]["evaluated_at_ms"],
            last_ms=rows[-1]["evaluated_at_ms"],
            last_query_id=rows[-1]["query_id"],
            time_epoch=rows[0]["time_epoch"] or 0,
        )

    @property
    def begin_ms(self) -> int:
        """The first instant whose usage is read: the rates of the first batch reach back this far."""
        return self.first_ms - self.settings.rate_span_ms

    def slices(self) -> Iterator[tuple[int, int]]:
        """The time of all batches and of the warm-up before them, as (start inclusive, end exclusive)."""
        return split_range(self.begin_ms, self.last_ms + 1, SLICE_MS)


def split_by_settings(rows: list[dict[str, Any]], known: list[dict[str, Any]] | None = None) -> list[RecordedBatches]:
    """Split rows of `batches` wherever cluster, time epoch or settings change.

    Args:
        rows: In any order.
        known: All rows that tell what an engine began with: `rows`, and those of batches before them. None: `rows`.
    """
    ordered = sorted(rows, key=_order)
    groups: list[list[dict[str, Any]]] = []
    for row in ordered:
        alike = groups and _alike(groups[-1][0], row)
        if alike:
            groups[-1].append(row)
        else:
            groups.append([row])
    return [
        replace(RecordedBatches.from_rows(one), begins_after=_begins_after(one[0], known or rows)) for one in groups
    ]


def _alike(one: dict[str, Any], other: dict[str, Any]) -> bool:
    same = all(one[name] == other[name] for name in ("cluster", "engine_settings"))
    return same and _order(one)[0] == _order(other)[0]


def _begins_after(first: dict[str, Any], known: list[dict[str, Any]]) -> Evaluation | None:
    """The newest batch before the first one whose sample windows do not go with its own; None without such a batch."""
    span_ms = _window_ms(first["engine_settings"])
    unfit = (row for row in known if not windows_divide(_window_ms(row["engine_settings"]), span_ms))
    newest = max((row for row in unfit if _order(row) < _order(first)), key=_order, default=None)
    names = ("query_id", "batch_id", "evaluated_at_ms")
    return (
        None
        if newest is None
        else Evaluation(**{name: newest[name] for name in names}, quota_version=-1, time_epoch=_order(newest)[0])
    )


def _order(row: dict[str, Any]) -> tuple[int, int, int, str]:
    return row["time_epoch"] or 0, row["evaluated_at_ms"], row["batch_id"], row["query_id"]


@cache
def _window_ms(engine_settings: str) -> int:
    return EngineSettings.model_validate_json(engine_settings).sample_window_ms


def decided_again(
    recorded: RecordedBatches,
    scope: Scope,
    usage: TimeSlices,
    snapshot_at: SnapshotAt,
    sensor: tuple[tuple[str, str], ...] = (),
) -> Iterator[tuple[int, list[Replayed]]]:
    """Decide batches again, slice by slice.

    Args:
        recorded: Which batches.
        scope: The engine's.
        usage: The table `usage` by `evaluated_at_ms`.
        snapshot_at: Quotas by version.
        sensor: Conditions on the names, to read the usage of one sensor only. Its decisions need no other usage.

    Yields:
        The end of the slice in ms, exclusive, and those of the batches in it that have usage.
    """
    engine = new_engine(recorded.settings, scope)
    for start_ms, end_ms in recorded.slices():
        stored = batches_of(usage_of(recorded, usage, start_ms, end_ms, sensor), recorded.last_query_id)
        batches = (_on_windows(batch, recorded) for batch in stored if _counts(batch, recorded))
        again = replay(engine, batches, snapshot_at)
        yield end_ms, [one for one in again if _identity(one.batch) in recorded.batches]


def usage_of(
    recorded: RecordedBatches, usage: TimeSlices, start_ms: int, end_ms: int, sensor: tuple[tuple[str, str], ...]
) -> pa.Table:
    """The rows of `usage` of a slice of time, in the time epoch of these batches; see `decided_again`."""
    rows = with_time_epoch(usage.read(USAGE_COLUMNS, start_ms, end_ms, sensor))
    return rows.filter(pc.equal(rows["time_epoch"], recorded.time_epoch))


def _counts(batch: StoredBatch, recorded: RecordedBatches) -> bool:
    unfit = recorded.begins_after
    return unfit is None or evaluation_of(batch).is_after(unfit, recorded.last_query_id)


def _on_windows(batch: StoredBatch, recorded: RecordedBatches) -> StoredBatch:
    return replace(batch, usage=on_windows(batch.usage, recorded.settings.sample_window_ms))


def _identity(batch: StoredBatch) -> tuple[str, int]:
    return batch.query_id, batch.batch_id
