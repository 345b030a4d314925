"""The dashboard's views with 10 000 clients, while the job runs: the time of each, and the server's memory.

A real broker, load and job run for some minutes. Some clients are far above their quota, and held. Then each view is
asked for, one request after the other.

    python -m bench.views [--clients 10000] [--events-per-second 2000] [--minutes 15] [--requests 40]

Targets: p95 1 s for every view, 400 MB of memory at most.
"""

import random
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from bench.machine import arguments, memory_of
from bench.pages import percentiles, row, table
from bench.stage import KQUOTA, bound, child, staged
from tests.waiting import wait_until

HELD: Final = 30
TRIGGER_MS: Final = 500
_EVENTS_PER_MESSAGE: Final = 100
VIEWS: Final = {
    **{name: name for name in ("summary", "clients", "quotas", "quotas/history", "pipeline")},
    **{"client": "client?{client}", "held client": "client?{held}", "explain": "explain?{held}"},
    **{"clients, search": "clients?search=client-1", "quotas, search": "quotas?search=user-1"},
}
"""Name -> path of a request; {client} is any client, {held} one that is held."""


def main() -> None:
    asked = arguments(__doc__, clients=10_000, events_per_second=2_000, minutes=15.0, requests=40)
    quotas = [bound("<default>", 1e9), *(bound(f"user-{number}", 100.0, f"client-{number}") for number in range(HELD))]
    with (
        staged(quotas) as stage,
        stage.load(asked.events_per_second, asked.clients, _EVENTS_PER_MESSAGE),
        stage.running(TRIGGER_MS),
        dashboard(stage.root) as (address, pid),
    ):
        time.sleep(60 * asked.minutes)
        print(table([f"ms, {asked.requests} requests", "p50", "p95", "most", "bytes"]))
        draw = random.Random(1)
        for name, path in VIEWS.items():
            paths = (
                path.format(client=_client(draw.randrange(asked.clients)), held=_client(draw.randrange(HELD)))
                for _ in range(asked.requests)
            )
            times_ms, sizes = zip(*(answer(f"{address}api/v1/{one}") for one in paths), strict=True)
            print(row([name, *percentiles(times_ms, (50, 95, 100)), max(sizes)]), flush=True)
        print(f"\nmemory of the server: {memory_of(pid)['VmHWM']:.0f} MB at most")


def _client(number: int) -> str:
    return f"user=user-{number % 1000}&client_id=client-{number}"


def answer(url: str) -> tuple[float, int]:
    """The milliseconds of a request, and the bytes of its answer."""
    began = time.perf_counter()
    with urllib.request.urlopen(url, timeout=60) as answered:  # noqa: S310 - ours
        size = len(answered.read())
    return (time.perf_counter() - began) * 1_000, size


@contextmanager
def dashboard(tables: str) -> Iterator[tuple[str, int]]:
    """`kquota dashboard` on a free port, when it has read the tables; the block has its address and process id."""
    with child([*KQUOTA, "dashboard", "--port", "0", "--tables", tables], subprocess.PIPE) as started:
        told = started.stdout.readline().decode() if started.stdout else ""
        if not told.startswith("dashboard: http"):
            sys.exit(f"the dashboard did not start: {told}")
        address = told.split()[1]

        def is_ready() -> bool:
            try:
                return answer(f"{address}readyz")[1] >= 0
            except OSError:
                return False

        wait_until(is_ready, "the dashboard to have read the tables")
        yield address, started.pid


if __name__ == "__main__":
    main()
