"""Upkeep of `broker_quotas`, by its only writer: delete old rows, merge files, shorten the log."""

import logging

from deltalake.exceptions import DeltaError

from pipeline.clock import Clock
from pipeline.errors import PipelineError, first_line
from pipeline.settings.model import TablesSettings
from pipeline.tables.address import table_uri
from pipeline.tables.brokers.rows import NAME
from pipeline.tables.brokers.upkeep import trim_changes
from pipeline.tables.maintenance import clean, compact

log = logging.getLogger(__name__)


class SyncUpkeep:
    """Does the upkeep in rounds. What fails is told, and tried again in the next round.

    Args:
        tables: Where the table is, and how long its rows are kept.
        clock: Retention is counted back from its wall clock.
    """

    def __init__(self, tables: TablesSettings, clock: Clock) -> None:
        self._tables = tables
        self._clock = clock

    def round(self) -> float:
        """Do one round. Returns how many seconds to wait before the next one."""
        uri = table_uri(self._tables.root, NAME)
        try:
            trim_changes(uri, self._clock.now().wall_ms - self._tables.history_retention_ms)
            compact(uri)
            clean(uri)
        except (PipelineError, DeltaError, OSError, ValueError) as exc:
            log.warning("upkeep of %s failed and is tried again in the next round: %s", NAME, first_line(exc))
        return self._tables.upkeep_interval_ms / 1000
