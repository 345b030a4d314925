"""A stock client that two brokers share: what their sum is with a mirrored quota, and with the level of the cluster.

    python -m bench.split_client [--loads 3 10] [--seconds 200] [--move 100] [--page docs/enforce.md] [--keep FOLDER]
        [--source counters] [--exporter jmx_prometheus_javaagent-1.0.1.jar]

Two real brokers and, for each load k and each scope, a user with the quota T and one plain kafka-python producer that
wants k · T: nine tenths on one broker and one tenth on the other, after the move the other way round. `kquota quotas
sync` runs once in scope `broker` (every broker gets T) and once in scope `cluster`. No job runs: the bytes that the
brokers have taken are counted at the client, and are stored as rows of `usage` once a second.

With `--source reporter`, `scrapes` or `request-log` usage comes from there, through a real job: reporter → topic →
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
from threading import Event
from typing import Final

import pyarrow as pa

from bench.machine import arguments, machine_line
from bench.pages import table, write_part, write_time_plot
from bench.stage import Stage, child, start_sync, topic_on_each
from pipeline.brokers import metering
from pipeline.clock import wall_ms
from pipeline.cluster.access import ClusterAccess
from pipeline.cluster.topics import create_topics, wanted_topics
from pipeline.demo.broker import BrokerOptions, EmbeddedCluster, plain_sign_in
from pipeline.demo.process import free_ports
from pipeline.demo.stock_client import StockProducer, StockWork
from pipeline.meter.reporter import REPORTER_PREFIX
from pipeline.settings.loading import load_settings
from pipeline.tables.address import table_uri
from pipeline.tables.delta_rs import DeltaRsWriter
from pipeline.tables.from_settings import create_tables, open_quota_table
from pipeline.tables.layout import create_missing
from pipeline.tables.quotas.edit import QuotaChange
from pipeline.tables.quotas.table import QuotaTable, local_audit
from schemas.arrow import conform
from schemas.names import USAGE_TOPIC
from schemas.usage import UsageRow

_JOB: Final = "bench"
_EVERY_MS: Final = 1_000
_TRIGGER_MS: Final = 500
SOURCES: Final = ("counters", "reporter", "scrapes", "request-log")
_RULES: Final = Path("deploy/prometheus/jmx-quotas.yml").absolute()


class UsageRecorder:
    """Turns counters into rows, one for each second, broker and user; a commit each second, as a batch."""

    def __init__(self, root: str) -> None:
        self._writer = DeltaRsWriter(table_uri(root, "usage"), _JOB)
        self._writer.raise_epoch(1)
        self._counters: dict[tuple[str, str], int] = {}
        self._rows: dict[tuple[int, str, str], int] = defaultdict(int)
        self._batch_id = 0
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
        starts_ms, broker_ids, users = zip(*self._rows, strict=True)
        rows = pa.table(
            {
                "sample_start_ms": list(starts_ms),
                "broker_id": list(broker_ids),
                "user": list(users),
                "produced_bytes": list(self._rows.values()),
                "last_event_ms": [min(start_ms + 999, now_ms) for start_ms in starts_ms],
            }
        )
        names = {"cluster": _JOB, "query_id": _JOB, "client_id": "split"}
        numbers = {"batch_id": self._batch_id, "evaluated_at_ms": now_ms, "quota_version": 1, "request_count": 1}
        rows = conform(rows, UsageRow, **names, **numbers)
        self._writer.append(rows, {f"{_JOB}-usage": self._batch_id}, {})
        self._batch_id += 1
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


def users(loads: Sequence[float]) -> dict[tuple[str, float], str]:
    """(scope, load) -> the user of its client."""
    return {(scope, load): f"{scope}-{load:g}" for scope in SCOPES for load in loads}


def measure(folder: Path, loads: Sequence[float], seconds: int, move: int) -> list[SplitRun]:
    who = users(loads)
    cluster = EmbeddedCluster(
        [folder / "broker-1", folder / "broker-2"], {user: f"{user}-secret" for user in who.values()}
    )
    with ExitStack() as stack:
        stack.enter_context(cluster)
        leaders = topic_on_each(cluster.brokers, _TOPIC)
        recorders = {scope: _start_sync(stack, folder / scope, scope, cluster, who) for scope in SCOPES}
        producers = {one: _start_producer(stack, cluster, user, one[1]) for one, user in who.items()}
        return _watch(producers, recorders, who, leaders, seconds, move)


def measure_metered(
    folder: Path, source: str, loads: Sequence[float], seconds: int, move: int, exporter: str = ""
) -> list[SplitRun]:
    """As `measure`, but in scope `cluster` alone, with a job that reads what meters of a kind have sent.

    Args:
        exporter: the jar of jmx_exporter's Java agent, for scrapes.
    """
    who = {("cluster", load): f"cluster-{load:g}" for load in loads}
    cluster = EmbeddedCluster(
        [folder / "broker-1", folder / "broker-2"], {user: f"{user}-secret" for user in who.values()}
    )
    commands = _metered_by(source, cluster, exporter)
    with ExitStack() as stack:
        stack.enter_context(cluster)
        leaders = topic_on_each(cluster.brokers, _TOPIC)
        places = {"kafka": {"bootstrap_servers": cluster.bootstrap_servers}, "tables": {"root": str(folder / "tables")}}
        settings = load_settings(flags=places)
        with ClusterAccess.from_settings(settings.kafka).admin() as admin:
            create_topics(admin, wanted_topics(settings))
        create_tables(settings.tables)
        quotas = [QuotaChange(user, "", {"producer_byte_rate": BOUND}) for user in who.values()]
        open_quota_table(settings.tables).alter(quotas, local_audit("bench"))
        metering.write(settings, metering.plan(settings, enable=True)[0])
        stage = Stage(folder, cluster.brokers[0], settings, settings.tables.root)
        stack.enter_context(stage.job(_TRIGGER_MS))
        start_sync(stack, folder, cluster.bootstrap_servers)
        for command in commands:
            whole = [sys.executable, "-m", "pipeline.cli.main", "meter", *command]
            stack.enter_context(child([*whole, "--bootstrap-server", cluster.bootstrap_servers]))
        producers = {one: _start_producer(stack, cluster, user, one[1]) for one, user in who.items()}
        return _watch(producers, {}, who, leaders, seconds, move)


def _metered_by(source: str, cluster: EmbeddedCluster, exporter: str) -> list[list[str]]:
    """Prepare brokers that are not started yet; returns the meters to start: `kquota meter …`."""
    commands, targets = [], []
    for broker, port in zip(cluster.brokers, free_ports(len(cluster.brokers)), strict=True):
        if source == "reporter":
            leaves_out = {f"{REPORTER_PREFIX}exclude.users": "ANONYMOUS"}
            broker.options = BrokerOptions(usage_topic=USAGE_TOPIC, settings=leaves_out)
        elif source == "request-log":
            broker.options = BrokerOptions(request_log=True)
            own = ("--internal-listener", "PLAINTEXT", "--internal-listener", "CONTROLLER")
            commands.append([source, str(broker.request_log_path), "--broker-id", str(broker.node_id), *own])
        else:
            broker.options = BrokerOptions(java_options=(f"-javaagent:{Path(exporter).absolute()}={port}:{_RULES}",))
            targets.append(f"{broker.node_id}=http://127.0.0.1:{port}/metrics")
    return [*commands, ["prometheus", "--targets", ",".join(targets)]] if targets else commands


def _start_sync(
    stack: ExitStack, folder: Path, scope: str, cluster: EmbeddedCluster, who: Mapping[tuple[str, float], str]
) -> UsageRecorder:
    root = str(folder / "tables")
    create_missing(root)
    quotas = [QuotaChange(user, "", {"producer_byte_rate": BOUND}) for (of, _), user in who.items() if of == scope]
    QuotaTable(root).alter(quotas, local_audit("bench"))
    recorder = UsageRecorder(root)
    start_sync(stack, folder, cluster.bootstrap_servers, {"KQUOTA_SCOPE": scope})
    return recorder


def _start_producer(stack: ExitStack, cluster: EmbeddedCluster, user: str, load: float) -> StockProducer:
    sign_in = plain_sign_in(cluster.sasl_bootstrap_servers, user, f"{user}-secret")
    options = {**sign_in, "client_id": "split"}
    work = StockWork("produce", _TOPIC, SPLIT, load * BOUND, REQUESTS_PER_SECOND, options)
    producer = StockProducer(work, Event())
    stack.callback(producer.close)
    return producer


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
        __doc__, loads=[3.0, 10.0], seconds=200, move=100, page=None, keep=None, source="counters", exporter=""
    )
    if given.source not in SOURCES:
        sys.exit(f"--source {given.source}: give one of {', '.join(SOURCES)}")
    if given.source == "scrapes" and not Path(given.exporter).is_file():
        sys.exit(
            "--source scrapes: give the jar of jmx_exporter's Java agent, --exporter jmx_prometheus_javaagent-1.0.1.jar"
        )
    with tempfile.TemporaryDirectory(prefix="kquota-split-") as folder:
        place, numbers = Path(given.keep or folder), (given.loads, given.seconds, given.move)
        is_counted = given.source == "counters"
        runs = (
            measure(place, *numbers) if is_counted else measure_metered(place, given.source, *numbers, given.exporter)
        )
    text = f"{markdown(runs)}\n\n{machine_line()}"
    print(text)
    if given.page:
        write_page(Path(given.page), text, runs, given.source)


if __name__ == "__main__":
    main()
