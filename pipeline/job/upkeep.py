"""Upkeep for a job that runs for a year: delete old rows, merge files, shorten logs, drop idle sensors, free memory."""

import logging
from collections.abc import Callable
from typing import Final

from pipeline.allocator import return_freed_memory
from pipeline.clock import Clock
from pipeline.settings.model import TablesSettings
from pipeline.tables.from_settings import open_upkeep
from pipeline.tables.job_tables import WRITTEN_BY_THE_JOB
from pipeline.tables.tried_again import tried_again

log = logging.getLogger(__name__)

# Not the time of the sample: a late row is kept as long as the batch it came with. Batches before the first usage are
# evaluated at 0, so the next round deletes their rows of `batches`; they hold no usage and decide nothing.
_TIME: Final = "evaluated_at_ms"
_TIME_OF: Final = {
    "dead_letters": "appended_at_ms",
    "usage_by_second": "second_start_ms",
    "usage_by_minute": "minute_start_ms",
    "throttle_by_minute": "minute_start_ms",
}
_SHORT_LIVED: Final = ("usage", "sensor_state")


class Upkeep:
    """Does the upkeep of the tables that the job writes, and of the job's own memory, in rounds.

    If a step fails, the log says so and the next round does it again. Throttling goes on, even if a table grows.

    Args:
        tables: Where the tables are, and how long rows are kept.
        clock: Clock of the driver. Retention is counted from its wall time, or from the newest stored rows if they are
            older: after a pause, the next start still needs what was kept before it. The newest rows are those of the
            newest time epoch. Rows that a clock dated ahead of it go when it has passed them.
        expire_idle: Drops idle sensors of the engine and returns how many.
        usage_read_until_ms: Usage evaluated at this instant or later stays, because it may not be rolled up yet.
    """

    def __init__(
        self,
        tables: TablesSettings,
        clock: Clock,
        expire_idle: Callable[[], int],
        usage_read_until_ms: Callable[[], int | None] = lambda: None,
    ) -> None:
        self._tables = tables
        self._files = open_upkeep(tables)
        self._clock = clock
        self._expire_idle = expire_idle
        self._usage_read_until_ms = usage_read_until_ms
        self._rounds = 0

    def round(self) -> float:
        """Do one round. Returns how many seconds to wait before the next one."""
        dropped = self._expire_idle()
        if dropped:
            log.info("dropped %d sensors that were idle for an hour", dropped)
        cleaning = self._rounds % self._files.rounds_per_cleaning == self._files.cleaning_round
        self._rounds += 1
        for name in WRITTEN_BY_THE_JOB:
            with tried_again(log, f"upkeep of {name}"):
                self._keep_up(name, cleaning)
        return_freed_memory()
        return self._tables.upkeep_interval_ms / 1000

    def _keep_up(self, name: str, cleaning: bool) -> None:
        trimmed = self._files.trim(name, _TIME_OF.get(name, _TIME), self._kept_from_ms(name))
        compacted = self._files.merge(name)
        removed = self._files.clean(name) if cleaning else 0
        if trimmed or removed:
            log.info(
                "upkeep of %s: %d old rows deleted, %s, %d replaced files removed",
                name,
                trimmed,
                "compacted" if compacted else "not compacted",
                removed,
            )

    def _kept_from_ms(self, name: str) -> int:
        now_ms = self._retention_end_ms(name)
        if name == "usage_by_second":
            return now_ms - self._tables.seconds_retention_ms
        if name not in _SHORT_LIVED:
            return now_ms - self._tables.history_retention_ms
        kept_from_ms = now_ms - self._tables.usage_retention_ms
        unread_ms = self._usage_read_until_ms() if name == "usage" else None
        return kept_from_ms if unread_ms is None else min(kept_from_ms, unread_ms)

    def _retention_end_ms(self, name: str) -> int:
        """The instant from which the retention of a table is counted back."""
        # Dead letters come also without usage, so they have an instant of their own.
        newest_ms = (
            self._files.newest_value(name, _TIME_OF[name])
            if name == "dead_letters"
            else self._files.newest_evaluation_ms("usage")
        )
        wall_ms = self._clock.now().wall_ms
        return wall_ms if newest_ms is None else min(wall_ms, newest_ms)
