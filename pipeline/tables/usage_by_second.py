"""The roll-up of `usage` to one row per second and client. It runs next to the decisions.

A second is written when stored usage is `LATENESS_MS` past its end, so one to two intervals after it happened. Usage
that comes later is in `usage` and counts in the rate or the bucket, but it is not in the roll-up. The log says how many
rows that were.

The sums are made here and not by a streaming query. A minute of 20 000 events per second is a million rows. Arrow takes
a third of a second of one core for them. A query that keeps its open seconds in a state store took most of a minute,
and the micro-batches had to wait for it.

Each time epoch is rolled up by itself, as by minute: a second that the clock showed twice has rows of both epochs.

A commit records the end of its seconds as its version, for each epoch under an app id of its own. So if they are
appended again the append is skipped, and the next step, in this process or another one, continues after them.
"""

import logging
from datetime import UTC, datetime
from functools import partial
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.tables.epochs import RolledEpoch, RolledEpochs, first_sample_ms
from pipeline.tables.port import Instant, RolledTable, TableWriter
from pipeline.tables.upkeep import log_failures
from schemas.arrow import conform
from schemas.usage import UsageBySecondRow

# Sums rows of `usage` over spans of time, for each client of each broker.

NAMES: Final = ("cluster", "broker_id", "user", "client_id")
SUMS: Final = (
    "produced_bytes",
    "fetched_bytes",
    "io_time_ns",
    "network_time_ns",
    "exempt_time_ns",
    "request_count",
)
COLUMNS: Final = ("sample_start_ms", *NAMES, *SUMS, "last_event_ms")
"""The columns of `usage` that a roll-up reads."""
LARGEST: Final = 2**62
"""The largest sum; a larger one is cut to it, and never wraps around to a negative one."""


def summed_by(usage: pa.Table, start_name: str, span_ms: int) -> pa.Table:
    """Sum rows of `usage` that belong to the same span and client, in no order.

    A sum is null if all of its values are null.

    Args:
        usage: `COLUMNS`; the names may be dictionaries.
        start_name: Column of the result with the start of the span, in epoch ms.
        span_ms: > 0; spans begin at its multiples since the epoch.

    Returns:
        `start_name`, `NAMES`, `SUMS` and `last_event_ms`, which is the largest of them.
    """
    start_ms = usage["sample_start_ms"].to_numpy()
    spans = usage.append_column(start_name, pa.array(start_ms // span_ms * span_ms))
    if _may_overflow(usage):
        spans = spans.cast(pa.schema([_double(field) if field.name in SUMS else field for field in spans.schema]))
    nulls_alone = pc.ScalarAggregateOptions(skip_nulls=True, min_count=1)
    sums = [(name, "sum", nulls_alone) for name in SUMS]
    # In one thread, to leave the other cores to the micro-batch.
    grouped = spans.group_by([start_name, *NAMES], use_threads=False).aggregate([*sums, ("last_event_ms", "max")])
    named = grouped.rename_columns([start_name, *NAMES, *SUMS, "last_event_ms"])
    for name in SUMS:
        if pa.types.is_floating(named.schema.field(name).type):
            cut = pc.min_element_wise(named[name], float(LARGEST), skip_nulls=False).cast(pa.int64())
            named = named.set_column(named.schema.get_field_index(name), name, cut)
    return named


def _may_overflow(usage: pa.Table) -> bool:
    largest = max((pc.max(usage[name]).as_py() or 0 for name in SUMS), default=0)
    return bool(largest * usage.num_rows > LARGEST)


def _double(field: pa.Field) -> pa.Field:
    return field.with_type(pa.float64())


log = logging.getLogger(__name__)

LATENESS_MS: Final = 60_000
SLICE_MS: Final = 60_000

_SECOND_MS: Final = 1_000


def by_second(usage: pa.Table, time_epoch: int = 0) -> pa.Table:
    """Sum rows of `usage` to rows of `usage_by_second`, in no order.

    A sum is null if all of its values are null.

    Args:
        usage: `COLUMNS`. All rows of each second.
        time_epoch: theirs.
    """
    return conform(summed_by(usage, "second_start_ms", _SECOND_MS), UsageBySecondRow, time_epoch=time_epoch)


class UsageBySecond:
    """Writes `usage_by_second`, one step at a time, from one thread.

    Args:
        seconds: Writer of `usage_by_second`.
        retention_ms: How long rows of `usage_by_second` are kept, counted back from the newest evaluation. Usage of
            before that is not rolled up. So a step does limited work, also after an event that is dated in 1970.
    """

    def __init__(self, usage: RolledTable, seconds: TableWriter, job: str, retention_ms: int) -> None:
        self._usage = usage
        self._seconds = seconds
        self._epochs = RolledEpochs(f"{job}:second")
        self._retention_ms = retention_ms
        self._checked: Instant | None = None

    @property
    def written_until_ms(self) -> int:
        """All usage evaluated before this instant is rolled up, or came too late for that. 0 before the first step."""
        return self._epochs.written_until_ms

    def step(self) -> None:
        """Write all seconds that are complete. Raises nothing, because throttling must go on if the roll-up fails."""
        with log_failures(log, "the roll-up by second"):
            newest = self._usage.newest_instant()
            if newest is not None:
                begin_ms = partial(self._begin_ms, newest.evaluated_at_ms)
                self._epochs.step(newest, begin_ms, self._roll_up)

    def _roll_up(self, epoch: RolledEpoch) -> None:
        if not epoch.is_over:
            self._log_late_rows(epoch)
        until_ms = (epoch.newest_ms - LATENESS_MS) // _SECOND_MS * _SECOND_MS
        usage = self._usage.slices("sample_start_ms", NAMES, time_epoch=epoch.time_epoch)
        # From one row to the next one, so time without usage costs nothing, however long it is.
        while (first_ms := usage.first_time(epoch.done_ms, until_ms)) is not None:
            start_ms = first_ms // _SECOND_MS * _SECOND_MS
            end_ms = min(start_ms + SLICE_MS, until_ms)
            rows = usage.read(COLUMNS, start_ms, end_ms).unify_dictionaries()
            self._seconds.append(by_second(rows, epoch.time_epoch), {epoch.app_id: end_ms}, {})
            epoch.done_ms = end_ms
        epoch.done_ms = max(epoch.done_ms, until_ms)

    def _begin_ms(self, newest_ms: int, time_epoch: int, app_id: str) -> int:
        """Where an epoch goes on: after the last step, but not before the rows that are kept."""
        # Read each time, because an append that failed may have written its rows or not.
        stored_ms = self._stored_until_ms(time_epoch, app_id)
        kept_from_ms = (newest_ms - self._retention_ms) // _SECOND_MS * _SECOND_MS
        if stored_ms >= kept_from_ms:
            return stored_ms
        usage = self._usage.slices("sample_start_ms", time_epoch=time_epoch)
        if usage.first_time(stored_ms, kept_from_ms) is None:
            return kept_from_ms
        log.warning(
            "usage of before %s is not in the roll-up: its rows are kept for %g h",
            datetime.fromtimestamp(kept_from_ms / 1000, UTC).isoformat(),
            self._retention_ms / 3_600_000,
        )
        return kept_from_ms

    def _stored_until_ms(self, time_epoch: int, app_id: str) -> int:
        """Where the last step ended, also one of another process; where the usage begins if there was none."""
        recorded_ms = self._seconds.recorded_version(app_id)
        if recorded_ms is not None:
            return recorded_ms
        newest_ms = None if time_epoch else self._seconds.newest_value("second_start_ms")
        if newest_ms is not None:
            return newest_ms + _SECOND_MS
        return first_sample_ms(self._usage, time_epoch) // _SECOND_MS * _SECOND_MS

    def _log_late_rows(self, epoch: RolledEpoch) -> None:
        """Log how many rows were stored since the last step that belong to seconds which are written already."""
        checked, self._checked = self._checked, Instant(epoch.time_epoch, epoch.newest_ms)
        if checked is not None and checked.time_epoch == epoch.time_epoch:
            stored = self._usage.slices("evaluated_at_ms", time_epoch=epoch.time_epoch)
            new = stored.read(["sample_start_ms"], checked.evaluated_at_ms + 1, epoch.newest_ms + 1)
            late = int(np.count_nonzero(new["sample_start_ms"].to_numpy() < epoch.done_ms))
            if late:
                log.warning("%d rows came more than %d s late and are not in the roll-up", late, LATENESS_MS // 1000)
