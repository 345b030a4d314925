"""Six stock clients of one broker: what an edit of the quota table does to the one that is over its quota.

One real broker and `kquota quotas sync` as its own process. Four quiet kafka-python producers far below their quotas
(of a user, of a pair, and two of the default user), and two offenders: one of kafka-python that wants 10 · T, and one
of Kafka's own Java client that sends as fast as it can (left out without a JDK). None of them knows of kquota. The
quiet ones run alone at first; then the offenders start under T; then T is doubled for both in the Delta table; then it
is cut again. The bytes of an offender are the end of its log times the size of a record, asked four times a second.
"""

import io
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from threading import Thread
from typing import Any, Final

import numpy as np
from kafka import KafkaConsumer, TopicPartition

from bench.stage import Stage, bound
from pipeline.brokers.native import NativeEntity, NativeQuotas
from pipeline.cluster.access import ClusterAccess
from pipeline.demo.broker import EmbeddedBroker
from pipeline.demo.process import spawn, terminate
from pipeline.jvm.jars import broker_classpath, fetch
from pipeline.jvm.java import Java, find_jdk
from pipeline.tables.quotas.edit import QuotaChange
from pipeline.tables.quotas.table import QuotaTable, local_audit
from quota.entity import DEFAULT
from tests.integration.stock_clients import stock_work, topic_on_each

_STOP_SECONDS: Final = 5.0
_SOURCE: Final = Path(__file__).with_name("StockProducer.java")


class StockProcess:
    """A client that runs.

    Attributes:
        reports: when each came, in seconds of the monotonic clock, and what it says.
    """

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self.reports: list[tuple[float, dict[str, Any]]] = []
        self._process = process
        self._reading = Thread(target=self._read, daemon=True)
        self._reading.start()

    @property
    def throttle_max_ms(self) -> float:
        return max((float(report["broker_throttle_max_ms"]) for _, report in self.reports), default=0.0)

    def answer_ms(self, begin: float, end: float) -> list[float]:
        return [took_ms for at, report in self.reports if begin <= at < end for took_ms in report["answer_ms"]]

    def close(self) -> None:
        terminate(self._process, _STOP_SECONDS)
        self._reading.join()

    def _read(self) -> None:
        with self._process.stdout or io.BytesIO() as lines:
            for line in lines:
                with suppress(ValueError):  # what else it prints
                    self.reports.append((time.monotonic(), json.loads(line)))


def start_python(
    stack: ExitStack, folder: Path, broker: EmbeddedBroker, user: str, rate: float, requests_per_second: float
) -> StockProcess:
    """A kafka-python producer that sends to the topic of its name, with a client-id that is its name."""
    path = folder / f"{user}.json"
    work = stock_work(broker, user, user, (1.0,), rate, requests_per_second)
    path.write_text(json.dumps(asdict(work)), encoding="utf-8")
    return _started(stack, [sys.executable, "-m", "pipeline.demo.stock_client", str(path)])


def start_java(stack: ExitStack, broker: EmbeddedBroker, jdk: Java, user: str, record_bytes: int) -> StockProcess:
    """A producer of Kafka's own Java client that sends records as fast as it can; else as `start_python`."""
    login = "org.apache.kafka.common.security.plain.PlainLoginModule required"
    config = {
        "bootstrap.servers": broker.sasl_bootstrap_servers,
        "client.id": user,
        "delivery.timeout.ms": "600000",  # as the Python one: what is in its memory lasts for minutes under the quota
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.jaas.config": f'{login} username="{user}" password="{user}";',
    }
    class_path = os.pathsep.join(map(str, broker_classpath()))
    command = [str(jdk.executable), "-Xmx128m", "-XX:TieredStopAtLevel=1", "-cp", class_path, str(_SOURCE)]
    command += [user, str(record_bytes), *(f"{key}={value}" for key, value in config.items())]
    return _started(stack, command)


def _started(stack: ExitStack, command: list[str]) -> StockProcess:
    client = StockProcess(spawn(command, cwd=Path.cwd(), output=subprocess.PIPE))
    stack.callback(client.close)
    return client


_SHOWN_SECONDS: Final = 10


@dataclass(frozen=True, slots=True)
class Phase:
    """A time in which nothing was edited.

    Attributes:
        name: what it is.
        factor: the offenders' quota, in T; 0 = they do not run yet.
        judged_from: second after which rates and answers are judged, to the end.
        seconds: how long it is.
    """

    name: str
    factor: float
    judged_from: int
    seconds: int

    @property
    def is_bounded(self) -> bool:
        return self.factor > 0


PHASES: Final = (
    Phase("without offenders", 0, 0, 30),
    Phase("under T", 1, 45, 75),
    Phase("raised to 2 · T", 2, 15, 60),
    Phase("cut to T", 1, 30, 90),
)


@dataclass(slots=True)
class Offender:
    """What the broker took of one offender.

    Attributes:
        at: instants, in seconds.
        taken_bytes: the end of its log at each of them, times the size of a record.
        throttle_max_ms: the longest time that an answer told it to wait.
    """

    at: list[float] = field(default_factory=list)
    taken_bytes: list[float] = field(default_factory=list)
    throttle_max_ms: float = 0.0

    def rate(self, begin: float, end: float) -> float:
        """Bytes per second between two instants."""
        before, after = np.interp([begin, end], self.at, self.taken_bytes)
        return float(after - before) / (end - begin)


@dataclass(frozen=True, slots=True)
class SixRun:
    """One run.

    Attributes:
        bound: T, in bytes per second.
        begins: when each of `PHASES` began: when the quota was in the broker, or the offenders had sent something.
        offenders: by what they are.
        quiet_answer_ms: of each phase, how long each request of the quiet clients took, in the seconds that are judged.
        quiet_throttle_max_ms: the longest time that an answer told one of them to wait.
    """

    bound: float
    begins: Sequence[float]
    offenders: Mapping[str, Offender]
    quiet_answer_ms: Sequence[Sequence[float]]
    quiet_throttle_max_ms: float

    def judged(self, offender: str, phase: int) -> float:
        """Its rate divided by its quota, from the second on from which it is judged."""
        return self._ratio(offender, phase, PHASES[phase].judged_from, PHASES[phase].seconds)

    def tens(self, offender: str, phase: int) -> list[float]:
        """The same for each ten seconds, from the beginning."""
        starts = range(0, PHASES[phase].seconds - _SHOWN_SECONDS + 1, _SHOWN_SECONDS)
        return [self._ratio(offender, phase, start, start + _SHOWN_SECONDS) for start in starts]

    def _ratio(self, offender: str, phase: int, first: int, end: int) -> float:
        begin, quota = self.begins[phase], PHASES[phase].factor * self.bound
        return self.offenders[offender].rate(begin + first, begin + end) / quota


BOUND: Final = 300_000.0
PYTHON, JAVA = "kafka-python", "Java"
OFFENDERS: Final = {PYTHON: "erp", JAVA: "archive"}
QUIET: Final = ("shop", "pay", "crm", "web")
_QUIET_RATE, _QUIET_REQUESTS = 20_000.0, 20.0
_WANTED, _REQUESTS = 10 * BOUND, 40.0
_RECORD_BYTES: Final = {PYTHON: round(_WANTED / _REQUESTS), JAVA: 10_000}
_LOOK_SECONDS: Final = 0.25
_DESCRIBE_SECONDS: Final = 0.05
_GIVE_UP_SECONDS: Final = 60.0


class _Stage:
    """The broker, the tables, the sync and the quiet clients."""

    def __init__(self, stack: ExitStack, folder: Path) -> None:
        fetch()
        names = [*OFFENDERS.values(), *QUIET]
        self.stack, self.folder = stack, folder
        self.broker = stack.enter_context(EmbeddedBroker(folder / "broker", {name: name for name in names}))
        for name in names:
            topic_on_each([self.broker], name)
        rows = {("shop", ""): 1e6, ("pay", "pay"): 1e6, (DEFAULT, ""): 5e5}
        stage = Stage.of(folder, self.broker, [bound(user, rate, client) for (user, client), rate in rows.items()])
        self._quotas = QuotaTable(stage.root)
        self._native = stack.enter_context(NativeQuotas(ClusterAccess(self.broker.bootstrap_servers)))
        self._ends: Any = KafkaConsumer(bootstrap_servers=self.broker.bootstrap_servers)
        stack.callback(self._ends.close)
        stack.enter_context(stage.sync())
        self._await({NativeEntity.of_row(*names): rate for names, rate in rows.items()})
        self.quiet = [start_python(stack, folder, self.broker, name, _QUIET_RATE, _QUIET_REQUESTS) for name in QUIET]

    def edit(self, bounds: Mapping[str, float]) -> None:
        """Change rows of users; returns when the broker has the values."""
        changes = [QuotaChange(user, "", {"producer_byte_rate": rate}) for user, rate in bounds.items()]
        self._quotas.alter(changes, local_audit("bench"))
        self._await({NativeEntity.of_row(user, ""): rate for user, rate in bounds.items()})

    def end(self, topic: str) -> int:
        place = TopicPartition(topic, 0)
        return int(self._ends.end_offsets([place])[place])

    def _await(self, wanted: Mapping[NativeEntity, float]) -> None:
        began = time.monotonic()
        while True:
            held = {one.entity: one.values.get("producer_byte_rate") for one in self._native.describe()}
            if all(held.get(entity) == rate for entity, rate in wanted.items()):
                return
            if time.monotonic() - began > _GIVE_UP_SECONDS:
                sys.exit(f"the broker has {held} and not {wanted}; see {self.folder / 'sync.log'}")
            time.sleep(_DESCRIBE_SECONDS)


def measure(folder: Path) -> SixRun:
    with ExitStack() as stack:
        stage = _Stage(stack, folder)
        jdk = find_jdk()
        offenders = {name: Offender() for name in OFFENDERS if jdk is not None or name != JAVA}
        processes: dict[str, StockProcess] = {}
        begins = []
        for phase in PHASES:
            if phase.is_bounded:
                stage.edit({OFFENDERS[name]: phase.factor * BOUND for name in offenders})
            if phase.is_bounded and not processes:
                processes = _start(stack, stage, jdk)
                _await_first_records(stage, offenders)
            begins.append(time.monotonic())
            _watch(stage, offenders, phase)
        for name, process in processes.items():
            offenders[name].throttle_max_ms = process.throttle_max_ms
        spans = [(at + phase.judged_from, at + phase.seconds) for at, phase in zip(begins, PHASES, strict=True)]
        return SixRun(
            BOUND,
            begins,
            offenders,
            [[took for client in stage.quiet for took in client.answer_ms(*span)] for span in spans],
            max(client.throttle_max_ms for client in stage.quiet),
        )


def _start(stack: ExitStack, stage: _Stage, jdk: Java | None) -> dict[str, StockProcess]:
    kafka_python = start_python(stack, stage.folder, stage.broker, OFFENDERS[PYTHON], _WANTED, _REQUESTS)
    if jdk is None:
        return {PYTHON: kafka_python}
    return {PYTHON: kafka_python, JAVA: start_java(stack, stage.broker, jdk, OFFENDERS[JAVA], _RECORD_BYTES[JAVA])}


def _await_first_records(stage: _Stage, offenders: Mapping[str, Offender]) -> None:
    deadline = time.monotonic() + _GIVE_UP_SECONDS
    while not all(stage.end(OFFENDERS[name]) for name in offenders):
        if time.monotonic() > deadline:
            sys.exit("an offender has sent nothing within a minute")
        time.sleep(_LOOK_SECONDS)


def _watch(stage: _Stage, offenders: Mapping[str, Offender], phase: Phase) -> None:
    """Count until the end of a phase."""
    until = time.monotonic() + phase.seconds
    while True:
        for name, offender in offenders.items():
            offender.taken_bytes.append(float(stage.end(OFFENDERS[name]) * _RECORD_BYTES[name]))
            offender.at.append(time.monotonic())
        left = until - time.monotonic()
        if left <= 0:
            return
        time.sleep(min(left, _LOOK_SECONDS))
