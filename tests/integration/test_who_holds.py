"""Who holds a client: list, explain, status, page and SQL agree at random instants, and with the brokers themselves.

Two real brokers with the reporter, a job, the sync, and stock clients that know nothing of kquota. At each instant the
tables are kept as they are; they are asked afterwards, with the clock of that instant. What the brokers say themselves
is in their request logs: the throttle time of each answer. Their metric throttle-time is a mean over a minute or more.
"""

import json
import logging
import os
import random
import re
import shutil
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any, Final

import pytest

from bench.stage import Stage
from pipeline.brokers import metering
from pipeline.brokers.native import NativeEntity, NativeQuotas
from pipeline.cluster.connecting import ClusterAccess
from pipeline.dashboard.reader import Feed, TablesReader
from pipeline.dashboard.views import Answers, Query
from pipeline.demo.broker import REQUEST_LOG, BrokerOptions
from pipeline.job.status import signs_of
from pipeline.meter.reporter import REPORTER_PREFIX
from pipeline.settings.model import Settings, TablesSettings
from pipeline.tables.rates import Rates, broker_hold_text
from pipeline.tables.throttles import Held
from schemas.names import USAGE_TOPIC
from tests.deploy.test_sql import VIEWS, statements
from tests.integration.stock_client import StockConsumer, StockWork
from tests.integration.stock_clients import stock_cluster, stock_producers, stock_work, topic_on_each
from tests.pipeline.cli.running import kquota
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)
pytestmark = [
    *(pytest.mark.broker, pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(1_800)),
    pytest.mark.usefixtures("made_reporter"),
]

INSTANTS: Final = int(os.environ.get("INSTANTS", "12"))
"""How many there are; a hundred take a quarter of an hour on an idle machine."""
CLIENTS: Final = (("erp", "etl"), ("web", "reader"), ("hog", ""), ("native", "app"), ("calm", "app"))
"""A producer, a consumer and a user far above their quotas, a client that only the brokers limit, and a free one."""
QUOTAS: Final[Sequence[Mapping[str, Any]]] = (
    {"user": "erp", "client_id": "etl", "producer_byte_rate": 100_000.0},
    {"user": "web", "client_id": "reader", "consumer_byte_rate": 60_000.0},
    {"user": "hog", "client_id": "", "producer_byte_rate": 150_000.0},
    {"user": "calm", "client_id": "app", "producer_byte_rate": 10_000_000.0},
)
_WARM_SECONDS: Final = 45.0
_TOPIC: Final = "data"
_CALM: Final = CLIENTS[-1]
_HOLDS_MS: Final = 2_000
"""From here on a hold of brokers is compared."""
_NEAR_MS: Final = 3_000
"""Usage is by the second, and a hold begins in that of its answer; the newest ones are on their way."""
_MINUTE_MS: Final = 60_000

Client = tuple[str, str]
Holds = Mapping[str, Sequence[tuple[int, int]]]
"""User -> begin and length of what a broker made it wait, in ms."""


def holds_in(request_log: Path) -> Holds:
    """By the broker's own log: every answer has its throttle time, and the broker waits from then on."""
    found: dict[str, list[tuple[int, int]]] = {}
    for line in request_log.read_text("utf-8").splitlines():
        written, begin, rest = line.partition(" DEBUG Completed request:")
        if not begin or '"throttleTimeMs":' not in rest:
            continue
        logged = json.loads(rest.removesuffix(" (kafka.request.logger)"))
        held_ms = (logged["response"] or {}).get("throttleTimeMs", 0)
        if held_ms:
            at_ms = round(datetime.fromisoformat(written.strip("[]")).astimezone().timestamp() * 1_000)
            found.setdefault(logged["principal"].partition(":")[2], []).append((at_ms, held_ms))
    return found


def held_ms(brokers: Sequence[Holds], user: str, as_of_ms: int) -> int:
    """How much of the last minute the broker held a user that held it longest."""
    since_ms = as_of_ms - _MINUTE_MS
    sums = (
        sum(max(min(at_ms + held, as_of_ms) - max(at_ms, since_ms), 0) for at_ms, held in holds.get(user, ()))
        for holds in brokers
    )
    return min(max(sums), _MINUTE_MS)


@dataclass
class Instant:
    """Tables as they were at an instant, and what every answer says of them. Each name must have one value."""

    root: str
    now_ms: int
    said: dict[tuple[Any, ...], dict[str, Any]] = field(default_factory=dict)

    def says(self, who: str, name: tuple[Any, ...], value: Any) -> None:
        self.said.setdefault(name, {})[who] = value

    @property
    def contradictions(self) -> dict[Any, Any]:
        """Names with several values, with who says what."""
        return {
            name: values
            for name, values in self.said.items()
            if any(value != next(iter(values.values())) for value in values.values())
        }

    def value(self, *name: Any) -> Any:
        """What all say."""
        return next(iter(self.said[name].values()))


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _link(source: str, target: str) -> None:
    with suppress(FileNotFoundError):  # cleaned up meanwhile: no version that is kept here has it
        os.link(source, target)


def keep(root: str, to: Path) -> Instant:
    """Keep the tables as they are: first the log of each, then the files that it may name."""
    now_ms = _now_ms()
    for table in (one for one in Path(root).iterdir() if (one / "_delta_log").is_dir()):
        shutil.copytree(table / "_delta_log", to / table.name / "_delta_log", copy_function=_link)
        shutil.copytree(table, to / table.name, copy_function=_link, dirs_exist_ok=True,
                        ignore=shutil.ignore_patterns("_delta_log"))  # fmt: skip
    return Instant(str(to), now_ms)


@contextmanager
def running_clients(folder: Path) -> Iterator[tuple[str, Sequence[Path]]]:
    """Brokers, job, sync and clients, warm; the root of the tables, and the request logs of the brokers."""
    cluster = stock_cluster(folder, 2, [user for user, _ in CLIENTS])
    for broker in cluster.brokers:
        leaves_out = {f"{REPORTER_PREFIX}exclude.users": "ANONYMOUS"}
        broker.options = BrokerOptions(usage_topic=USAGE_TOPIC, settings=leaves_out, java_options=REQUEST_LOG)
    with ExitStack() as stack:
        stack.enter_context(cluster)
        topic_on_each(cluster.brokers, _TOPIC)
        stage = Stage.of(folder / "job", cluster.brokers[0], QUOTAS)
        metering.write(stage.job.settings, metering.planned(stage.job.settings, by="pair"))
        stack.enter_context(stage.running(500))
        stack.enter_context(stage.sync({"KQUOTA_SCOPE": "cluster"}))
        erp, web, hog, native, calm = CLIENTS
        with NativeQuotas(ClusterAccess(stage.servers)) as quotas:
            assert not quotas.alter({NativeEntity.of_row(*native): {"producer_byte_rate": 50_000.0}})
        halves = (0.5, 0.5)
        works = {
            erp: stock_work(cluster, "erp", _TOPIC, (0.7, 0.3), 1e6, 20.0, client_id=erp[1]),
            hog: stock_work(cluster, "hog", _TOPIC, (0.2, 0.8), 5e5, 10.0, client_id="batch"),
            native: stock_work(cluster, "native", _TOPIC, halves, 3e5, 10.0, client_id=native[1]),
            calm: stock_work(cluster, "calm", _TOPIC, halves, 1e5, 10.0, client_id=calm[1]),
        }
        producers = stack.enter_context(stock_producers(works))
        signed_in = stock_work(cluster, "web", _TOPIC, halves, 0.0, 1.0, client_id=web[1]).options
        consumer = StockConsumer(StockWork("consume", _TOPIC, halves, 0.0, 1.0, signed_in), Event())
        stack.callback(consumer.close)
        for producer in producers.values():
            producer.start()
        consumer.start()
        time.sleep(_WARM_SECONDS)
        wait_until(lambda: Rates(stage.root).as_of_ms > 0, "rates")
        yield stage.root, [broker.request_log_path for broker in cluster.brokers]


def ask(instant: Instant, monkeypatch: pytest.MonkeyPatch, explained: Collection[Client]) -> None:
    """What command line and page say, with the clock of that instant; `explain` of these clients."""
    monkeypatch.setattr("pipeline.clock.time.time_ns", lambda: instant.now_ms * 1_000_000)
    settings = Settings(tables=TablesSettings(root=instant.root), run_dir=Path(instant.root) / "run")
    reader = TablesReader(settings, signs_of(settings.run_dir, settings.job, instant.root))
    feed = Feed(reader)
    feed.state = reader.look(instant.now_ms)
    page = Answers(reader, feed, settings).by_path()
    rows = json.loads(kquota("throttles", "list", "-o", "json", "--tables", instant.root).stdout)
    held = Held(row for row in rows if row["decision_id"] is not None)
    status = json.loads(kquota("status", "-o", "json", "--tables", instant.root).stdout)
    instant.says("status", ("held",), (status["held_users"], status["held_clients"]))
    instant.says("list", ("held",), held.counts)
    instant.says("page now", ("holds",), page["/api/v1/summary"](Query())["totals"]["throttled"])
    instant.says("list", ("holds",), sum(row["decision_id"] is not None for row in rows))
    by_brokers = {}
    for client in CLIENTS:
        user, client_id = client
        shown = page["/api/v1/client"](Query(user=user, client_id=client_id))
        ends = [row["throttled_until_ms"] for row in shown["throttled"]]
        by_brokers[client] = shown["held_by_brokers"]
        instant.says("page", ("by kquota", client), max(ends, default=None))
        instant.says("page", ("by brokers", client), shown["held_by_brokers"])
        instant.says("list", ("by kquota", client), held.until_ms(*client))
        of_row = [
            row["held_by_brokers"] for row in rows if row["user"] == user and row["client_id"] in {None, client_id}
        ]
        instant.says("list", ("by brokers", client), next(iter(of_row), None))
        if client not in explained:
            continue
        answer = kquota("throttles", "explain", user, client_id, "-o", "json", "--tables", instant.root)
        if answer.exit_code == 3:
            said = re.search(r"its brokers held it up to \d+ s of the last minute", answer.stderr)
            instant.says("explain", ("by brokers", client), said[0] if said else None)
            continue
        (document,) = json.loads(answer.stdout)
        instant.says("explain", ("by kquota", client), document["held_until_ms"])
        instant.says("explain", ("by brokers", client), document["held_by_brokers"])
        text = kquota("throttles", "explain", user, client_id, "--tables", instant.root).stdout.splitlines()
        instant.says("explain", ("now line", client), text[-1])
        instant.says(
            "page", ("now line", client), page["/api/v1/explain"](Query(user=user, client_id=client_id))["now"]
        )
    instant.says("status", ("clients that brokers hold",), status["broker_held_clients"])
    instant.says("page", ("clients that brokers hold",), sum(text is not None for text in by_brokers.values()))


_VIEWS: Final = ("throttle_log", "throttled_now")


def ask_sql(instant: Instant, spark: "SparkSession") -> None:
    """What the views and the table `rates` say, at that instant."""
    for name in ("throttle_events", "rates"):
        spark.read.format("delta").load(f"{instant.root}/{name}").createOrReplaceTempView(name)
    spark.sql("SELECT '' AS cluster, '' AS user, '' AS client_id, '' AS owner WHERE false").createOrReplaceTempView(
        "client_owners"
    )
    for statement in statements(VIEWS.read_text("utf-8")):
        if any(statement.startswith(f"CREATE OR REPLACE VIEW {name}\n") for name in _VIEWS):
            at_instant = statement.replace("current_timestamp()", f"timestamp_millis({instant.now_ms})")
            spark.sql(at_instant.replace("REPLACE VIEW", "REPLACE TEMP VIEW", 1))
    held = Held(row.asDict() for row in spark.sql("SELECT * FROM throttled_now").collect())
    shares = spark.sql(
        "SELECT user, client_id, max(broker_held_share) AS share, max(as_of_ms) AS as_of_ms FROM rates GROUP BY ALL"
    )
    of_client = {(row.user, row.client_id): row for row in shares.collect()}
    instant.says("sql", ("held",), held.counts)
    for client in CLIENTS:
        row = of_client.get(client)
        is_fresh = row is not None and row.as_of_ms > instant.now_ms - 60_000
        held_seconds = round((row.share or 0.0) * 60) if row is not None and is_fresh else 0
        instant.says("sql", ("by kquota", client), held.until_ms(*client))
        instant.says("sql", ("by brokers", client), broker_hold_text(held_seconds))


def check_brokers(instant: Instant, brokers: Sequence[Holds], found: Counter[str]) -> None:
    """What the brokers say themselves, against the answers, where one of them is more than two seconds."""
    as_of_ms = Rates(instant.root).as_of_ms
    for client in CLIENTS:
        said = re.search(r"\d+", instant.value("by brokers", client) or "0")
        answer_ms, broker_ms = int(said[0]) * 1_000 if said else 0, held_ms(brokers, client[0], as_of_ms)
        if max(answer_ms, broker_ms) > _HOLDS_MS:
            found["compared with brokers"] += 1
            apart = abs(answer_ms - broker_ms)
            found["seconds apart, at most"] = max(found["seconds apart, at most"], round(apart / 1_000))
            assert apart <= _NEAR_MS, f"{client} at {instant.now_ms}: {answer_ms} ms; by its brokers {broker_ms} ms"
        holders = [who for who in ("by kquota", "by brokers") if instant.value(who, client) is not None]
        found[f"held {' and '.join(holders)}" if holders else "not held"] += 1


def test_all_answers_and_the_brokers_agree_on_who_holds_a_client(
    tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw, instants = random.Random(7), []
    with running_clients(tmp_path) as (root, logs):
        for number in range(INSTANTS):
            time.sleep(draw.uniform(1.0, 3.0))
            instants.append(keep(root, tmp_path / f"instant-{number}"))
    log.info("%s instants are kept", INSTANTS)
    brokers = [holds_in(path) for path in logs]
    spark, found = request.getfixturevalue("spark"), Counter[str]()
    for instant in instants:
        ask_sql(instant, spark)
        with monkeypatch.context() as patched:
            ask(instant, patched, draw.sample(CLIENTS, 2))
        assert instant.contradictions == {}, f"at {instant.now_ms}"
        check_brokers(instant, brokers, found)
        found["shared names"] += sum(len(values) > 1 for values in instant.said.values())
        assert instant.value("by brokers", _CALM) is instant.value("by kquota", _CALM) is None, "nothing holds it"
    log.info("%s instants, %s clients: %s", INSTANTS, len(CLIENTS), dict(found))
    assert found["compared with brokers"] > INSTANTS
    assert found["held by brokers"] >= INSTANTS, "of the client that only brokers limit"
    assert found["held by kquota and by brokers"] > INSTANTS
    assert found["shared names"] > 10 * INSTANTS
