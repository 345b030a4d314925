"""Taking over from an earlier driver: the one step of a start that changes what others see."""

from pipeline.clock import Clock
from pipeline.failpoints import failpoint
from pipeline.settings.model import EngineSettings
from pipeline.stream.recovery import Recovered, rebuild
from pipeline.tables.job_tables import DriverEpoch, JobTables
from pipeline.tables.quotas.source import QuotaSource
from pipeline.throttle.assembly import Enforcement


def take_over(
    tables: JobTables,
    epoch: DriverEpoch,
    quotas: QuotaSource,
    enforcement: Enforcement,
    clock: Clock,
    engine: EngineSettings,
    max_decision_age_ms: int,
) -> Recovered:
    """Fence earlier drivers in the tables, rebuild the engine, fence them on the topic, publish what they left.

    Args:
        tables: The job's tables, opened.
        epoch: Of this process.
        quotas: The versions that stored batches were decided with, and the one in force now.
        enforcement: As it was assembled: nothing recorded, nothing held.
        clock: Time of everything written.
        engine: Settings of the engine.
        max_decision_age_ms: Of the job.

    Returns:
        What was found in the tables.

    Raises:
        Fenced: Another driver has taken over.
        ClusterUnreachable: The throttle topic can not be reached.
    """
    tables.take_over(epoch)
    failpoint("start.epochs_raised")
    recovered = rebuild(tables, quotas, enforcement.decider, clock, engine, max_decision_age_ms)
    enforcement.decider.adopt(quotas.pin())
    failpoint("start.rebuilt")
    enforcement.purgatory.take_over()
    return recovered
