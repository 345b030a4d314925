"""The dashboard's API over 10 000 clients and a week of minutes: the time of each view, and the server's memory.

The tables are those of `bench.week`, after a round of upkeep. The server is `kquota dashboard` in a process of its own;
meanwhile another process runs a micro-batch every half second, and a round of upkeep every minute, as the job does.
Requests come one after the other.

    python -m bench.views [--clients 10000] [--days 7] [--requests 40]

Targets: p95 200 ms for every view, 200 MB of memory at most.
"""

import argparse
import random
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final
from urllib.error import URLError

from bench.cpu import cpu_seconds
from bench.machine import machine_line
from bench.stage import dashboard
from bench.week import HELD, TRIGGER_MS, USERS, Week

_UPKEEP_SECONDS: Final = 60.0
_RANGES: Final = ("15m", "1h", "6h", "24h", "7d")


def main() -> None:
    """Make the tables, ask, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=10_000)
    parser.add_argument("--days", type=int, default=7)
    parser.add_argument("--requests", type=int, default=40)
    asked = parser.parse_args()
    print(machine_line())
    with (
        tempfile.TemporaryDirectory() as folder,
        _going_on(Path(folder), asked.clients, asked.days) as root,
        _ready_dashboard(root) as (address, pid),
    ):
        _ask_all(address, pid, asked.clients, asked.requests)


def _ask_all(address: str, pid: int, clients: int, requests: int) -> None:
    print(f"memory of the server before the first request: {_memory_mb(pid)['VmHWM']:.0f} MB at most")
    print(f"{f'ms, of {requests} requests':<24}{'p50':>8}{'p95':>8}{'most':>8}{'CPU':>8}{'bytes':>10}")
    for name, path in _views(clients).items():
        before = cpu_seconds(pid)
        times_ms, size = [], 0
        for _ in range(requests):
            began = time.perf_counter()
            with urllib.request.urlopen(f"{address}api/v1/{path()}", timeout=60) as answer:  # noqa: S310 - our server
                size = len(answer.read())
            times_ms.append((time.perf_counter() - began) * 1_000)
        times_ms.sort()
        cpu_ms = (cpu_seconds(pid) - before) / requests * 1_000
        figures = (times_ms[requests // 2], times_ms[min(int(requests * 0.95), requests - 1)], times_ms[-1], cpu_ms)
        print(f"{name:<24}" + "".join(f"{figure:>8.0f}" for figure in figures) + f"{size:>10}", flush=True)
    memory = _memory_mb(pid)
    print(
        f"memory of the server: {memory['VmHWM']:.0f} MB at most, {memory['VmRSS']:.0f} MB at the end, of which "
        f"{memory['RssFile']:.0f} MB are pages of files: the code of its libraries"
    )


def _views(clients: int) -> dict[str, Callable[[], str]]:
    """Name -> makes the path of a request."""
    chosen = random.Random(1)

    def client(most: int) -> str:
        number = chosen.randrange(most)
        return f"user=team-{number % USERS:03}&client_id=service-{number:05}"

    views: dict[str, Callable[[], str]] = {name: lambda name=name: name for name in ("summary", "throttles", "events")}  # type: ignore[misc]
    for span in _RANGES:
        views[f"client, {span}"] = lambda span=span: f"client?{client(clients)}&since={span}"  # type: ignore[misc]
        views[f"held client, {span}"] = lambda span=span: f"client?{client(HELD)}&since={span}"  # type: ignore[misc]
    views["explain"] = lambda: f"explain?{client(HELD)}"
    views["quotas"] = lambda: "quotas"
    views["quotas, search"] = lambda: "quotas?search=team-1"
    views["quotas/history"] = lambda: "quotas/history"
    views["pipeline"] = lambda: "pipeline"
    views["dead_letters"] = lambda: "dead_letters"
    return views


@contextmanager
def _going_on(folder: Path, clients: int, days: int) -> Iterator[str]:
    """The root of the tables, once they are made. The job goes on in a process of its own."""
    ours, its = get_context("spawn").Pipe()
    job = get_context("spawn").Process(target=_run_job, args=(folder, clients, days, its))
    job.start()
    try:
        root, told = ours.recv()
        print(told, flush=True)
        yield root
    finally:
        ours.send("over")
        job.join()


def _run_job(folder: Path, clients: int, days: int, other: "Connection[object, object]") -> None:
    began = time.perf_counter()
    week = Week(folder, clients, days, time.time_ns() // 1_000_000)
    made_seconds = time.perf_counter() - began
    week.keep_up()
    kept_up_seconds = time.perf_counter() - began - made_seconds
    told = f"{clients} clients, {week.rows} rows of usage_by_minute; made in {made_seconds:.0f} s, "
    other.send((week.root, f"{told}one round of upkeep {kept_up_seconds:.0f} s"))
    next_round = time.monotonic() + _UPKEEP_SECONDS
    while not other.poll(TRIGGER_MS / 1_000):
        week.step(time.time_ns() // 1_000_000)
        if time.monotonic() >= next_round:
            week.keep_up()
            next_round = time.monotonic() + _UPKEEP_SECONDS


@contextmanager
def _ready_dashboard(root: str) -> Iterator[tuple[str, int]]:
    """Its address and process id, once the tables are read."""
    with dashboard(root) as (address, pid):
        while not _is_ready(address):
            time.sleep(0.1)
        yield address, pid


def _is_ready(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"{address}readyz", timeout=60) as answer:  # noqa: S310 - our server
            return bool(answer.status == 200)
    except URLError:
        return False


def _memory_mb(pid: int) -> dict[str, float]:
    """What a process holds, by the kernel's names; `VmHWM` is the most it has held."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    told = (line.partition(":") for line in lines)
    return {name: int(rest.split()[0]) * 1_024 / 1e6 for name, _, rest in told if "kB" in rest}


if __name__ == "__main__":
    main()
