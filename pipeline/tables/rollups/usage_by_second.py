"""The roll-up of `usage` to one row per second and client. It runs beside the decisions.

A second is written when stored usage is `LATENESS_MS` past its end, so one to two intervals after it happened. Usage
that comes later is in `usage` and counts in the rate or the bucket, but it is not in the roll-up. The log says how many
rows that were.

The sums are made here and not by a streaming query. A minute of 20 000 events per second is a million rows. Arrow takes
a third of a second of one core for them. A query that keeps its open seconds in a state store took most of a minute,
and the micro-batches had to wait for it.

A commit records the end of its seconds as its version. So if they are appended again the append is skipped, and the
next step, in this process or another one, continues after them.
"""

import logging
from datetime import UTC, datetime
from typing import Final

import numpy as np
import pyarrow as pa

from pipeline.tables.port import RolledTable, TableWriter
from pipeline.tables.rollups.sums import COLUMNS, NAMES, summed_by
from pipeline.tables.tried_again import tried_again
from schemas.arrow import conform
from schemas.usage import UsageBySecondRow

log = logging.getLogger(__name__)

LATENESS_MS: Final = 60_000
SLICE_MS: Final = 60_000

_SECOND_MS: Final = 1_000


def by_second(usage: pa.Table) -> pa.Table:
    """Sum rows of `usage` to rows of `usage_by_second`, in no order.

    A sum is null if all of its values are null.

    Args:
        usage: `sums.COLUMNS`. All rows of each second.
    """
    return conform(summed_by(usage, "second_start_ms", _SECOND_MS), UsageBySecondRow)


class UsageBySecond:
    """Writes `usage_by_second`, one step at a time, from one thread.

    Args:
        usage: The table `usage`.
        seconds: Writer of `usage_by_second`.
        job: Name of the job; the rows are guarded by the version of the app id `<job>:second`.
        retention_ms: How long rows of `usage_by_second` are kept, counted back from the newest evaluation. Usage of
            before that is not rolled up. So a step does limited work, also after an event that is dated in 1970.
    """

    def __init__(self, usage: RolledTable, seconds: TableWriter, job: str, retention_ms: int) -> None:
        self._usage = usage
        self._seconds = seconds
        self._app_id = f"{job}:second"
        self._retention_ms = retention_ms
        self._written_until_ms = 0
        self._checked_until_ms = 0

    @property
    def written_until_ms(self) -> int:
        """All usage evaluated before this instant is rolled up, or came too late for that. 0 before the first step."""
        return self._written_until_ms

    def step(self) -> None:
        """Write all seconds that are complete. Raises nothing, because throttling must go on if the roll-up fails."""
        with tried_again(log, "the roll-up by second"):
            self._roll_up()

    def _roll_up(self) -> None:
        newest_ms = self._usage.newest_value("evaluated_at_ms")
        if newest_ms is None:
            return
        # Read each time, because an append that failed may have written its rows or not.
        self._written_until_ms = self._begin_ms(newest_ms)
        self._log_late_rows(newest_ms)
        until_ms = (newest_ms - LATENESS_MS) // _SECOND_MS * _SECOND_MS
        usage = self._usage.slices("sample_start_ms", NAMES)
        # From one row to the next one, so time without usage costs nothing, however long it is.
        while (first_ms := usage.first_time(self._written_until_ms, until_ms)) is not None:
            start_ms = first_ms // _SECOND_MS * _SECOND_MS
            end_ms = min(start_ms + SLICE_MS, until_ms)
            rows = usage.read(COLUMNS, start_ms, end_ms).unify_dictionaries()
            self._seconds.append(by_second(rows), {self._app_id: end_ms}, {})
            self._written_until_ms = end_ms
        self._written_until_ms = max(self._written_until_ms, until_ms)

    def _begin_ms(self, newest_ms: int) -> int:
        """Where this step begins: after the last step, but not before the rows that are kept."""
        stored_ms = self._stored_until_ms()
        kept_from_ms = (newest_ms - self._retention_ms) // _SECOND_MS * _SECOND_MS
        if stored_ms >= kept_from_ms:
            return stored_ms
        log.warning(
            "usage of before %s is not in the roll-up: its rows are kept for %g h",
            datetime.fromtimestamp(kept_from_ms / 1000, UTC).isoformat(),
            self._retention_ms / 3_600_000,
        )
        return kept_from_ms

    def _stored_until_ms(self) -> int:
        """Where the last step ended, also one of another process; where the usage begins if there was none."""
        recorded_ms = self._seconds.recorded_version(self._app_id)
        if recorded_ms is not None:
            return recorded_ms
        newest_ms = self._seconds.newest_value("second_start_ms")
        if newest_ms is not None:
            return newest_ms + _SECOND_MS
        return (self._usage.oldest_value("sample_start_ms") or 0) // _SECOND_MS * _SECOND_MS

    def _log_late_rows(self, newest_ms: int) -> None:
        """Log how many rows were stored since the last step that belong to seconds which are written already."""
        if self._checked_until_ms:
            stored = self._usage.slices("evaluated_at_ms")
            new = stored.read(["sample_start_ms"], self._checked_until_ms, newest_ms + 1)["sample_start_ms"].to_numpy()
            late = int(np.count_nonzero(new < self._written_until_ms))
            if late:
                log.warning("%d rows came more than %d s late and are not in the roll-up", late, LATENESS_MS // 1000)
        self._checked_until_ms = newest_ms + 1
