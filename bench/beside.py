"""What a dashboard with one browser costs the job beside it: the time of its micro-batches, with and without.

Stretches with a dashboard, of which a client reads the stream and asks for the view of a client every 5 s, take turns
with stretches without one, in the order A B, B A, A B …, as the job still becomes quicker. The times are those that the
job logs of each micro-batch: from the collection of its usage until its records are on the throttle topic. A stretch is
a minute long: upkeep and roll-ups run in the job once a minute and make the longest batches, so each stretch has one.

    python -m bench.beside [--pairs 3] [--seconds 60] [--clients 10000] [--events 20000]

The target is a difference of 5 % of the median, on a machine that does nothing else.
"""

import statistics
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from threading import Event, Thread
from typing import Final

from bench.machine import arguments, cpu_seconds
from bench.stage import BatchLog, Stage, bound, dashboard, staged

_TRIGGER_MS: Final = 500
_ASK_EVERY_SECONDS: Final = 5.0


def main() -> None:
    asked = arguments(__doc__, pairs=3, seconds=60, clients=10_000, events=20_000, warm_up=75)
    with ExitStack() as stack:
        stage = stack.enter_context(staged([bound("<default>", 1e9)]))
        log = BatchLog()
        stack.enter_context(stage.job(_TRIGGER_MS, log.heard))
        stack.enter_context(stage.load(asked.events, asked.clients, 100))
        time.sleep(asked.warm_up)
        stretches: dict[bool, list[list[float]]] = {True: [], False: []}
        cores = []
        for pair in range(asked.pairs):
            for is_beside in (bool(pair % 2), not pair % 2):
                if not is_beside:
                    stretches[False].append([float(batch["batch_ms"]) for batch in log.of_next(asked.seconds)])
                    continue
                with _looked_at(stage) as pid:
                    before = cpu_seconds(pid)
                    stretches[True].append([float(batch["batch_ms"]) for batch in log.of_next(asked.seconds)])
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


@contextmanager
def _looked_at(stage: Stage) -> Iterator[int]:
    """A dashboard that one client looks at; yields its process id once it answers."""
    over = Event()
    threads: list[Thread] = []
    with dashboard(stage.root, environment={"KQUOTA_RUN_DIR": str(stage.folder)}) as (address, pid):
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
