"""Six stock clients of one broker: what an edit of the quota table does to the one that is over its quota.

    python -m bench six_clients
    python -m bench.six_clients [--page docs/enforce.md]

One real broker and `kquota quotas sync` as its own process. Four quiet kafka-python producers far below their quotas
(of a user, of a pair, and two of the default user), and two offenders: one of kafka-python that wants 10 · T, and one
of Kafka's own Java client that sends as fast as it can (left out without a JDK). None of them knows of kquota. The
quiet ones run alone at first; then beside two like the offenders that have no quota; then the offenders start under T;
then T is doubled for both in the Delta table; then it is cut again. The bytes of an offender are the end of its log
times the size of a record, asked four times a second.
"""

import argparse
import math
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from kafka import KafkaAdminClient, KafkaConsumer, TopicPartition

from bench.machine import machine_line
from bench.six_report import PHASES, Offender, Phase, SixRun, markdown, write_page
from bench.stock_clients import StockProcess, start_java, start_python
from pipeline.brokers.entity import NativeEntity
from pipeline.brokers.native_quotas import NativeQuotas
from pipeline.cluster.access import ClusterAccess
from pipeline.demo.broker import EmbeddedBroker
from pipeline.demo.process import spawn, terminate
from pipeline.jvm.jars import fetch
from pipeline.jvm.java import Java, find_jdk
from pipeline.tables.audit import local_audit
from pipeline.tables.layout import create_missing
from pipeline.tables.quotas.edit import QuotaChange
from pipeline.tables.quotas.table import QuotaTable
from quota.entity import DEFAULT

BOUND: Final = 300_000.0
PYTHON, JAVA = "kafka-python", "Java"
OFFENDERS: Final = {PYTHON: "erp", JAVA: "archive"}
UNBOUNDED: Final = {PYTHON: "free", JAVA: "fast"}
QUIET: Final = ("shop", "pay", "crm", "web")
_QUIET_RATE, _QUIET_REQUESTS = 20_000.0, 20.0
_WANTED, _REQUESTS = 10 * BOUND, 40.0
_RECORD_BYTES: Final = {PYTHON: round(_WANTED / _REQUESTS), JAVA: 10_000}
_NO_BOUND: Final = 1e12
_PRACTICE_EDITS: Final = 10
_LOOK_SECONDS: Final = 0.25
_DESCRIBE_SECONDS: Final = 0.05
_GIVE_UP_SECONDS: Final = 60.0


class _Stage:
    """The broker, the tables, the sync and the quiet clients."""

    def __init__(self, stack: ExitStack, folder: Path) -> None:
        fetch()
        names = [*OFFENDERS.values(), *UNBOUNDED.values(), *QUIET]
        self.stack, self.folder = stack, folder
        self.broker = stack.enter_context(EmbeddedBroker(folder / "broker", {name: name for name in names}))
        _create_topics(self.broker, names)
        root = str(folder / "tables")
        create_missing(root)
        self._quotas = QuotaTable(root)
        self._native = stack.enter_context(NativeQuotas(ClusterAccess(self.broker.bootstrap_servers)))
        self._ends: Any = KafkaConsumer(bootstrap_servers=self.broker.bootstrap_servers)
        stack.callback(self._ends.close)
        rows = {("shop", ""): 1e6, ("pay", "pay"): 1e6, (DEFAULT, ""): 5e5}
        rows |= {(name, ""): _NO_BOUND for name in UNBOUNDED.values()}
        self._quotas.alter([_change(*names, rate) for names, rate in rows.items()], local_audit("bench"))
        command = [sys.executable, "-m", "pipeline.cli.main", "quotas", "sync", "--tables", root]
        command += ["--bootstrap-server", self.broker.bootstrap_servers]
        log = stack.enter_context((folder / "sync.log").open("wb"))
        stack.callback(terminate, spawn(command, cwd=Path.cwd(), output=log), 5.0)
        self._await({NativeEntity.of_row(*names): rate for names, rate in rows.items()})
        self.quiet = [start_python(stack, folder, self.broker, name, _QUIET_RATE, _QUIET_REQUESTS) for name in QUIET]

    def edit(self, bounds: Mapping[str, float]) -> float:
        """Change rows of users; returns after how many seconds the broker has the values."""
        self._quotas.alter([_change(user, "", rate) for user, rate in bounds.items()], local_audit("bench"))
        return self._await({NativeEntity.of_row(user, ""): rate for user, rate in bounds.items()})

    def end(self, topic: str) -> int:
        """The number of records that the broker has taken."""
        place = TopicPartition(topic, 0)
        return int(self._ends.end_offsets([place])[place])

    def _await(self, wanted: Mapping[NativeEntity, float]) -> float:
        began = time.monotonic()
        while True:
            held = {one.entity: one.values.get("producer_byte_rate") for one in self._native.describe()}
            took = time.monotonic() - began
            if all(held.get(entity) == rate for entity, rate in wanted.items()):
                return took
            if took > _GIVE_UP_SECONDS:
                sys.exit(f"the broker must have {wanted}; got {held}; see {self.folder / 'sync.log'}")
            time.sleep(_DESCRIBE_SECONDS)


def measure(folder: Path) -> SixRun:
    """Start all, go through the phases, and stop it.

    Args:
        folder: for the broker, the tables and the log of the sync; empty.
    """
    with ExitStack() as stack:
        stage = _Stage(stack, folder)
        edits = [stage.edit({"nobody": 1e6 + number}) for number in range(_PRACTICE_EDITS)]
        jdk = find_jdk()
        offenders = {name: Offender() for name in OFFENDERS if jdk is not None or name != JAVA}
        processes: dict[str, StockProcess] = {}
        begins = []
        for phase in PHASES:
            if phase.factor == math.inf:
                begins.append(time.monotonic())
                _watch_unbounded(stage, jdk, phase)
                continue
            if phase.is_bounded:
                edits.append(stage.edit({OFFENDERS[name]: phase.factor * BOUND for name in offenders}))
            if phase.is_bounded and not processes:
                processes = _start(stack, stage, jdk, OFFENDERS)
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
            edits,
        )


def _start(stack: ExitStack, stage: _Stage, jdk: Java | None, users: Mapping[str, str]) -> dict[str, StockProcess]:
    """Start a client of each kind that this machine can run."""
    kafka_python = start_python(stack, stage.folder, stage.broker, users[PYTHON], _WANTED, _REQUESTS)
    if jdk is None:
        return {PYTHON: kafka_python}
    return {PYTHON: kafka_python, JAVA: start_java(stack, stage.broker, jdk, users[JAVA], _RECORD_BYTES[JAVA])}


def _watch_unbounded(stage: _Stage, jdk: Java | None, phase: Phase) -> None:
    """Let clients like the offenders run beside the quiet ones, without a quota."""
    with ExitStack() as stack:
        _start(stack, stage, jdk, UNBOUNDED)
        _watch(stage, {}, phase)


def _await_first_records(stage: _Stage, offenders: Mapping[str, Offender]) -> None:
    deadline = time.monotonic() + _GIVE_UP_SECONDS
    while not all(stage.end(OFFENDERS[name]) for name in offenders):
        if time.monotonic() > deadline:
            sys.exit("each offender must have sent something within a minute; one has not")
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


def _change(user: str, client_id: str, rate: float) -> QuotaChange:
    return QuotaChange(user, client_id, {"producer_byte_rate": rate})


def _create_topics(broker: EmbeddedBroker, names: list[str]) -> None:
    admin: Any = KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    admin.create_topics(
        {
            name: {"num_partitions": 1, "replication_factor": 1, "configs": {"retention.bytes": "67108864"}}
            for name in names
        },
        wait_for_metadata=True,
    )
    admin.close()


def main() -> None:
    """Print the machine and the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--page", type=Path, help="the page to write the tables into")
    parser.add_argument("--keep", type=Path, help="a folder for broker, tables and logs, which is kept")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kquota-six-") as folder:
        run = measure(given.keep or Path(folder))
    text = f"{markdown(run)}\n\n{machine_line()}"
    print(text)
    if given.page:
        write_page(given.page, text)


if __name__ == "__main__":
    main()
