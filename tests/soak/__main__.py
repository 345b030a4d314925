"""A job under load while many things around it fail; then the verifier.

    python -m tests.soak [--minutes 1.5] [--seed 1] [--spare-job] [--keep DIR]

The job is killed every 20 to 40 seconds (never with `--spare-job`, which watches the memory of one process). Every 8
seconds there is another fault: a broker that is killed or does not answer, edits of quotas or of a tenant, messages of
which half are garbage, events dated far ahead and back, wall clocks that are set (with a C compiler), a new partition,
a deleted consumer group, a full disk (if one can be mounted and its content need not be kept). One client-id in four is
new. Ends with 1 if anything was lost, written twice or different. Records the memory of the job.
"""

import argparse
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from math import nan
from pathlib import Path
from statistics import median
from typing import Final

from bench.machine import machine_line, memory_of, tree
from pipeline.demo.broker import EmbeddedBroker
from pipeline.jvm.jars import fetch
from pipeline.tables.quotas.table import TenantTable
from tests.faults.rig import BROKER, Rig, delete_team, rig
from tests.faults.stepped_clock import COMPILER, stepped_clock
from tests.faults.verdict import KINDS
from tests.soak.nemeses import Nemeses
from tests.soak.small_disk import small_disk

_STEP_SECONDS: Final = 0.2
_DRAIN_SECONDS: Final = 180.0
_LAST_QUOTA_FACTOR: Final = 1e4
_SETTLED_SECONDS: Final = 15.0
_DISK_MB: Final = 1_000
_PER_MINUTE: Final = {
    **{"messages": 1_200, "batches": 1, "usage": 600, "dead_letters": 60, "clamped_events": 10},
    **{"late_events": 10, "decisions": 10, "holds": 10, "snapshots": 1, "buckets": 5, "full_buckets": 1},
    **{"begins": 5, "renewals": 5, "checks": 10, "releases": 2, "publish_seq": 20, "topic": 20, "pairs": 20},
}
_EPOCHS_PER_MINUTE: Final = 0.1
_PER_MINUTE_SPARED: Final = {
    **{"batches": 20, "decisions": 50, "holds": 50, "snapshots": 10, "buckets": 50, "full_buckets": 10},
    **{"begins": 20, "renewals": 30, "checks": 50, "releases": 20, "publish_seq": 100, "topic": 100, "pairs": 100},
}
_ONE_LIFE: Final = "1000000"
_FIRST_MEMORY_SECONDS: Final = 300.0
_MEMORY_SPAN_SECONDS: Final = 60.0


class Soak:
    """One soak: keeps the job running, lets the nemeses act, and watches the memory.

    Attributes:
        acted: How often each fault was made, and the job started again.
        memory: Seconds from the start, and MB that the job held then, its JVM too.
    """

    def __init__(self, rigged: Rig, nemeses: Nemeses) -> None:
        self._rigged = rigged
        self._nemeses = nemeses
        self._began = self._life_began = time.monotonic()
        self.acted: Counter[str] = Counter()
        self.memory: list[tuple[float, float]] = []

    def run(self, seconds: float) -> None:
        """Run load and faults for this long, then wait until everything is drained."""
        self._rigged.begin_load(self._nemeses.seed, "--new-client-share", "0.25")
        self._nemeses.edit_team()
        self._rigged.start()
        self._began = self._life_began = time.monotonic()
        for at, what in self._nemeses.schedule(seconds):
            self._watch_until(self._began + at)
            self._tell(what)
            self.acted[what] += 1
            getattr(self._nemeses, what)()
        self._watch_until(self._began + seconds)
        self._rigged.end_load()
        # Otherwise the soak would have to wait for debts of minutes. A raised quota releases everybody.
        delete_team(TenantTable(self._rigged.tables))
        self._rigged.set_quotas(_LAST_QUOTA_FACTOR)
        self._tell("the load has ended")
        deadline = time.monotonic() + _DRAIN_SECONDS
        while not self._rigged.is_drained():
            if time.monotonic() > deadline:
                raise AssertionError("\n".join(["the job did not come to rest:", *self._rigged.job.log[-40:]]))
            self._watch_until(time.monotonic() + 1)
        self._rigged.job.stop()

    def _watch_until(self, instant: float) -> None:
        """Start the job again when it has ended, as a service manager does."""
        while True:
            process = self._rigged.job.process
            if process is None or process.poll() is not None:
                self.acted["starts"] += 1
                self._rigged.start(wait=False)
                self._life_began = time.monotonic()
            elif time.monotonic() - self._life_began > _SETTLED_SECONDS:
                held_mb = sum(memory_of(pid).get("VmRSS", 0.0) for pid in tree(process.pid))
                self.memory += [(time.monotonic() - self._began, held_mb)] if held_mb else []
            left = instant - time.monotonic()
            if left <= 0:
                return
            time.sleep(min(left, _STEP_SECONDS))

    def _tell(self, what: str) -> None:
        print(f"{time.monotonic() - self._began:7.1f} s  {what}", flush=True)  # noqa: T201


def main() -> int:
    """Soak, verify and print. Returns 0 if there is no difference."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description="Everything goes wrong, nothing is lost.")
    parser.add_argument("--minutes", type=float, default=1.5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--spare-job", action="store_true", help="never kill the job")
    parser.add_argument("--keep", type=Path, help="a folder for tables, checkpoint and topics, left as they are")
    given = parser.parse_args()
    fetch()
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.keep or Path(temporary)
        (folder / "job").mkdir(parents=True, exist_ok=True)
        with (
            stepped_clock(folder) if COMPILER else nullcontext() as clock,
            EmbeddedBroker(folder / "broker", options=BROKER) as broker,
            nullcontext() if given.keep else small_disk(folder / "job", _DISK_MB) as disk,
            rig("soak", folder / "job", broker.bootstrap_servers) as rigged,
        ):
            rigged.clock = clock
            if given.spare_job:
                rigged.job.overrides["KQUOTA_STREAM__RESTART_LIMIT"] = _ONE_LIFE
            soak = Soak(rigged, Nemeses(rigged, broker, given.seed, disk, given.spare_job))
            soak.run(given.minutes * 60)
            verdict = rigged.verdict(at_least(given.minutes, given.spare_job, clock is not None))
            if verdict.differences:
                print(f"tables, topics and the job's log are kept in {_kept(folder, rigged.job.log)}")  # noqa: T201
    acted = ", ".join(f"{what} {count}" for what, count in sorted(soak.acted.items()))
    lines = [verdict.as_table(), machine_line(), f"{given.minutes:g} minutes: {acted}"]
    lines.append(memory_line(soak.memory, given.minutes * 60))
    lines.append(", ".join(f"{kind} {verdict.count(kind)}" for kind in KINDS))
    print(*lines, sep="\n")  # noqa: T201
    return int(bool(verdict.differences))


def at_least(minutes: float, spare_job: bool, is_stepped: bool) -> dict[str, int]:
    """What the verifier must have compared: so much per minute, and more if the job is never killed.

    A job that is killed every half minute spends most of its time in its starts, and decides little.
    """
    per_minute: dict[str, float] = {**_PER_MINUTE, **(_PER_MINUTE_SPARED if spare_job else {})}
    per_minute["epochs"] = _EPOCHS_PER_MINUTE * is_stepped
    return {check: int(count * minutes) for check, count in per_minute.items()}


def _kept(folder: Path, log: list[str]) -> str:
    """Copy everything that a soak has left, for later inspection. The disk itself is gone when the soak ends."""
    place = Path(tempfile.mkdtemp(prefix="kquota-soak-"))
    shutil.copytree(folder, place, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.sock"))
    (place / "job.log").write_text("\n".join(log), encoding="utf-8")
    return str(place)


def memory_line(memory: Sequence[tuple[float, float]], seconds: float) -> str:
    """The memory after five minutes (or a third of a shorter soak), and that at the end of the load."""
    first_seconds, within_seconds = min(_FIRST_MEMORY_SECONDS, seconds / 3), min(_MEMORY_SPAN_SECONDS, seconds / 6)
    of_two = []
    for around in (first_seconds, seconds):
        near = [held_mb for at, held_mb in memory if abs(at - around) <= within_seconds]
        of_two.append(median(near) if near else nan)
    first_mb, last_mb = of_two
    return (
        f"memory around minute {first_seconds / 60:.3g}: {first_mb:.0f} MB, around minute {seconds / 60:.3g}: "
        f"{last_mb:.0f} MB: {last_mb / first_mb:.3f} of it"
    )


if __name__ == "__main__":
    sys.exit(main())
