"""Which faults happen in a soak, and when. A seed decides the schedule."""

import os
import random
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from math import ceil
from typing import Any, Final

from kafka import KafkaAdminClient
from kafka.errors import KafkaError

from pipeline.demo.broker import EmbeddedBroker
from pipeline.tables.quotas.table import TenantTable
from tests.faults.rig import Rig, edit_team
from tests.soak.small_disk import SmallDisk

EVERY_SECONDS: Final = 8.0
CLOCK_STEPS: Final = (20, -20, 3_600, -3_600)
KILL_SECONDS: Final = (20.0, 40.0)
_PAUSE_SECONDS: Final = 4.0
_FLOOD_SECONDS: Final = 5.0
_EDITS: Final = 3
_BETWEEN_EDITS_SECONDS: Final = 0.3


@dataclass
class Nemeses:
    """Makes the faults of one rig and its broker, on the thread that started the broker.

    Attributes:
        seed: Decides the schedule and the loads.
        disk: The disk of the job's tables and checkpoint; None if it must not be filled.
        spare_job: True if the job is never killed.
    """

    rigged: Rig
    broker: EmbeddedBroker
    seed: int
    disk: SmallDisk | None = None
    spare_job: bool = False

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._loads = self.seed
        self._partitions = 4

    def schedule(self, seconds: float) -> list[tuple[float, str]]:
        """(seconds from the start, fault), in order: kills at their own pace, and all other faults in turn."""
        events = []
        at = self._random.uniform(*KILL_SECONDS)
        while at < seconds and not self.spare_job:
            events.append((at, "kill_job"))
            at += self._random.uniform(*KILL_SECONDS)
        paces = (EVERY_SECONDS * number for number in range(1, ceil(seconds / EVERY_SECONDS) - 1))
        events += zip(paces, self._others(), strict=False)
        return sorted(events)

    def kill_job(self) -> None:
        self.rigged.job.kill()

    def kill_broker(self) -> None:
        self.broker.kill()
        time.sleep(1)
        self.broker.start()

    def pause_broker(self) -> None:
        """Stop the broker for some seconds, so that it does not answer."""
        pid = self.broker.pid
        if pid is not None:
            os.kill(pid, signal.SIGSTOP)
            time.sleep(_PAUSE_SECONDS)
            os.kill(pid, signal.SIGCONT)

    def edit_quotas(self) -> None:
        self.rigged.set_quotas(self._random.choice((0.5, 1.0, 2.0)))

    def edit_team(self) -> None:
        """Edit the team some times, one edit right after the other."""
        for _ in range(_EDITS):
            edit_team(TenantTable(self.rigged.tables), self._random)
            time.sleep(_BETWEEN_EDITS_SECONDS)

    def flood(self) -> None:
        """Send messages for some seconds of which half are garbage."""
        self._extra_load("--garbage-share", "0.5", "--per-second", "400")

    def skew_events(self) -> None:
        """Send events for some seconds that are dated far into the future and the past."""
        self._extra_load("--skew-ms", "30000")

    def step_clocks(self) -> None:
        """Set all wall clocks by 20 s or an hour, forward or back; the next time, right again."""
        clock = self.rigged.clock
        if clock is not None:
            self.rigged.step_clock(-clock.ahead_seconds or self._random.choice(CLOCK_STEPS))

    def add_partition(self) -> None:
        self._partitions += 1
        self._admin("create_partitions", {f"{self.rigged.job.name}.usage": self._partitions})

    def delete_group(self) -> None:
        self._admin("delete_groups", [f"kquota-{self.rigged.job.name}"])

    def fill_disk(self) -> None:
        """Leave no space for tables and checkpoint for some seconds."""
        if self.disk is not None:
            with self.disk.filled():
                time.sleep(_PAUSE_SECONDS)

    def _extra_load(self, *options: str) -> None:
        self._loads += 1
        flood = self.rigged.begin_load(self._loads, *options)
        time.sleep(_FLOOD_SECONDS)
        self.rigged.end_load(flood)

    def _admin(self, call: str, argument: Any) -> None:
        with suppress(KafkaError):
            admin: Any = KafkaAdminClient(bootstrap_servers=self.broker.bootstrap_servers)
            try:
                getattr(admin, call)(argument)
            finally:
                admin.close()

    def _others(self) -> Iterator[str]:
        kinds = ["edit_quotas", "edit_team", "add_partition", "delete_group", "flood", "skew_events"]
        kinds += ["kill_broker", "pause_broker"]
        if self.rigged.clock is not None:
            kinds.append("step_clocks")
        if self.disk is not None:
            kinds.append("fill_disk")
        while True:
            self._random.shuffle(kinds)
            yield from kinds
