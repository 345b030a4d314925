"""The peers: how each is started, and where its results are."""

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from bench.peers.messages import Shape, create_logged_topics
from bench.peers.results import FileResults, Results, TopicResults, UsageTableResults
from deploy.jvm.__main__ import write_lock
from pipeline.jvm.jars import JarStore, read_lock
from pipeline.jvm.java import cache_folder, find_java, find_jdk
from pipeline.settings.model import StreamSettings
from pipeline.tables.layout import create_missing
from pipeline.tables.quotas.edit import QuotaChange
from pipeline.tables.quotas.table import QuotaTable, local_audit
from tests.integration.running_job import RunningJob

SETS: Final = ("streams", "flink")
LOCK: Final = Path(__file__).with_name("jars.lock")
_HEADER: Final = "# Jars of the peers. Written by `python -m bench.peers.roster lock` from bench/peers/pom.xml.\n"


def peer_jars(jar_set: str) -> list[Path]:
    """The jars of a set, fetched if they are missing."""
    store = JarStore([jar for jar in read_lock(LOCK, SETS) if jar.jar_set == jar_set])
    store.fetch()
    return [store.check(jar) for jar in store.locked]


_HERE: Final = Path(__file__).parent
_SECONDS: Final = 900


class PeerFailed(Exception):
    """A peer cannot run here, or has ended, or has given no results; the message says why."""


def peers_folder() -> Path:
    return cache_folder() / "peers"


def python_of(name: str) -> Path:
    """The Python of a peer's environment, made if it is missing; `PeerFailed` if it cannot be made here."""
    requirements = _HERE / f"requirements-{name}.txt"
    folder = peers_folder() / f"{name}-{_digest(requirements)}"
    python = folder / "bin" / "python"
    if not (folder / "complete").exists():
        shutil.rmtree(folder, ignore_errors=True)
        _run([sys.executable, "-m", "venv", str(folder)])
        options = ["--quiet", "--disable-pip-version-check", "--require-hashes", "--no-deps"]
        _run([str(python), "-m", "pip", "install", *options, "-r", str(requirements)])
        (folder / "complete").touch()
    return python


def streams_classpath() -> str:
    """The class path of the Kafka Streams peer, compiled if it is not yet; `PeerFailed` without a compiler."""
    jdk = find_jdk()
    if jdk is None:
        message = "no JDK (javac): Kafka Streams is left out"
        raise PeerFailed(message)
    source = _HERE / "StreamsPeer.java"
    jars = [str(jar) for jar in peer_jars("streams")]
    classes = peers_folder() / f"streams-{_digest(source)}"
    if not (classes / "StreamsPeer.class").exists():
        classes.mkdir(parents=True, exist_ok=True)
        compiler = str(jdk.home / "bin" / "javac")
        _run([compiler, "--release", "17", "-d", str(classes), "-cp", os.pathsep.join(jars), str(source)])
    return os.pathsep.join([str(classes), *jars])


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()[:12]


def _run(command: list[str]) -> None:
    ended = subprocess.run(command, check=False, capture_output=True, text=True, timeout=_SECONDS)
    if ended.returncode:
        reason = (ended.stderr.strip() or ended.stdout.strip()).splitlines()[-1:] or ["no reason told"]
        message = f"{' '.join(command[:4])} … ended with {ended.returncode}: {reason[0]}"
        raise PeerFailed(message)


TRIGGER_MS: Final = 120
HEAP: Final = "-Xmx1g"


@dataclass(frozen=True)
class Place:
    """Where one peer works: topics of its own on a shared broker, and a folder."""

    bootstrap_servers: str  # of the broker
    folder: Path  # empty; for state, tables and logs
    name: str  # of topics and groups
    shape: Shape  # of the messages

    @property
    def source(self) -> str:
        return f"{self.name}.usage"

    @property
    def sink(self) -> str:
        return f"{self.name}.sums"

    @property
    def state(self) -> str:
        state = self.folder / "state"
        state.mkdir(exist_ok=True)
        return str(state)

    def create_topics(self) -> None:
        create_logged_topics(self.bootstrap_servers, (self.source, self.sink))


@dataclass(frozen=True)
class Peer:
    """One of the stream processors."""

    name: str  # in tables
    settings: str  # what of it is not the default, for the page
    command: Callable[[Place], Sequence[str]]  # prepares what it needs, and gives what starts it; raises `PeerFailed`
    results: Callable[[Place], Results]  # where they are
    ready: str = "READY"  # text in its output from which on it reads
    is_durable: bool = True  # whether it keeps its results and its place over a kill
    environment: Callable[[Place], Mapping[str, str]] = field(default=lambda _: {})  # variables in addition to ours


def _topic(place: Place) -> Results:
    return TopicResults(place.bootstrap_servers, place.sink)


def _streams(place: Place) -> Sequence[str]:
    java = str(find_java().executable)
    command = [java, HEAP, "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", streams_classpath(), "StreamsPeer"]
    return [*command, place.bootstrap_servers, place.source, place.sink, place.shape, place.state, place.name]


def _flink(place: Place) -> Sequence[str]:
    (jar,) = peer_jars("flink")
    program = str(Path(__file__).with_name("flink_peer.py"))
    command = [str(python_of("flink")), program, place.bootstrap_servers, place.source, place.sink]
    return [*command, place.state, place.name, str(jar)]


def _flink_environment(_place: Place) -> Mapping[str, str]:
    jdk = find_jdk()  # Flink 2.1 is for Java 11 to 21
    java = jdk or find_java()
    if java.version > 21:
        message = f"Flink 2.1 is for Java 11 to 21; the only Java here is {java.version}"
        raise PeerFailed(message)
    return {"JAVA_HOME": str(java.home), "JVM_ARGS": HEAP}


def _spark(place: Place) -> Sequence[str]:
    command = [sys.executable, "-m", "bench.peers.spark_peer", place.bootstrap_servers, place.source, place.shape]
    return [*command, place.state]


def _job(place: Place) -> RunningJob:
    overrides = {
        "KQUOTA_CLUSTER": "peers",
        "KQUOTA_STREAM__TRIGGER_MS": str(TRIGGER_MS),
        "KQUOTA_STREAM__MAX_DECISION_AGE_MS": str(StreamSettings().max_decision_age_ms),
        "KQUOTA_KAFKA__USAGE_TOPIC": place.source,
        "PYTHONPATH": os.getcwd(),
    }
    return RunningJob(place.name, place.folder, place.bootstrap_servers, overrides)


def _kquota(place: Place) -> Sequence[str]:
    tables = place.folder / "tables"
    if not tables.exists():
        _job(place).create_topics()
        create_missing(str(tables))
        changes = [QuotaChange("<default>", "<default>", {"producer_byte_rate": 1e9})]
        # Ten users that are far over their quota, so that there is something to decide.
        changes += [QuotaChange(f"user-{number}", "", {"producer_byte_rate": 1_000.0}) for number in range(10)]
        QuotaTable(str(tables)).alter(changes, local_audit("bench"))
    return [sys.executable, "-m", "pipeline.cli.main", "run"]


KQUOTA: Final = "kquota"
STREAMS: Final = "Kafka Streams"
BARE: Final = "bare Spark"
PEERS: Final = (
    Peer(
        KQUOTA,
        f"the whole job, as `kquota run` starts it: trigger {TRIGGER_MS} ms; usage and the facts of a batch are in a "
        "Delta table before it is committed, its decisions as well. It also checks every event, measures "
        "rates, and decides",
        _kquota,
        lambda place: UsageTableResults(place.folder / "tables" / "usage"),
        ready="running; trigger",
        environment=lambda place: _job(place).environment,
    ),
    Peer(
        STREAMS,
        "4.3.1 in Java, `exactly_once_v2`, RocksDB with changelog topic, 2 threads, static membership, Jackson. "
        "Results at each commit: 100 ms, its default for exactly-once",
        _streams,
        _topic,
    ),
    Peer(
        "Flink SQL",
        "PyFlink 2.1.1, a cluster in one process, parallelism 2, heap state, checkpoints each 250 ms, results in Kafka "
        "transactions. A tumbling window gives its result when it ends",
        _flink,
        _topic,
        environment=_flink_environment,
    ),
    Peer(
        BARE,
        "4.2.0: `from_json`, group by, `toArrow`, with Java's optimizing compiler, which kquota does without. It keeps "
        "nothing, and sums nothing across batches. This is the least that Spark's own functions cost",
        _spark,
        lambda place: FileResults(Path(place.state)),
        is_durable=False,
    ),
)


if sys.argv[1:] == ["lock"] and __name__ == "__main__":
    write_lock(LOCK.with_name("pom.xml"), LOCK, SETS, _HEADER)
