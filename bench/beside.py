"""What a dashboard with one browser costs the job beside it: the time of its micro-batches, with and without.

Stretches of a minute with a dashboard, of which a client reads the stream and asks for the view of a client every 5 s,
take turns with stretches without one. The times are those that the job stores: from the collection of a batch to the
commit of its row of `batches`.

    python -m bench.beside [--pairs 5] [--seconds 60] [--clients 10000] [--events 20000]

The target is a difference of 5 % of the median, on a machine that does nothing else.
"""

import argparse
import json
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

from deltalake import DeltaTable

from bench.cpu import cpu_seconds
from bench.machine import machine_line
from bench.stage import child, dashboard, job
from pipeline.cluster.access import ClusterAccess
from pipeline.cluster.from_settings import wanted_topics
from pipeline.cluster.topics import create_topics
from pipeline.demo.broker import EmbeddedBroker
from pipeline.settings.model import Settings, TablesSettings
from pipeline.tables.append_guard import parse_commit_note
from pipeline.tables.audit import local_audit
from pipeline.tables.from_settings import create_tables, open_quota_table
from pipeline.tables.quotas.edit import QuotaChange
from pipeline.tables.reader import read_table

_TRIGGER_MS: Final = 500
_WARM_UP_SECONDS: Final = 120
_ASK_EVERY_SECONDS: Final = 5.0


def main() -> None:
    """Measure in turns and print the medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    defaults = (("pairs", 5), ("seconds", 60), ("clients", 10_000), ("events", 20_000), ("warm-up", _WARM_UP_SECONDS))
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
        stack.enter_context(job(folder, broker.bootstrap_servers, _TRIGGER_MS, lambda _: None))
        load = (broker.bootstrap_servers, str(asked.events), str(asked.clients), "100")
        stack.enter_context(child([sys.executable, "-m", "bench.load", *load]))
        time.sleep(asked.warm_up)
        stretches: dict[bool, list[float]] = {True: [], False: []}
        cores = []
        for _ in range(asked.pairs):
            stretches[False].append(_stretch(folder, asked.seconds))
            with _looked_at(folder) as pid:
                before = cpu_seconds(pid)
                stretches[True].append(_stretch(folder, asked.seconds))
                cores.append((cpu_seconds(pid) - before) / asked.seconds)
    without, beside = (statistics.median(stretches[one]) for one in (False, True))
    print(f"{asked.events} events a second of {asked.clients} clients, trigger {_TRIGGER_MS} ms")
    print(f"{f'ms of a batch, medians of {asked.pairs} stretches':<44}{'least':>8}{'median':>8}{'most':>8}")
    for name, found in (("without a dashboard", stretches[False]), ("with one and a browser", stretches[True])):
        print(f"{name:<44}" + "".join(f"{one:>8.0f}" for one in (min(found), statistics.median(found), max(found))))
    print(f"difference {(beside / without - 1) * 100:+.1f} %; the dashboard takes {statistics.median(cores):.2f} cores")


def _stretch(folder: Path, seconds: int) -> float:
    """The median time of the batches of the next seconds, in ms."""
    since_ms = time.time() * 1_000
    time.sleep(seconds)
    tables = folder / "tables"
    rows = read_table(
        str(tables / "batches"), ["batch_id", "processed_at_ms"], [("evaluated_at_ms", ">=", since_ms - 10_000)]
    )
    collected_ms = dict(zip(rows["batch_id"].to_pylist(), rows["processed_at_ms"].to_pylist(), strict=True))
    times_ms: list[float] = []
    for commit in DeltaTable(tables / "batches").history(2_000):
        note = parse_commit_note(commit.get("userMetadata"))
        if note is None or commit["timestamp"] < since_ms:
            continue
        at_ms = collected_ms.get(max(map(int, json.loads(note["versions"]).values())))
        if at_ms is not None and at_ms >= since_ms:
            times_ms.append(float(commit["timestamp"] - at_ms))
    return statistics.median(times_ms)


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
