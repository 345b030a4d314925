"""The roll-up of `usage` to minutes, which loses nothing: what comes late is added by further rows.

A step writes one minute, when stored usage is `LATENESS_MS` past its end. It takes

    the usage of that minute that was evaluated before `LATENESS_MS` past its end, and
    the usage of earlier minutes that was evaluated since the last step's own limit.

The limits follow one another, so each row of `usage` is taken by exactly one step, and the sum over all rows of a
minute is the sum of the minute. Only `evaluated_at_ms` decides, which never goes back from one batch to the next. A row
with exactly the time of the limit may have others of its time still to come: the next step takes it.

A commit records the end of its minute as its version. So if it is appended again the append is skipped, and the next
step, in this process or another one, continues after it.
"""

import logging
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.tables.port import Condition, RolledTable, TableSlices, TableWriter
from pipeline.tables.rollups.sums import COLUMNS, NAMES, summed_by
from pipeline.tables.tried_again import tried_again
from schemas.arrow import conform
from schemas.usage import UsageByMinuteRow

log = logging.getLogger(__name__)

LATENESS_MS: Final = 10_000
MINUTE_MS: Final = 60_000

_TIME: Final = "evaluated_at_ms"


class UsageByMinute:
    """Writes `usage_by_minute`, minute by minute, from one thread.

    Args:
        usage: The table `usage`.
        minutes: Writer of `usage_by_minute`.
        job: Name of the job; the rows are guarded by the version of the app id `<job>:minute`.
    """

    def __init__(self, usage: RolledTable, minutes: TableWriter, job: str) -> None:
        self._usage = usage
        self._minutes = minutes
        self._app_id = f"{job}:minute"
        self._written_until_ms = 0

    @property
    def written_until_ms(self) -> int:
        """All usage evaluated before this instant is rolled up. 0 before the first step."""
        return self._written_until_ms

    def step(self) -> None:
        """Write all minutes that are complete. Raises nothing: throttling must go on if the roll-up fails."""
        with tried_again(log, "the roll-up by minute"):
            self._roll_up()

    def _roll_up(self) -> None:
        newest_ms = self._usage.newest_value(_TIME)
        if newest_ms is None:
            return
        # Read each time, because an append that failed may have written its rows or not.
        done_ms = self._minutes.recorded_version(self._app_id)
        if done_ms is None:
            done_ms = _minute_of(self._usage.oldest_value("sample_start_ms") or 0)
        self._written_until_ms = done_ms
        until_ms = _minute_of(newest_ms - LATENESS_MS)
        by_sample = self._usage.slices("sample_start_ms", NAMES)
        by_evaluation = self._usage.slices(_TIME, NAMES, by_sample.version)
        while (end_ms := _next_end_ms(by_sample, by_evaluation, done_ms, until_ms)) is not None:
            rows = _taken(by_sample, by_evaluation, done_ms, end_ms)
            minutes = conform(summed_by(rows, "minute_start_ms", MINUTE_MS), UsageByMinuteRow)
            self._minutes.append(minutes, {self._app_id: end_ms}, {})
            self._written_until_ms = done_ms = end_ms


def _next_end_ms(by_sample: TableSlices, by_evaluation: TableSlices, done_ms: int, until_ms: int) -> int | None:
    """The end of the next minute that a step has something to take for; None if none up to `until_ms` has.

    Time without usage costs nothing, however long it is.
    """
    if done_ms >= until_ms:
        return None
    on_time_ms = by_sample.first_time(done_ms, until_ms)
    end_ms = None if on_time_ms is None else _minute_of(on_time_ms) + MINUTE_MS
    if end_ms == done_ms + MINUTE_MS:
        return end_ms
    # Before that there is only usage that came late, if any. It is due at the minute in which it was evaluated.
    before_ms = until_ms if end_ms is None else end_ms - MINUTE_MS
    is_late: Condition = ("sample_start_ms", "<", done_ms)
    late_ms = by_evaluation.first_time(done_ms + LATENESS_MS, before_ms + LATENESS_MS, [is_late])
    return end_ms if late_ms is None else _minute_of(late_ms - LATENESS_MS) + MINUTE_MS


def _taken(by_sample: TableSlices, by_evaluation: TableSlices, done_ms: int, end_ms: int) -> pa.Table:
    """The usage that the step to `end_ms` takes after the step to `done_ms`."""
    start_ms, limit_ms = end_ms - MINUTE_MS, end_ms + LATENESS_MS
    on_time = by_sample.read((*COLUMNS, _TIME), start_ms, end_ms)
    on_time = on_time.filter(pc.less(on_time[_TIME], limit_ms)).drop_columns([_TIME])
    late = by_evaluation.read(COLUMNS, done_ms + LATENESS_MS, limit_ms)
    late = late.filter(pc.less(late["sample_start_ms"], start_ms))
    return pa.concat_tables([on_time, late]).unify_dictionaries()


def _minute_of(at_ms: int) -> int:
    return at_ms // MINUTE_MS * MINUTE_MS
