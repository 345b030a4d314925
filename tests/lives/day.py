"""A day in logical time with real tables: one minute of bursts again and again, upkeep and roll-ups, nothing grows."""

import gc
import json
import resource
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable

from pipeline.job.job_run import Upkeep
from pipeline.stream.job_tables import WRITTEN_BY_THE_JOB, RollUps
from tests.faults.generator import RATES, Content
from tests.faults.hand_job import HandJob

_MINUTES = 24 * 60
_UPKEEP_EVERY = 10
_LOOKED_AT = (4 * 60, _MINUTES)
# All that is kept for days is kept for two hours here, and files that no version needs for as long as a day takes to
# compute in proportion: their age is counted by the machine's clock.
_KEPT_MS = 7_200_000
_RETENTION = {
    "delta.logRetentionDuration": "interval 1 seconds",
    "delta.deletedFileRetentionDuration": "interval 60 seconds",
}


class Day:
    """One driver that is never killed, with a user of its own for each minute."""

    def __init__(self, folder: Path) -> None:
        self.job = HandJob(folder, RATES)
        settings, kept = self.job.settings, ("usage_retention_ms", "seconds_retention_ms", "history_retention_ms")
        tables = dict.fromkeys(kept, _KEPT_MS)
        self.job.settings = settings.model_copy(update={"tables": settings.tables.model_copy(update=tables)})
        for name in WRITTEN_BY_THE_JOB:
            DeltaTable(self._uri(name)).alter.set_table_properties(_RETENTION, raise_if_not_exists=False)
        self.job.start()
        self.roll_ups = RollUps(self.job.settings.tables, self.job.tables, self.job.quota_table)
        expire, read_until_ms = self.job.decider.expire_idle, lambda: self.roll_ups.written_until_ms
        self.upkeep = Upkeep(self.job.settings.tables, self.job.clock, expire, read_until_ms)

    def _uri(self, name: str) -> str:
        return f"{self.job.settings.tables.root}/{name}"

    def live(self) -> Iterator[tuple[str, Counter[str]]]:
        """The figures at the instants that are looked at."""
        for minute in range(1, _MINUTES + 1):
            self._minute(minute)
            if minute % _UPKEEP_EVERY == 0:
                self.roll_ups.step()
                self.upkeep.round()
            if minute in _LOOKED_AT:
                yield f"hour {minute / 60:g}", self.figures()

    def _minute(self, minute: int) -> None:
        """The same minute of usage each time: its bursts at the begin, then little."""
        job, content = self.job, Content(1, garbage_share=0.02, skew_ms=2_000)
        for seconds, count in ((3, 40), (57, 3)):
            job.clock.advance(seconds * 1_000)
            job.send(*(content.message(job.clock.wall_ms) for _ in range(count)))
            job.send(self._event(f"user-of-minute-{minute}"))
            job.step()
        # What a broker deletes by its retention.
        del job.broker.records[:-1_000]
        job.messages[:-1] = [job.messages[0]] * (len(job.messages) - 1)

    def _event(self, user: str) -> bytes:
        event = {"event_time_ms": self.job.clock.wall_ms, "user": user, "client_id": "app", "produced_bytes": 50_000}
        return json.dumps(event).encode()

    def figures(self) -> Counter[str]:
        gc.collect()
        pa.default_memory_pool().release_unused()
        job, found = self.job, Counter[str]()
        found["memory, MB"] = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() // 1_000_000
        found["held"], found["sensors"] = len(job.purgatory), job.decider._engine.num_sensors
        for name in WRITTEN_BY_THE_JOB:
            table = DeltaTable(self._uri(name))
            found[f"rows of {name}"] = table.count()
            found["data files"] += sum(1 for _ in Path(self._uri(name)).rglob("*.parquet"))
            found["log files"] += sum(1 for _ in Path(self._uri(name), "_delta_log").iterdir())
        return found


def print_day() -> None:
    with tempfile.TemporaryDirectory() as folder:
        columns = dict(Day(Path(folder)).live())
    first, last = columns.values()
    print(f"| figure | {' | '.join(columns)} |\n| --- | --- | --- |")  # noqa: T201
    for name in sorted({*first, *last}):
        print(f"| {name} | {first[name]} | {last[name]} |")  # noqa: T201
