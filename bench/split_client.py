"""A stock client that two brokers share: what their sum is with a mirrored quota, and with the level of the cluster.

    python -m bench.split_client [--loads 3 10] [--seconds 200] [--move 100] [--page docs/enforce.md] [--keep FOLDER]
        [--source counters] [--exporter jmx_prometheus_javaagent-1.0.1.jar]

Two real brokers and, for each load k and each scope, a user with the quota T and one plain kafka-python producer that
wants k · T: nine tenths on one broker and one tenth on the other, after the move the other way round. `kquota quotas
sync` runs once in scope `broker` (every broker gets T) and once in scope `cluster`. No job runs: the bytes that the
brokers have taken are counted at the client, and are stored as rows of `usage` once a second.

With `--source reporter` or `scrapes` usage comes from there, through a real job: reporter → topic →
job → tables → sync. Then all clients are in scope `cluster`, and brokers measure them because of `kquota meter enable`.

All of them run at the same time. The sum over both brokers is divided by T.
"""

import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.machine import arguments, machine_line
from bench.pages import table, write_part, write_time_plot
from bench.stage import KQUOTA, Stage, bound, child, stock_cluster, stock_producers, stock_work, topic_on_each
from pipeline.brokers import metering
from pipeline.clock import wall_ms
from pipeline.demo.broker import BrokerOptions, EmbeddedCluster
from pipeline.demo.process import free_ports
from pipeline.demo.stock_client import StockProducer
from pipeline.meter.reporter import REPORTER_PREFIX
from schemas.names import USAGE_TOPIC
from tests.pipeline.sync.usage_table import UsageTable

_EVERY_MS: Final = 1_000
_TRIGGER_MS: Final = 500
SOURCES: Final = ("counters", "reporter", "scrapes")
_RULES: Final = Path("deploy/prometheus/jmx-quotas.yml").absolute()


class UsageRecorder:
    """Turns counters into rows, one for each second, broker and user; a commit each second, as a batch."""

    def __init__(self, root: str) -> None:
        self._table = UsageTable(root)
        self._counters: dict[tuple[str, str], int] = {}
        self._rows: dict[tuple[int, str, str], int] = defaultdict(int)
        self._due_ms = 0

    def saw(self, broker_id: str, user: str, total_bytes: int) -> None:
        more = total_bytes - self._counters.get((broker_id, user), 0)
        if more:
            self._counters[broker_id, user] = total_bytes
            self._rows[wall_ms() // 1_000 * 1_000, broker_id, user] += more

    def store(self) -> None:
        """Append what was seen since the last commit, if that is a second ago."""
        now_ms = wall_ms()
        if now_ms < self._due_ms or not self._rows:
            return
        self._due_ms = now_ms + _EVERY_MS
        used = [
            {
                "sample_start_ms": start_ms,
                "last_event_ms": min(start_ms + 999, now_ms),
                "broker_id": broker_id,
                "user": user,
                "produced_bytes": taken_bytes,
            }
            for (start_ms, broker_id, user), taken_bytes in self._rows.items()
        ]
        self._table.append(now_ms, *used)
        self._rows.clear()


SCOPES: Final = {"broker": "mirror", "cluster": "cluster"}
"""The scope of the sync, and the name of its line."""

WINDOW_SECONDS: Final = 50
SETTLED_SECONDS: Final = 40
"""As docs/broker-levels.md judges a level: each 50 s from 40 s after the start or the move on."""

_SHORT_SECONDS: Final = 30
_SHOWN_SECONDS: Final = 10
_MARKS: Final = {
    source: (f"<!-- split by {source}: `python -m bench split_client --source {source}` -->", f"<!-- {source} end -->")
    for source in SOURCES
} | {"counters": ("<!-- split: written by `python -m bench split_client` -->", "<!-- split end -->")}
_PLOT: Final = "split-client.svg"


@dataclass(frozen=True, slots=True)
class SplitRun:
    """One client."""

    scope: str  # of the sync
    load: float  # k
    sums: Sequence[float]  # for each second what both brokers took together, divided by T
    move: int  # the second of the move

    def means(self, first: int, end: int, seconds: int) -> list[float]:
        """The means over so many seconds, each second anew, that begin at `first` or later and end at `end`."""
        return [sum(self.sums[last - seconds : last]) / seconds for last in range(first + seconds, end + 1)]

    @property
    def all_means(self) -> list[float]:
        """The means of 30 s from the start to the end."""
        return self.means(0, len(self.sums), _SHORT_SECONDS)

    def settled_means(self, seconds: int = WINDOW_SECONDS) -> list[float]:
        """Those that begin 40 s after the start or the move, or later, and have no move in them."""
        before = self.means(SETTLED_SECONDS, self.move, seconds)
        return [*before, *self.means(self.move + SETTLED_SECONDS, len(self.sums), seconds)]


def markdown(runs: Sequence[SplitRun]) -> str:
    """A row for each client: the highest mean of 30 s, and the means of 30 and 50 s once it has settled."""
    rows = []
    for run in sorted(runs, key=lambda run: run.load):
        settled = [run.settled_means(seconds) for seconds in (_SHORT_SECONDS, WINDOW_SECONDS)]
        spans = [f"{min(means):.2f}–{max(means):.2f}" if means else "" for means in settled]
        rows.append([f"{run.load:g} · T", SCOPES[run.scope], f"{max(run.all_means):.2f}", *spans])
    heads = (f"each {_SHORT_SECONDS} s from {SETTLED_SECONDS} s after start or move on", f"each {WINDOW_SECONDS} s")
    return table(["wants", "scope", f"highest {_SHORT_SECONDS} s", *heads], rows)


def write_page(page: Path, text: str, runs: Sequence[SplitRun], source: str = "counters") -> None:
    """Put the text into a page, between the marks of its source; of mirror and level also write a plot."""
    if source == "counters":
        _write_plot(page.with_name(_PLOT), runs)
        text = f"![The sum of both brokers over time]({_PLOT})\n\n{text}"
    write_part(page, *_MARKS[source], text)


def _write_plot(path: Path, runs: Sequence[SplitRun]) -> None:
    """A panel for each load, a line for each scope: the mean of the last ten seconds."""
    panels: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for run in sorted(runs, key=lambda run: run.load):
        means = run.means(0, len(run.sums), _SHOWN_SECONDS)
        line = [(float(end), mean) for end, mean in enumerate(means, _SHOWN_SECONDS)]
        panels.setdefault(f"the client wants {run.load:g} · T", {})[SCOPES[run.scope]] = line
    title = "A stock client on two brokers, 90/10 and then 10/90: their sum / T, mean of the last 10 s"
    write_time_plot(path, title, ("s", "sum over the brokers / T"), panels, level=1.0, instants=[runs[0].move])


BOUND: Final = 200_000.0
REQUESTS_PER_SECOND: Final = 40.0
SPLIT: Final = (0.9, 0.1)
_LOOK_SECONDS: Final = 0.2
_STOP_SECONDS: Final = 5.0
_TOPIC: Final = "split"


def measure(
    folder: Path, loads: Sequence[float], seconds: int, move: int, source: str = "counters", exporter: str = ""
) -> list[SplitRun]:
    """With counters in each scope; otherwise in `cluster` alone, with a job that reads what meters of a kind have sent.

    `exporter` is the jar of jmx_exporter's Java agent, for scrapes.
    """
    is_counted = source == "counters"
    who = {(scope, load): f"{scope}-{load:g}" for scope in SCOPES if is_counted or scope == "cluster" for load in loads}
    cluster = stock_cluster(folder, 2, who.values())
    meters = [] if is_counted else _metered_by(source, cluster, exporter)
    with ExitStack() as stack:
        stack.enter_context(cluster)
        leaders = topic_on_each(cluster.brokers, _TOPIC)
        recorders = {}
        for scope in dict.fromkeys(scope for scope, _ in who):
            quotas = [bound(user, BOUND) for (of, _), user in who.items() if of == scope]
            stage = Stage.of(folder / scope, cluster.brokers[0], quotas)
            if is_counted:
                recorders[scope] = UsageRecorder(stage.root)
            else:
                metering.write(stage.settings, metering.planned(stage.settings, by="pair")[0])
                stack.enter_context(stage.job(_TRIGGER_MS))
            stack.enter_context(stage.sync({"KQUOTA_SCOPE": scope}))
        for command in meters:
            stack.enter_context(child([*KQUOTA, "meter", *command, "--bootstrap-server", cluster.bootstrap_servers]))
        works = {
            one: stock_work(cluster, user, _TOPIC, SPLIT, one[1] * BOUND, REQUESTS_PER_SECOND)
            for one, user in who.items()
        }
        producers = stack.enter_context(stock_producers(works))
        return _watch(producers, recorders, who, leaders, seconds, move)


def _metered_by(source: str, cluster: EmbeddedCluster, exporter: str) -> list[list[str]]:
    """Prepare brokers that are not started yet; returns the meters to start: `kquota meter …`."""
    targets = []
    for broker, port in zip(cluster.brokers, free_ports(len(cluster.brokers)), strict=True):
        if source == "reporter":
            leaves_out = {f"{REPORTER_PREFIX}exclude.users": "ANONYMOUS"}
            broker.options = BrokerOptions(usage_topic=USAGE_TOPIC, settings=leaves_out)
        else:
            broker.options = BrokerOptions(java_options=(f"-javaagent:{Path(exporter).absolute()}={port}:{_RULES}",))
            targets.append(f"{broker.node_id}=http://127.0.0.1:{port}/metrics")
    return [["prometheus", "--targets", ",".join(targets)]] if targets else []


def _watch(
    producers: Mapping[tuple[str, float], StockProducer],
    recorders: Mapping[str, UsageRecorder],
    who: Mapping[tuple[str, float], str],
    leaders: Sequence[str],
    seconds: int,
    move: int,
) -> list[SplitRun]:
    totals: dict[tuple[str, float], list[float]] = {one: [] for one in producers}
    time.sleep(3 * _STOP_SECONDS)  # the syncs start meanwhile, and write their first values
    for producer in producers.values():
        producer.start()
    began = time.monotonic()
    while any(len(seen) < seconds for seen in totals.values()):
        elapsed = time.monotonic() - began
        for (scope, load), producer in producers.items():
            if elapsed >= move:
                producer.shares = SPLIT[::-1]
            for broker_id, sent_bytes in zip(leaders, producer.sent_bytes, strict=True):
                if scope in recorders:
                    recorders[scope].saw(broker_id, who[scope, load], sent_bytes)
            if elapsed >= len(totals[scope, load]) + 1:
                totals[scope, load].append(float(sum(producer.sent_bytes)))
        for recorder in recorders.values():
            recorder.store()
        time.sleep(_LOOK_SECONDS)
    return [SplitRun(scope, load, _sums(totals[scope, load]), move) for scope, load in producers]


def _sums(totals: Sequence[float]) -> list[float]:
    return [(after - before) / BOUND for before, after in zip([0.0, *totals[:-1]], totals, strict=True)]


def main() -> None:
    given = arguments(
        __doc__, loads=[3.0, 10.0], seconds=200, move=100, page=None, keep=None, source=SOURCES, exporter=""
    )
    if given.source == "scrapes" and not Path(given.exporter).is_file():
        sys.exit(
            "--source scrapes: give the jar of jmx_exporter's Java agent, --exporter jmx_prometheus_javaagent-1.0.1.jar"
        )
    with tempfile.TemporaryDirectory(prefix="kquota-split-") as folder:
        place = Path(given.keep or folder)
        runs = measure(place, given.loads, given.seconds, given.move, given.source, given.exporter)
    text = f"{markdown(runs)}\n\n{machine_line()}"
    print(text)
    if given.page:
        write_page(Path(given.page), text, runs, given.source)


if __name__ == "__main__":
    main()
