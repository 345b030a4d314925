"""The tables of one job, opened once, in the order they are written in."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Self

from pipeline.tables.port import TableWriter
from pipeline.tables.sensor_state import SensorStateTable
from pipeline.tables.throttle_outbox import DeltaOutbox

WRITTEN_BY_THE_JOB: Final = ("dead_letters", "usage", "decisions", "batches", "throttle_events", "sensor_state")


@dataclass(frozen=True, slots=True)
class JobTables:
    """Guarded writers of all tables the job writes; it is their only writer."""

    dead_letters: TableWriter
    usage: TableWriter
    decisions: TableWriter
    batches: TableWriter
    throttle_events: DeltaOutbox
    sensor_state: SensorStateTable

    @classmethod
    def open(
        cls, open_writer: Callable[[str], TableWriter], job: str, cluster: str, sensor_state_interval_ms: int
    ) -> Self:
        """Take the tables over from an earlier driver, then open them.

        Every table gets the new epoch before any is written, so a driver that still runs elsewhere is refused at
        its next commit, whichever table that is for.

        Args:
            open_writer: Opens the writer of a table by its name, epoch not yet raised.
            job: The app id that carries the epoch.
            cluster: Written to every row.
            sensor_state_interval_ms: See `SensorStateTable`.
        """
        writers = {name: open_writer(name) for name in WRITTEN_BY_THE_JOB}
        epoch = 1 + max(writer.recorded_version(job) or 0 for writer in writers.values())
        for writer in writers.values():
            writer.raise_epoch(epoch)
        return cls(
            dead_letters=writers["dead_letters"],
            usage=writers["usage"],
            decisions=writers["decisions"],
            batches=writers["batches"],
            throttle_events=DeltaOutbox(writers["throttle_events"]),
            sensor_state=SensorStateTable(writers["sensor_state"], cluster, sensor_state_interval_ms),
        )
