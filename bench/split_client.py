"""A stock client that two brokers share: what their sum is with a mirrored quota, and with the level of the cluster.

    python -m bench.split_client [--loads 3 10] [--seconds 200] [--write]

Two real brokers and, for each load k and each scope, a user with the quota T and one plain kafka-python producer that
wants k · T: nine tenths on one broker and one tenth on the other, after half of the time the other way round. `kquota
quotas sync` runs once in scope `broker` (every broker gets T, as with Kafka alone) and once in scope `cluster`, where
usage goes the whole way: reporter → topic → job → tables → sync. All of them run at the same time. The sum over both
brokers, counted at the client, is divided by T. `--write` puts the table into docs/enforce.md.
"""

import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final

from bench.machine import arguments, machine_line
from bench.pages import table, write_part
from bench.stage import Stage, bound
from pipeline.brokers import metering
from pipeline.demo.broker import BrokerOptions
from pipeline.meter.reporter import REPORTER_PREFIX
from schemas.names import USAGE_TOPIC
from tests.integration.stock_clients import stock_cluster, stock_producers, stock_work, topic_on_each

SCOPES: Final = {"broker": "mirror", "cluster": "cluster"}
"""The scope of the sync, and its name in the table."""
WINDOW_SECONDS: Final = 50
SETTLED_SECONDS: Final = 40
"""What is judged: each 50 s from 40 s after the start or the move on."""
BOUND: Final = 200_000.0
REQUESTS_PER_SECOND: Final = 40.0
SPLIT: Final = (0.9, 0.1)
PAGE: Final = Path(__file__).parents[1] / "docs" / "enforce.md"
MARKS: Final = ("<!-- split: written by `python -m bench split_client` -->", "<!-- split end -->")
_SHORT_SECONDS: Final = 30
_TRIGGER_MS: Final = 500
_START_SECONDS: Final = 15.0
_TOPIC: Final = "split"


@dataclass(frozen=True, slots=True)
class SplitRun:
    """One client."""

    scope: str  # of the sync
    load: float  # k
    sums: Sequence[float]  # for each second what both brokers took together, divided by T; the move is in the middle

    def means(self, first: int, end: int, seconds: int) -> list[float]:
        """The means over that many seconds, each second anew, that begin at `first` or later and end at `end`."""
        return [sum(self.sums[last - seconds : last]) / seconds for last in range(first + seconds, end + 1)]

    @property
    def all_means(self) -> list[float]:
        """The means of 30 s from the start to the end."""
        return self.means(0, len(self.sums), _SHORT_SECONDS)

    @property
    def settled_means(self) -> list[float]:
        """The means of 50 s without a move in them that begin at least 40 s after the start or the move."""
        move, end = len(self.sums) // 2, len(self.sums)
        before = self.means(SETTLED_SECONDS, move, WINDOW_SECONDS)
        return [*before, *self.means(move + SETTLED_SECONDS, end, WINDOW_SECONDS)]


def markdown(runs: Sequence[SplitRun]) -> str:
    """A row for each client: the highest mean of 30 s, and the means of 50 s once it has settled."""
    rows = []
    for run in sorted(runs, key=lambda run: run.load):
        settled = run.settled_means
        span = f"{min(settled):.2f}–{max(settled):.2f}" if settled else ""
        rows.append([f"{run.load:g} · T", SCOPES[run.scope], f"{max(run.all_means):.2f}", span])
    each = f"each {WINDOW_SECONDS} s from {SETTLED_SECONDS} s after start or move on"
    return table(["wants", "scope", f"highest {_SHORT_SECONDS} s", each], rows)


def measure(folder: Path, loads: Sequence[float], seconds: int) -> list[SplitRun]:
    who = {(scope, load): f"{scope}-{load:g}" for scope in SCOPES for load in loads}
    cluster = stock_cluster(folder, 2, who.values())
    for broker in cluster.brokers:
        leaves_out = {f"{REPORTER_PREFIX}exclude.users": "ANONYMOUS"}
        broker.options = BrokerOptions(usage_topic=USAGE_TOPIC, settings=leaves_out)
    with ExitStack() as stack:
        stack.enter_context(cluster)
        topic_on_each(cluster.brokers, _TOPIC)
        for scope in SCOPES:
            quotas = [bound(user, BOUND) for (of, _), user in who.items() if of == scope]
            stage = Stage.of(folder / scope, cluster.brokers[0], quotas)
            if scope == "cluster":
                metering.write(stage.job.settings, metering.planned(stage.job.settings, by="pair"))
                stack.enter_context(stage.running(_TRIGGER_MS))
            stack.enter_context(stage.sync({"KQUOTA_SCOPE": scope}))
        works = {
            one: stock_work(cluster, user, _TOPIC, SPLIT, one[1] * BOUND, REQUESTS_PER_SECOND)
            for one, user in who.items()
        }
        producers = stack.enter_context(stock_producers(works))
        totals: dict[tuple[str, float], list[float]] = {one: [0.0] for one in producers}
        time.sleep(_START_SECONDS)  # the syncs start meanwhile, and write their first values
        for producer in producers.values():
            producer.start()
        began = time.monotonic()
        for second in range(1, seconds + 1):
            time.sleep(max(began + second - time.monotonic(), 0.0))
            for one, producer in producers.items():
                totals[one].append(float(sum(producer.sent_bytes)))
                if second == seconds // 2:
                    producer.shares = SPLIT[::-1]
    return [
        SplitRun(*one, [(after - before) / BOUND for before, after in pairwise(counted)])
        for one, counted in totals.items()
    ]


def main() -> None:
    given = arguments(__doc__, loads=[3.0, 10.0], seconds=200, write=False)
    with tempfile.TemporaryDirectory(prefix="kquota-split-", ignore_cleanup_errors=True) as folder:
        runs = measure(Path(folder), given.loads, given.seconds)
    print(markdown(runs))
    if given.write:
        write_part(PAGE, *MARKS, f"{markdown(runs)}\n\n{machine_line()}")


if __name__ == "__main__":
    main()
