"""Stock clients of one broker while a quota is raised and cut in the Delta table: what the broker makes of it.

One real broker and `kquota quotas sync` as its own process. Four quiet kafka-python producers far below their quotas
(of a user, of a pair, and two of the default user), and two offenders: one of kafka-python that wants 10 · T, and one
of Kafka's own Java client that sends as fast as it can. None of them knows of kquota. The bytes of an offender are the
end of its log times the size of a record.
"""

import io
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
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
from tests.integration.stock_clients import stock_work, topic_on_each
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


class StockProcess:
    """A client that runs, and the longest time that an answer told it to wait."""

    def __init__(self, stack: ExitStack, command: list[str]) -> None:
        self.throttle_max_ms = 0.0
        self._process = spawn(command, cwd=Path.cwd(), output=subprocess.PIPE)
        self._reading = Thread(target=self._read, daemon=True)
        self._reading.start()
        stack.callback(self._reading.join)
        stack.callback(terminate, self._process, 5.0)

    def _read(self) -> None:
        with self._process.stdout or io.BytesIO() as lines:
            for line in lines:
                with suppress(ValueError):  # what else it prints
                    self.throttle_max_ms = max(self.throttle_max_ms, json.loads(line)["broker_throttle_max_ms"])


def python_command(folder: Path, broker: EmbeddedBroker, user: str, rate: float, requests: float) -> list[str]:
    """A kafka-python producer that sends to the topic of its name, with a client-id that is its name."""
    path = folder / f"{user}.json"
    path.write_text(json.dumps(asdict(stock_work(broker, user, user, (1.0,), rate, requests))), encoding="utf-8")
    return [sys.executable, "-m", "tests.integration.stock_client", str(path)]


def java_command(broker: EmbeddedBroker, jdk: Java, user: str) -> list[str]:
    """A producer of Kafka's own Java client that sends records as fast as it can; else as the Python one."""
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
    return [*command, user, str(_RECORD_BYTES[JAVA]), *(f"{key}={value}" for key, value in config.items())]


@dataclass(frozen=True)
class Run:
    """The rate of each offender in each phase, divided by its quota; and the longest waits that clients were told."""

    ratios: Mapping[tuple[str, str], float]
    offenders_ms: list[float]
    quiet_ms: list[float]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    fetch()
    folder, jdk = tmp_path_factory.mktemp("six"), find_jdk()
    users = [*OFFENDERS.values(), *QUIET]
    present = [PYTHON] if jdk is None else [PYTHON, JAVA]
    with ExitStack() as stack:
        broker = stack.enter_context(EmbeddedBroker(folder / "broker", {name: name for name in users}))
        for name in users:
            topic_on_each([broker], name)
        stage = Stage.of(folder, broker, [bound(user, rate, client) for (user, client), rate in ROWS.items()])
        native = stack.enter_context(NativeQuotas(ClusterAccess(broker.bootstrap_servers)))
        ends: Any = KafkaConsumer(bootstrap_servers=broker.bootstrap_servers)
        stack.callback(ends.close)
        stack.enter_context(stage.sync())

        def sent_bytes(name: str) -> int:
            place = TopicPartition(OFFENDERS[name], 0)
            return int(ends.end_offsets([place])[place]) * _RECORD_BYTES[name]

        def are_held(wanted: Mapping[NativeEntity, float]) -> bool:
            held = {one.entity: one.values.get("producer_byte_rate") for one in native.describe()}
            return all(held.get(entity) == rate for entity, rate in wanted.items())

        ratios: dict[tuple[str, str], float] = {}
        offenders: list[StockProcess] = []
        quiet = [StockProcess(stack, python_command(folder, broker, name, 20_000.0, 20.0)) for name in QUIET]
        for phase, (factor, settling_seconds, judged_seconds) in PHASES.items():
            quota = factor * BOUND
            changes = [QuotaChange(OFFENDERS[name], "", {"producer_byte_rate": quota}) for name in present]
            QuotaTable(stage.root).alter(changes, local_audit("test"))
            wanted = {NativeEntity.of_row(OFFENDERS[name], ""): quota for name in present}
            wait_until(lambda wanted=wanted: are_held(wanted), "the quotas on the broker")  # type: ignore[misc]
            if not offenders:
                commands = [python_command(folder, broker, OFFENDERS[PYTHON], 10 * BOUND, _REQUESTS_PER_SECOND)]
                commands += [] if jdk is None else [java_command(broker, jdk, OFFENDERS[JAVA])]
                offenders = [StockProcess(stack, command) for command in commands]
                wait_until(lambda: all(sent_bytes(name) for name in present), "their first records")
            time.sleep(settling_seconds)
            began, before = time.monotonic(), {name: sent_bytes(name) for name in present}
            time.sleep(judged_seconds)
            for name in present:
                ratios[name, phase] = (sent_bytes(name) - before[name]) / (time.monotonic() - began) / quota
        return Run(ratios, [one.throttle_max_ms for one in offenders], [one.throttle_max_ms for one in quiet])


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("offender", [PYTHON, JAVA])
def test_the_broker_holds_a_stock_client_at_its_quota(run: Run, offender: str, phase: str) -> None:
    if (offender, phase) not in run.ratios:
        pytest.skip("no JDK: a Java source must be compiled")
    assert run.ratios[offender, phase] == pytest.approx(1, abs=NEAR)


def test_only_the_offenders_are_told_to_wait(run: Run) -> None:
    assert min(run.offenders_ms) > 0
    assert run.quiet_ms == [0] * len(QUIET)
