"""What a dashboard with one browser costs the job beside it: the time of its micro-batches, with and without.

Stretches with a dashboard, of which a client reads the stream and asks for the view of a client every 5 s, take turns
with stretches without one, in the order A B, B A, A B …, as the job still becomes quicker. The times are those that the
job logs of each micro-batch: from the collection of its usage until its records are on the throttle topic. A stretch is
a minute long: upkeep and roll-ups run in the job once a minute and make the longest batches, so each stretch has one.

    python -m bench.beside [--pairs 3] [--seconds 60] [--clients 10000] [--events 20000]

The target is a difference of 5 % of the median, on a machine that does nothing else.
"""

import argparse
import re
import statistics
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from threading import Event, Thread
from typing import Final

from bench.machine import cpu_seconds, machine_line
from bench.stage import child, dashboard, job
from pipeline.cluster.access import ClusterAccess
from pipeline.cluster.from_settings import wanted_topics
from pipeline.cluster.topics import create_topics
from pipeline.demo.broker import EmbeddedBroker
from pipeline.settings.model import Settings, TablesSettings
from pipeline.tables.audit import local_audit
from pipeline.tables.from_settings import create_tables, open_quota_table
from pipeline.tables.quotas.edit import QuotaChange

_TRIGGER_MS: Final = 500
_WARM_UP_SECONDS: Final = 75
_ASK_EVERY_SECONDS: Final = 5.0
_STEPS: Final = ("collect_ms", "append_ms", "decide_ms", "publish_ms")
_FACT: Final = re.compile(r"(\w+_ms)=(\d+)")


def main() -> None:
    """Measure in turns and print the medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    defaults = (("pairs", 3), ("seconds", 60), ("clients", 10_000), ("events", 20_000), ("warm-up", _WARM_UP_SECONDS))
    for name, default in defaults:
        parser.add_argument(f"--{name}", type=int, default=default)
    asked = parser.parse_args()
    print(machine_line())
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        broker = stack.enter_context(EmbeddedBroker(folder / "broker"))
        settings = Settings(tables=TablesSettings(root=str(folder / "tables")))
        with ClusterAccess(broker.bootstrap_servers).admin() as admin:
            create_topics(admin, wanted_topics(settings))
        create_tables(settings.tables)
        bound = QuotaChange("<default>", "", {"producer_byte_rate": 1e9})
        open_quota_table(settings.tables).alter([bound], local_audit("bench"))
        batches = Batches()
        stack.enter_context(job(folder, broker.bootstrap_servers, _TRIGGER_MS, batches.heard))
        load = (broker.bootstrap_servers, str(asked.events), str(asked.clients), "100")
        stack.enter_context(child([sys.executable, "-m", "bench.load", *load]))
        time.sleep(asked.warm_up)
        stretches: dict[bool, list[list[float]]] = {True: [], False: []}
        cores = []
        for pair in range(asked.pairs):
            for is_beside in (bool(pair % 2), not pair % 2):
                if not is_beside:
                    stretches[False].append(batches.of_next(asked.seconds))
                    continue
                with _looked_at(folder) as pid:
                    before = cpu_seconds(pid)
                    stretches[True].append(batches.of_next(asked.seconds))
                    cores.append((cpu_seconds(pid) - before) / asked.seconds)
    print(f"{asked.events} events a second of {asked.clients} clients, trigger {_TRIGGER_MS} ms")
    _tell(stretches)
    print(f"the dashboard takes {statistics.median(cores):.2f} cores")


def _tell(stretches: dict[bool, list[list[float]]]) -> None:
    count = sum(map(len, stretches[True]))
    print(f"{f'ms of a batch, {len(stretches[True])} stretches, {count} batches':<44}{'p50':>8}{'p95':>8}{'mean':>8}")
    for name, is_beside in (("without a dashboard", False), ("with one and a browser", True)):
        ordered = sorted(one for stretch in stretches[is_beside] for one in stretch)
        figures = (statistics.median(ordered), ordered[int(len(ordered) * 0.95)], statistics.mean(ordered))
        print(f"{name:<44}" + "".join(f"{one:>8.1f}" for one in figures))
    for name, figure in (("medians", statistics.median), ("means", statistics.mean)):
        beside, without = (figure([one for stretch in stretches[kind] for one in stretch]) for kind in (True, False))
        pairs = zip(map(figure, stretches[True]), map(figure, stretches[False]), strict=True)
        told = ", ".join(f"{(first / second - 1) * 100:+.1f}" for first, second in pairs)
        print(f"difference of the {name} {(beside / without - 1) * 100:+.1f} %; of each pair {told} %")


class Batches:
    """The times of micro-batches, from the job's log."""

    def __init__(self) -> None:
        self._times_ms: list[float] = []

    def heard(self, line: str) -> None:
        """Take a line of the log."""
        facts = {name: int(value) for name, value in _FACT.findall(line)}
        if facts.keys() >= set(_STEPS):
            self._times_ms.append(float(sum(facts[step] for step in _STEPS)))

    def of_next(self, seconds: int) -> list[float]:
        """Those that are logged in the next seconds."""
        before = len(self._times_ms)
        time.sleep(seconds)
        return self._times_ms[before:]


@contextmanager
def _looked_at(folder: Path) -> Iterator[int]:
    """A dashboard that one client looks at; yields its process id once it answers."""
    over = Event()
    threads: list[Thread] = []
    with dashboard(str(folder / "tables"), environment={"KQUOTA_RUN_DIR": str(folder)}) as (address, pid):
        try:
            threads = [Thread(target=one, args=(address, over), daemon=True) for one in (_follow, _ask)]
            for thread in threads:
                thread.start()
            time.sleep(5)
            yield pid
        finally:
            over.set()
    for thread in threads:
        thread.join(10)


def _follow(address: str, over: Event) -> None:
    with suppress(OSError), urllib.request.urlopen(f"{address}api/v1/stream", timeout=60) as stream:  # noqa: S310
        while not over.is_set() and stream.readline():
            pass


def _ask(address: str, over: Event) -> None:
    while not over.wait(_ASK_EVERY_SECONDS):
        with suppress(OSError):
            asked = urllib.request.urlopen(f"{address}api/v1/client?user=team-1&client_id=service-1", timeout=60)  # noqa: S310
            asked.read()


if __name__ == "__main__":
    main()
