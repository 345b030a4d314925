"""The roll-ups of `usage` to one row per second, or minute, and client. They run next to the decisions.

When a clock that was ahead is set back a new time epoch begins, whose rows have smaller times than those of the one
before. A roll-up takes each epoch by itself, so nothing of the new one is late and nothing of the old one is lost; when
a newer epoch has begun, all that is left of the older one is written at once. A second or minute that the clock showed
twice has rows of both epochs.

A commit records the end of its span as its version, for each epoch under an app id of its own: a commit that is made
again is skipped, and the next step, in this process or another one, continues after it.

The sums are made here and not by a streaming query. A minute of 20 000 events per second is a million rows. Arrow takes
a third of a second of one core for them. A query that keeps its open seconds in a state store took most of a minute,
and the micro-batches had to wait for it.
"""

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.tables.port import Condition, Instant, TableWriter
from pipeline.tables.reading import DeltaRsReader, TimeSlices
from pipeline.tables.upkeep import log_failures
from schemas.arrow import conform
from schemas.usage import UsageByMinuteRow, UsageBySecondRow

log = logging.getLogger(__name__)

# Sums rows of `usage` over spans of time, for each client of each broker.

NAMES: Final = ("cluster", "broker_id", "user", "client_id")
SUMS: Final = (
    *("produced_bytes", "fetched_bytes", "io_time_ns", "network_time_ns", "exempt_time_ns", "request_count"),
    "broker_throttle_ms",
)
MINUTE_MS: Final = 60_000
COLUMNS: Final = ("sample_start_ms", *NAMES, *SUMS, "last_event_ms")
"""The columns of `usage` that a roll-up reads."""
LARGEST: Final = 2**62
"""The largest sum; a larger one is cut to it, and never wraps around to a negative one."""


def summed_by(usage: pa.Table, start_name: str, span_ms: int) -> pa.Table:
    """Sum rows of `usage` by span and client, in no order. A sum of nulls alone is null.

    * `usage`: `COLUMNS`; the names may be dictionaries.
    * `start_name`: Column of the result with the start of the span, in epoch ms; the others are `NAMES`, `SUMS` and the
      largest `last_event_ms`. Spans begin at multiples of `span_ms` since the epoch.
    """
    start_ms = usage["sample_start_ms"].to_numpy()
    spans = usage.append_column(start_name, pa.array(start_ms // span_ms * span_ms))
    may_overflow = max(pc.max(usage[name]).as_py() or 0 for name in SUMS) * usage.num_rows > LARGEST
    if may_overflow:
        floats = [field.with_type(pa.float64()) if field.name in SUMS else field for field in spans.schema]
        spans = spans.cast(pa.schema(floats), safe=False)  # to the nearest, as a sum of floats
    nulls_alone = pc.ScalarAggregateOptions(skip_nulls=True, min_count=1)
    sums = [(name, "sum", nulls_alone) for name in SUMS]
    # In one thread, to leave the other cores to the micro-batch.
    grouped = spans.group_by([start_name, *NAMES], use_threads=False).aggregate([*sums, ("last_event_ms", "max")])
    named = grouped.rename_columns([start_name, *NAMES, *SUMS, "last_event_ms"])
    for name in SUMS if may_overflow else ():
        cut = pc.min_element_wise(named[name], float(LARGEST), skip_nulls=False).cast(pa.int64())
        named = named.set_column(named.schema.get_field_index(name), name, cut)
    return named


def summed_pieces(pieces: Iterable[pa.Table], start_name: str, span_ms: int) -> pa.Table:
    """Sum rows that come in one or more tables; see `summed_by`. One of them, and the sums of each, are in memory."""
    parts = [summed_by(piece.unify_dictionaries(), start_name, span_ms) for piece in pieces]
    if len(parts) == 1:
        return parts[0]
    names = ["sample_start_ms" if name == start_name else name for name in parts[0].column_names]
    return summed_by(pa.concat_tables(parts).rename_columns(names).unify_dictionaries(), start_name, span_ms)


# How far a roll-up has come in each time epoch.

_EVER_MS: Final = 2**52


@dataclass(slots=True)
class _Epoch:
    """One epoch; `is_over`: a newer one has begun, so no row is to come.

    No row that is still to come is evaluated before `newest_ms`, the instant of its newest row; if it is over, after
    all.
    """

    time_epoch: int
    app_id: str
    newest_ms: int
    is_over: bool
    done_ms: int


class _UsageRollUp:
    """One of the roll-ups, written one step at a time, from one thread."""

    _name: str

    def __init__(self, usage: DeltaRsReader, writer: TableWriter, job: str) -> None:
        self._usage = usage
        self._writer = writer
        self._app_id = f"{job}:{self._name}"  # that of epoch 0; the other ones have their number behind it
        self._first = 0
        self._open: dict[int, _Epoch] = {}

    @property
    def written_until_ms(self) -> int:
        """All usage evaluated before this instant is rolled up, or came too late for that. 0 before the first step."""
        return min((epoch.done_ms for epoch in self._open.values()), default=0)

    def step(self) -> None:
        """Write all spans that are complete. Raises nothing, because throttling must go on if the roll-up fails."""
        with log_failures(log, f"the roll-up by {self._name}"):
            newest = self._usage.newest_instant()
            if newest is not None:
                self._step(newest)

    def _step(self, newest: Instant) -> None:
        for number in range(self._first, newest.time_epoch + 1):
            app_id = f"{self._app_id}:{number}" if number else self._app_id
            is_over = number < newest.time_epoch
            newest_ms = _EVER_MS if is_over else newest.evaluated_at_ms
            begin_ms = self._begin_ms(newest.evaluated_at_ms, number, app_id)
            self._open[number] = _Epoch(number, app_id, newest_ms, is_over, begin_ms)
        for number in range(self._first, newest.time_epoch + 1):
            self._roll_up(self._open[number])
            if number < newest.time_epoch:  # it is not asked for again
                self._first = number + 1
                del self._open[number]

    def _begin_ms(self, newest_ms: int, time_epoch: int, app_id: str) -> int:
        """Where an epoch goes on. Read each time, because an append that failed may have written its rows or not."""
        raise NotImplementedError

    def _roll_up(self, epoch: _Epoch) -> None:
        raise NotImplementedError

    def _first_sample_ms(self, time_epoch: int) -> int:
        """When the first sample of an epoch begins; 0 without one."""
        if not time_epoch:
            return self._usage.oldest_value("sample_start_ms") or 0
        return self._usage.slices("sample_start_ms", time_epoch=time_epoch).first_time(0, _EVER_MS) or 0


# By second. A second is written when stored usage is `LATENESS_MS` past its end, so one to two intervals after it
# happened. Usage that comes later is in `usage` and counts in the rate or the bucket, but it is not in the roll-up. The
# log has how many rows that were.

LATENESS_MS: Final = 60_000
SLICE_MS: Final = 20_000  # at 20 000 events a second 200 000 rows, and 70 to 100 MB while they are written
_SECOND_MS: Final = 1_000


def by_second(pieces: Iterable[pa.Table], time_epoch: int = 0) -> pa.Table:
    """Sum rows of `usage` to rows of `usage_by_second`: all rows of each second. See `summed_pieces`."""
    return conform(summed_pieces(pieces, "second_start_ms", _SECOND_MS), UsageBySecondRow, time_epoch=time_epoch)


class UsageBySecond(_UsageRollUp):
    """Writes `usage_by_second`, whose rows are kept for so long, counted back from the newest evaluation.

    Older usage is not rolled up. So a step does limited work, also after an event that is dated in 1970.
    """

    _name = "second"

    def __init__(self, usage: DeltaRsReader, seconds: TableWriter, job: str, retention_ms: int) -> None:
        super().__init__(usage, seconds, job)
        self._retention_ms = retention_ms
        self._checked: Instant | None = None

    def _roll_up(self, epoch: _Epoch) -> None:
        if not epoch.is_over:
            self._log_late_rows(epoch)
        until_ms = _floor(epoch.newest_ms - LATENESS_MS, _SECOND_MS)
        usage = self._usage.slices("sample_start_ms", NAMES, time_epoch=epoch.time_epoch)
        # From one row to the next one, so time without usage costs nothing, however long it is.
        while (first_ms := usage.first_time(epoch.done_ms, until_ms)) is not None:
            start_ms = _floor(first_ms, _SECOND_MS)
            end_ms = min(start_ms + SLICE_MS, until_ms)
            seconds = by_second(usage.pieces(COLUMNS, start_ms, end_ms), epoch.time_epoch)
            self._writer.append(seconds, {epoch.app_id: end_ms}, {})
            epoch.done_ms = end_ms
        epoch.done_ms = max(epoch.done_ms, until_ms)

    def _begin_ms(self, newest_ms: int, time_epoch: int, app_id: str) -> int:
        """After the last step, but not before the rows that are kept."""
        stored_ms = self._stored_until_ms(time_epoch, app_id)
        kept_from_ms = _floor(newest_ms - self._retention_ms, _SECOND_MS)
        if stored_ms >= kept_from_ms:
            return stored_ms
        usage = self._usage.slices("sample_start_ms", time_epoch=time_epoch)
        if usage.first_time(stored_ms, kept_from_ms) is not None:
            log.warning(
                "usage of before %s is not in the roll-up: its rows are kept for %g h",
                datetime.fromtimestamp(kept_from_ms / 1000, UTC).isoformat(),
                self._retention_ms / 3_600_000,
            )
        return kept_from_ms

    def _stored_until_ms(self, time_epoch: int, app_id: str) -> int:
        """Where the last step ended, also one of another process; where the usage begins if there was none."""
        recorded_ms = self._writer.recorded_version(app_id)
        return _floor(self._first_sample_ms(time_epoch), _SECOND_MS) if recorded_ms is None else recorded_ms

    def _log_late_rows(self, epoch: _Epoch) -> None:
        """Log how many rows were stored since the last step that belong to seconds which are written already."""
        checked, self._checked = self._checked, Instant(epoch.time_epoch, epoch.newest_ms)
        if checked is not None and checked.time_epoch == epoch.time_epoch:
            stored = self._usage.slices("evaluated_at_ms", time_epoch=epoch.time_epoch)
            new = stored.read(["sample_start_ms"], checked.evaluated_at_ms + 1, epoch.newest_ms + 1)
            late = int(np.count_nonzero(new["sample_start_ms"].to_numpy() < epoch.done_ms))
            if late:
                log.warning("%d rows came more than %d s late and are not in the roll-up", late, LATENESS_MS // 1000)


# By minute, which loses nothing: what comes late is added by further rows. A step writes one minute, when stored usage
# is `MINUTE_LATENESS_MS` past its end. It takes
#
#     the usage of that minute that was evaluated before `MINUTE_LATENESS_MS` past its end, and
#     the usage of earlier minutes that was evaluated since the last step's own limit.
#
# The limits follow one another, so each row of `usage` is taken by exactly one step, and the sum over all rows of a
# minute is the sum of the minute. Only `evaluated_at_ms` decides, which never goes back from one batch to the next
# within a time epoch. A row with exactly the time of the limit may have others of its time still to come: the next step
# takes it.

MINUTE_LATENESS_MS: Final = 10_000
_TIME: Final = "evaluated_at_ms"


class UsageByMinute(_UsageRollUp):
    """Writes `usage_by_minute`, minute by minute."""

    _name = "minute"

    def _begin_ms(self, _newest_ms: int, time_epoch: int, app_id: str) -> int:
        done_ms = self._writer.recorded_version(app_id)
        return _floor(self._first_sample_ms(time_epoch), MINUTE_MS) if done_ms is None else done_ms

    def _roll_up(self, epoch: _Epoch) -> None:
        until_ms = _floor(epoch.newest_ms - MINUTE_LATENESS_MS, MINUTE_MS)
        by_sample = self._usage.slices("sample_start_ms", NAMES, time_epoch=epoch.time_epoch)
        by_evaluation = self._usage.slices(_TIME, NAMES, by_sample.version, epoch.time_epoch)
        while (end_ms := _next_end_ms(by_sample, by_evaluation, epoch.done_ms, until_ms)) is not None:
            taken = _taken(by_sample, by_evaluation, epoch.done_ms, end_ms)
            minutes = conform(summed_pieces(taken, "minute_start_ms", MINUTE_MS), UsageByMinuteRow)
            self._writer.append(minutes, {epoch.app_id: end_ms}, {})
            epoch.done_ms = end_ms


def _next_end_ms(by_sample: TimeSlices, by_evaluation: TimeSlices, done_ms: int, until_ms: int) -> int | None:
    """The end of the next minute up to `until_ms` that a step has something to take for."""
    if done_ms >= until_ms:
        return None
    on_time_ms = by_sample.first_time(done_ms, until_ms)
    end_ms = None if on_time_ms is None else _floor(on_time_ms, MINUTE_MS) + MINUTE_MS
    if end_ms == done_ms + MINUTE_MS:
        return end_ms
    # Before that there is only usage that came late, if any. It is due at the minute in which it was evaluated.
    before_ms = until_ms if end_ms is None else end_ms - MINUTE_MS
    is_late: Condition = ("sample_start_ms", "<", done_ms)
    late_ms = by_evaluation.first_time(done_ms + MINUTE_LATENESS_MS, before_ms + MINUTE_LATENESS_MS, [is_late])
    return end_ms if late_ms is None else _floor(late_ms - MINUTE_LATENESS_MS, MINUTE_MS) + MINUTE_MS


def _taken(by_sample: TimeSlices, by_evaluation: TimeSlices, done_ms: int, end_ms: int) -> Iterator[pa.Table]:
    start_ms, limit_ms = end_ms - MINUTE_MS, end_ms + MINUTE_LATENESS_MS
    for on_time in by_sample.pieces((*COLUMNS, _TIME), start_ms, end_ms):
        yield on_time.filter(pc.less(on_time[_TIME], limit_ms)).drop_columns([_TIME])
    for late in by_evaluation.pieces(COLUMNS, done_ms + MINUTE_LATENESS_MS, limit_ms):
        yield late.filter(pc.less(late["sample_start_ms"], start_ms))


def _floor(at_ms: int, span_ms: int) -> int:
    return at_ms // span_ms * span_ms
