"""Stock clients of one broker while a quota is raised and cut in the Delta table: what the broker makes of it.

One real broker and `kquota quotas sync` as its own process. Four quiet kafka-python producers far below their quotas
(of a user, of a pair, and two of the default user), and two offenders: one of kafka-python that wants 10 · T, and one
of Kafka's own Java client that sends as fast as it can. None of them knows of kquota. The bytes of an offender are the
end of its log times the size of a record.
"""

import io
import os
import subprocess
import time
from collections import defaultdict
from collections.abc import Mapping
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread
from typing import Any, Final

import pytest
from kafka import KafkaConsumer, TopicPartition

from bench.stage import Stage, bound
from pipeline.brokers.native import NativeEntity, NativeQuotas
from pipeline.cluster.connecting import ClusterAccess
from pipeline.demo.broker import EmbeddedBroker
from pipeline.jvm.jars import broker_classpath, fetch
from pipeline.jvm.java import Java, find_jdk
from pipeline.process import spawn, terminate
from pipeline.tables.quotas.edit import QuotaChange
from pipeline.tables.quotas.table import QuotaTable, local_audit
from quota.entity import DEFAULT
from tests.integration.stock_clients import StockProducer, stock_producers, stock_work, topic_on_each
from tests.waiting import wait_until

pytestmark = [pytest.mark.broker, pytest.mark.long, pytest.mark.timeout(1200)]

NEAR: Final = 0.15
BOUND: Final = 300_000.0
PHASES: Final = {"under T": (1, 45, 30), "raised to 2 · T": (2, 15, 45), "cut to T": (1, 30, 60)}
"""The offenders' quota in T, the seconds in which it settles, and those that are judged."""
PYTHON, JAVA = "kafka-python", "Java"
OFFENDERS: Final = {PYTHON: "erp", JAVA: "archive"}
QUIET: Final = ("shop", "pay", "crm", "web")
ROWS: Final = {("shop", ""): 1e6, ("pay", "pay"): 1e6, (DEFAULT, ""): 5e5}
_REQUESTS_PER_SECOND: Final = 40.0
_RECORD_BYTES: Final = {PYTHON: round(10 * BOUND / _REQUESTS_PER_SECOND), JAVA: 10_000}
_SOURCE: Final = Path(__file__).with_name("StockProducer.java")


class JavaProducer:
    """Kafka's own Java client in a process: it sends records to the topic of its name as fast as it can."""

    def __init__(self, broker: EmbeddedBroker, jdk: Java, user: str) -> None:
        login = "org.apache.kafka.common.security.plain.PlainLoginModule required"
        config = {
            "bootstrap.servers": broker.sasl_bootstrap_servers,
            "client.id": user,
            "delivery.timeout.ms": "600000",  # what is in its memory lasts for minutes under the quota
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.jaas.config": f'{login} username="{user}" password="{user}";',
        }
        class_path = os.pathsep.join(map(str, broker_classpath()))
        command = [str(jdk.executable), "-Xmx128m", "-XX:TieredStopAtLevel=1", "-cp", class_path, str(_SOURCE)]
        command += [user, str(_RECORD_BYTES[JAVA]), *(f"{key}={value}" for key, value in config.items())]
        self._throttle_max_ms = 0.0
        self._process = spawn(command, cwd=Path.cwd(), output=subprocess.PIPE)
        self._reading = Thread(target=self._read, daemon=True)
        self._reading.start()

    def longest_throttle_ms(self) -> float:
        return self._throttle_max_ms

    def close(self) -> None:
        terminate(self._process, 5.0)
        self._reading.join()

    def _read(self) -> None:
        with self._process.stdout or io.BytesIO() as lines:
            for line in lines:
                with suppress(ValueError):  # what else it prints
                    self._throttle_max_ms = max(self._throttle_max_ms, float(line))


@dataclass
class Run:
    """The rate of each offender in each phase, divided by its quota; and the longest waits that clients were told."""

    ratios: dict[tuple[str, str], float] = field(default_factory=dict)
    waits_ms: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))

    def let_pass(self, seconds: int, clients: Mapping[str, StockProducer | JavaProducer]) -> None:
        for _ in range(seconds):
            time.sleep(1)
            for name, client in clients.items():
                self.waits_ms[name] = max(self.waits_ms[name], client.longest_throttle_ms())


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    fetch()
    folder, jdk, found = tmp_path_factory.mktemp("six"), find_jdk(), Run()
    present = [PYTHON] if jdk is None else [PYTHON, JAVA]
    with ExitStack() as stack:
        users = [*OFFENDERS.values(), *QUIET]
        broker = stack.enter_context(EmbeddedBroker(folder / "broker", {name: name for name in users}))
        for name in users:
            topic_on_each([broker], name)
        stage = Stage.of(folder, broker, [bound(user, rate, client) for (user, client), rate in ROWS.items()])
        native = stack.enter_context(NativeQuotas(ClusterAccess(broker.bootstrap_servers)))
        ends: Any = stack.enter_context(closing(KafkaConsumer(bootstrap_servers=broker.bootstrap_servers)))
        stack.enter_context(stage.sync())

        def sent_bytes(name: str) -> int:
            place = TopicPartition(OFFENDERS[name], 0)
            return int(ends.end_offsets([place])[place]) * _RECORD_BYTES[name]

        def are_held_at(quota: float) -> bool:
            held = {one.entity: one.values.get("producer_byte_rate") for one in native.describe()}
            return all(held.get(NativeEntity.of_row(OFFENDERS[name], "")) == quota for name in present)

        works = {name: stock_work(broker, name, name, (1.0,), 20_000.0, 20.0) for name in QUIET}
        offender = OFFENDERS[PYTHON]
        works[offender] = stock_work(broker, offender, offender, (1.0,), 10 * BOUND, _REQUESTS_PER_SECOND)
        producers = stack.enter_context(stock_producers(works))
        for name in QUIET:
            producers[name].start()
        clients: dict[str, StockProducer | JavaProducer] = dict(producers)
        for phase, (factor, settling_seconds, judged_seconds) in PHASES.items():
            quota = factor * BOUND
            changes = [QuotaChange(OFFENDERS[name], "", {"producer_byte_rate": quota}) for name in present]
            QuotaTable(stage.root).alter(changes, local_audit("test"))
            wait_until(lambda quota=quota: are_held_at(quota), "the quotas on the broker")  # type: ignore[misc]
            if not found.ratios:
                producers[offender].start()
                if jdk is not None:
                    clients[OFFENDERS[JAVA]] = stack.enter_context(closing(JavaProducer(broker, jdk, OFFENDERS[JAVA])))
                wait_until(lambda: all(sent_bytes(name) for name in present), "their first records")
            found.let_pass(settling_seconds, clients)
            began, before = time.monotonic(), {name: sent_bytes(name) for name in present}
            found.let_pass(judged_seconds, clients)
            for name in present:
                found.ratios[name, phase] = (sent_bytes(name) - before[name]) / (time.monotonic() - began) / quota
    return found


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("offender", [PYTHON, JAVA])
def test_the_broker_holds_a_stock_client_at_its_quota(run: Run, offender: str, phase: str) -> None:
    if (offender, phase) not in run.ratios:
        pytest.skip("no JDK: a Java source must be compiled")
    assert run.ratios[offender, phase] == pytest.approx(1, abs=NEAR)


def test_only_the_offenders_are_told_to_wait(run: Run) -> None:
    assert {name for name, wait_ms in run.waits_ms.items() if wait_ms} == run.waits_ms.keys() - set(QUIET)
