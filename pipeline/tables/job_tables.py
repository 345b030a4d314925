"""The tables of one job, opened once, in the order in which a batch writes them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Self

from pipeline.tables.append_guard import checked_epoch
from pipeline.tables.port import TableWriter
from pipeline.tables.sensor_state import SensorStateTable
from pipeline.tables.throttles.outbox import DeltaOutbox

WRITTEN_BY_THE_JOB: Final = (
    "dead_letters",
    "usage",
    "decisions",
    "batches",
    "throttle_events",
    "sensor_state",
    "usage_by_second",
    "usage_by_minute",
    "throttle_by_minute",
)


class DriverEpoch:
    """The epoch that this process has raised last. With it a restart in this process differs from another driver.

    A driver that was fenced must not take over again by a restart in its process. Otherwise two drivers would fence
    each other for ever.
    """

    def __init__(self) -> None:
        self._raised: int | None = None

    def raise_in(self, writers: Mapping[str, TableWriter], job: str) -> None:
        """Raise the epoch of every table.

        Raises:
            Fenced: another driver has raised the epoch after this process did.
        """
        recorded = {name: writer.recorded_version(job) or 0 for name, writer in writers.items()}
        table = max(recorded, key=lambda name: recorded[name])
        if self._raised is not None:
            checked_epoch(table, self._raised, recorded[table])
        self._raised = 1 + recorded[table]
        for writer in writers.values():
            writer.raise_epoch(self._raised)


@dataclass(frozen=True, slots=True)
class JobTables:
    """Guarded writers of all tables the job writes; it is their only writer."""

    dead_letters: TableWriter
    usage: TableWriter
    decisions: TableWriter
    batches: TableWriter
    throttle_events: DeltaOutbox
    sensor_state: SensorStateTable
    usage_by_second: TableWriter
    usage_by_minute: TableWriter
    throttle_by_minute: TableWriter
    job: str
    writers: Mapping[str, TableWriter]

    @classmethod
    def open(
        cls, open_writer: Callable[[str], TableWriter], job: str, cluster: str, sensor_state_interval_ms: int
    ) -> Self:
        """Open the tables; nothing is written. `take_over` comes before the first append.

        Args:
            open_writer: Opens the writer of a table by its name, epoch not yet raised.
            job: The app id that carries the epoch.
            cluster: Written to every row.
            sensor_state_interval_ms: See `SensorStateTable`.
        """
        writers = {name: open_writer(name) for name in WRITTEN_BY_THE_JOB}
        return cls(
            dead_letters=writers["dead_letters"],
            usage=writers["usage"],
            decisions=writers["decisions"],
            batches=writers["batches"],
            throttle_events=DeltaOutbox(writers["throttle_events"], job),
            sensor_state=SensorStateTable(writers["sensor_state"], cluster, sensor_state_interval_ms),
            usage_by_second=writers["usage_by_second"],
            usage_by_minute=writers["usage_by_minute"],
            throttle_by_minute=writers["throttle_by_minute"],
            job=job,
            writers=writers,
        )

    def take_over(self, epoch: DriverEpoch) -> None:
        """Take the tables over from an earlier driver.

        Every table gets the new epoch before any is written, so a driver that still runs elsewhere is refused at
        its next commit, whichever table that is for.

        Args:
            epoch: Of this process, the same one at each of its restarts.

        Raises:
            Fenced: Another driver has taken over.
        """
        epoch.raise_in(self.writers, self.job)
