"""The peers: how each is started, and where its results are."""

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from bench.peers.messages import Shape
from bench.peers.results import FileResults, Results, TopicResults, UsageTableResults
from bench.stage import KQUOTA as JOB_COMMAND
from bench.stage import Stage
from pipeline.jvm.jars import JarStore, read_lock
from pipeline.jvm.java import cache_folder, find_java, find_jdk
from schemas.names import USAGE_TOPIC

LOCK: Final = Path(__file__).with_name("jars.lock")
_SOURCE: Final = Path(__file__).with_name("StreamsPeer.java")
TRIGGER_MS: Final = 120


class PeerFailed(Exception):
    """A peer cannot run here, or has ended, or has given no results; the message says why."""


@dataclass(frozen=True)
class Place:
    """Where one peer works: a broker with a usage topic, and a topic or a folder for its results."""

    stage: Stage
    shape: Shape  # of the messages

    source: str = USAGE_TOPIC
    sink: str = "sums"

    @property
    def servers(self) -> str:
        return self.stage.servers

    @property
    def state(self) -> Path:
        state = self.stage.job.folder / "state"
        state.mkdir(exist_ok=True)
        return state


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


def _kquota_environment(place: Place) -> Mapping[str, str]:
    return {**place.stage.job.environment, "KQUOTA_STREAM__TRIGGER_MS": str(TRIGGER_MS)}


def _streams(place: Place) -> Sequence[str]:
    command = [str(find_java().executable), "-Xmx1g", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]
    command += ["-cp", streams_classpath(), "StreamsPeer", place.servers, place.source, place.sink]
    return [*command, place.shape, str(place.state), "peer"]


def streams_classpath() -> str:
    """The class path of the Kafka Streams peer, compiled if it is not yet; `PeerFailed` without a compiler."""
    jdk = find_jdk()
    if jdk is None:
        message = "no JDK (javac): Kafka Streams is left out"
        raise PeerFailed(message)
    store = JarStore(read_lock(LOCK))
    store.fetch()
    jars = os.pathsep.join(str(store.check(jar)) for jar in store.locked)
    classes = cache_folder() / "peers" / f"streams-{hashlib.sha256(_SOURCE.read_bytes()).hexdigest()[:12]}"
    if not (classes / "StreamsPeer.class").exists():
        classes.mkdir(parents=True, exist_ok=True)
        compiler = str(jdk.home / "bin" / "javac")
        subprocess.run([compiler, "--release", "17", "-d", str(classes), "-cp", jars, str(_SOURCE)], check=True)
    return f"{classes}{os.pathsep}{jars}"


def _spark(place: Place) -> Sequence[str]:
    command = [sys.executable, "-m", "bench.peers.spark_peer", place.servers, place.source, place.shape]
    return [*command, str(place.state)]


KQUOTA: Final = "kquota"
STREAMS: Final = "Kafka Streams"
BARE: Final = "bare Spark"
PEERS: Final = (
    Peer(
        KQUOTA,
        f"the whole job, trigger {TRIGGER_MS} ms: it also checks events, decides, and stores usage and decisions in "
        "Delta tables before a batch is committed",
        lambda _: [*JOB_COMMAND, "run"],
        lambda place: UsageTableResults(Path(place.stage.root) / "usage"),
        ready="running; trigger",
        environment=_kquota_environment,
    ),
    Peer(
        STREAMS,
        "4.3.1 in Java, `exactly_once_v2`, RocksDB with changelog topic, 2 threads, static membership, Jackson. "
        "Results at each commit: 100 ms, its default for exactly-once",
        _streams,
        lambda place: TopicResults(place.servers, place.sink),
    ),
    Peer(
        BARE,
        "4.2.0: `from_json`, group by, `toArrow`, with Java's optimizing compiler. It keeps nothing, and sums nothing "
        "across batches",
        _spark,
        lambda place: FileResults(place.state),
        is_durable=False,
    ),
)
