"""All roll-ups of a job, written one after the other."""

from dataclasses import dataclass
from typing import Self

from pipeline.settings.model import TablesSettings
from pipeline.tables.from_settings import open_rolled
from pipeline.tables.job_tables import JobTables
from pipeline.tables.quotas.owners import StoredOwners
from pipeline.tables.quotas.source import QuotaVersions
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
    def of(cls, settings: TablesSettings, tables: JobTables, quotas: QuotaVersions, job: str) -> Self:
        """The roll-ups that a job writes into its tables; nothing is read or written yet."""
        usage, events = open_rolled(settings, "usage"), open_rolled(settings, "throttle_events")
        return cls(
            UsageBySecond(usage, tables.usage_by_second, job, settings.seconds_retention_ms),
            UsageByMinute(usage, tables.usage_by_minute, job),
            ThrottleByMinute(events, tables.throttle_by_minute, job, StoredOwners(quotas).at),
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
