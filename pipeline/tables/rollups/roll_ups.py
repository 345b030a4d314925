"""All roll-ups of a job, written one after the other."""

from dataclasses import dataclass
from typing import Self

from pipeline.settings.model import TablesSettings
from pipeline.tables.address import table_uri
from pipeline.tables.job_tables import JobTables
from pipeline.tables.quotas.owners import StoredOwners
from pipeline.tables.quotas.table import QuotaTable
from pipeline.tables.rollups.throttle_by_minute import ThrottleByMinute
from pipeline.tables.rollups.usage_by_minute import UsageByMinute
from pipeline.tables.rollups.usage_by_second import UsageBySecond


@dataclass(frozen=True, slots=True)
class RollUps:
    """The roll-ups of one job; for one thread."""

    by_second: UsageBySecond
    by_minute: UsageByMinute
    throttles: ThrottleByMinute

    @classmethod
    def of(cls, settings: TablesSettings, tables: JobTables, quotas: QuotaTable, job: str) -> Self:
        """The roll-ups that a job writes into its tables; nothing is read or written yet."""
        usage_uri, seconds_uri, events_uri = (
            table_uri(settings.root, name) for name in ("usage", "usage_by_second", "throttle_events")
        )
        return cls(
            UsageBySecond(usage_uri, seconds_uri, tables.usage_by_second, job, settings.seconds_retention_ms),
            UsageByMinute(usage_uri, tables.usage_by_minute, job),
            ThrottleByMinute(events_uri, tables.throttle_by_minute, job, StoredOwners(quotas).at),
        )

    @property
    def written_until_ms(self) -> int:
        """All usage evaluated before this instant is in every roll-up of usage. 0 before the first step."""
        return min(self.by_second.written_until_ms, self.by_minute.written_until_ms)

    def step(self) -> None:
        """Write what is complete. Raises nothing; what fails is tried again at the next step."""
        self.by_second.step()
        self.by_minute.step()
        self.throttles.step()
