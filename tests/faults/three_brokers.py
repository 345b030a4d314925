"""Three brokers that are cut apart, while a job runs on them under load; then the verifier.

    python -m tests.faults.three_brokers [--faults NAME,…] [--cut-seconds 15] [--streams] [--report PAGE]

Brokers, job and clients are hosts of a network of their own (`Network`). Each round has a new cluster (KRaft, each node
broker and controller, replication factor 3, min ISR 2), new tables, one fault, and the same end: the network is whole,
the load ends, the job drains and stops. Ends with 1 if anything was lost, written twice or different, or a client of
the gate waited after the end that was stored.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from threading import Event, Thread
from typing import Any, Final

from kafka import KafkaConsumer, TopicPartition

from bench.machine import machine_line
from bench.pages import table as table_of
from bench.pages import write_part
from bench.peers.roster import PeerFailed
from pipeline.cluster.connecting import open_client
from pipeline.gate import Gate
from pipeline.jvm.jars import fetch
from schemas.throttle_record import holds
from tests.faults.generator import OFFENDERS, RATES
from tests.faults.network import Network
from tests.faults.rig import Rig, logged_ms, rig
from tests.faults.three_nodes import (
    BROKERS,
    CLIENT_ID,
    CLIENTS,
    FAULTS,
    JOB,
    PEER_SUMS,
    STOCK,
    SYNCED,
    Scene,
    now_ms,
    quota_sync,
    streams_peer,
    synced_rate,
)
from tests.faults.verdict import KINDS
from tests.soak.small_disk import small_disk
from tests.waiting import wait_until

PART: Final = ("<!-- three brokers -->", "<!-- /three brokers -->")
_DISK_MB: Final = 400
_BEFORE_SECONDS: Final = 3.0
_AFTER_SECONDS: Final = 4.0
_LATE_MS: Final = 1_000
"""A client that waits this much longer than its throttle has not only been let go by a busy machine."""
_RAISED: Final = 100.0
_AT_LEAST: Final = {
    **{"messages": 100, "batches": 5, "usage": 50, "dead_letters": 3},
    **{"decisions": 5, "renewals": 3, "releases": 3, "publish_seq": 10, "topic": 10},
}


class Watch:
    """What clients of this cluster see: callers of a gate, and stock consumers. To be closed.

    Attributes:
        waits: User, when its caller came to the gate, and when it went on; those that had to wait.
        seen: Of each topic its records, each with when it could be read.
    """

    def __init__(self, servers: str, throttle_topic: str, *topics: str) -> None:
        self.waits: list[tuple[str, int, int]] = []
        self.seen: dict[str, list[tuple[int, Any]]] = {topic: [] for topic in (throttle_topic, *topics)}
        self._servers, self._stop = servers, Event()
        self.gate = Gate.connect(servers, topic=throttle_topic)
        users = [f"offender-{number}" for number in range(OFFENDERS)]
        self._threads = [Thread(target=self._call, args=(user,), daemon=True) for user in users]
        self._threads += [Thread(target=self._read, args=(topic,), daemon=True) for topic in self.seen]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        self._stop.set()
        self.gate.close()
        for thread in self._threads:
            thread.join()

    def _call(self, user: str) -> None:
        while not self._stop.wait(0.02):
            came_ms = now_ms()
            with self.gate.acquire(user, CLIENT_ID) as passage:
                if passage.was_throttled and not self._stop.is_set():
                    self.waits.append((user, came_ms, now_ms()))

    def _read(self, topic: str) -> None:
        consumer: Any = open_client(KafkaConsumer, self._servers, isolation_level="read_committed", **STOCK)
        with closing(consumer):
            consumer.assign([TopicPartition(topic, number) for number in consumer.partitions_for_topic(topic)])
            consumer.seek_to_beginning()
            while not self._stop.is_set():
                for records in consumer.poll(timeout_ms=100).values():
                    self.seen[topic] += [(now_ms(), record) for record in records]


@dataclass(frozen=True)
class Outcome:
    """One round. Times in seconds; `None` if it was not measured, or the fault was not made.

    Attributes:
        problems: What the verifier has against it, and each client of the gate that waited too long.
        pause, peer_pause: The longest time without a finished batch, or a result, from the fault to the recovery.
        batch, record, peer_result: From the heal to the first one that can be seen and has usage of after it; a
            throttle record: that could be read.
        sync: From the heal until an edit of during the fault is on the brokers as their own quota.
        held: Clients that were held at the gate when the fault began.
        late_ms: The longest that a caller of the gate waited after the end that was stored; below 0: less.
    """

    fault: str
    problems: list[str]
    counts: dict[str, int]
    note: str
    pause: float
    batch: float
    record: float
    held: int
    late_ms: int
    sync: float = 0.0
    peer_pause: float | None = None
    peer_result: float | None = None


@dataclass
class Span:
    """From the fault to the heal, epoch milliseconds."""

    cut_ms: int
    heal_ms: int = field(default=0)


def play(fault: str, folder: Path, seed: int, cut_seconds: float = 15, has_peer: bool = False) -> Outcome:
    """Run one round.

    Raises:
        OSError: This machine has no network namespaces; the message says why.
        AssertionError: The job or the cluster did not come back.
    """
    with ExitStack() as stack:
        network = stack.enter_context(Network((*BROKERS, JOB, CLIENTS)))
        stack.enter_context(network.inside(CLIENTS))
        for host in BROKERS:
            (folder / host / "data").mkdir(parents=True)
        disk = stack.enter_context(small_disk(folder / BROKERS[-1] / "data", _DISK_MB))
        scene = stack.enter_context(closing(Scene(network, folder, cut_seconds, disk)))
        for node in scene.nodes:
            node.start()
        scene.await_whole()
        name = f"three-{fault}"
        rigged = scene.rigged = stack.enter_context(rig(name, folder, scene.servers))
        stack.callback(lambda: (folder / "job.log").write_text("\n".join(rigged.job.log), encoding="utf-8"))
        peer = (PEER_SUMS,) if has_peer else ()
        if has_peer:
            stack.enter_context(streams_peer(scene, folder / "peer"))
        stack.enter_context(quota_sync(scene, folder))
        rigged.begin_load(seed)
        with network.inside(JOB):
            rigged.start()
        watch = stack.enter_context(closing(Watch(scene.servers, f"{name}.throttle", *peer)))
        scene.await_whole()
        topics = list(watch.seen)
        wait_until(lambda: all(watch.seen.values()) and bool(watch.gate.throttles()), "records, results and a hold")
        wait_until(lambda: synced_rate(scene.servers) > 0, "the sync's first quota")
        time.sleep(_BEFORE_SECONDS)
        span = Span(now_ms())
        rigged.set_quotas(_RAISED, SYNCED)
        held = len(watch.gate.throttles())
        FAULTS[fault][1](scene)
        span.heal_ms = now_ms()
        wait_until(lambda: synced_rate(scene.servers) > RATES["producer_byte_rate"], "the edit on the brokers")
        synced = (now_ms() - span.heal_ms) / 1_000
        rigged.job.wait_until(lambda: all(_fresh(watch, topic, span) for topic in topics), "a record of after the heal")
        since = len(rigged.job.log)
        time.sleep(_AFTER_SECONDS)
        rigged.job.wait_for_line("batch_id=", since)
        rigged.end_load()
        rigged.drain()
        scene.await_whole()
        rigged.job.stop()
        watch.close()
        return replace(_outcome(scene, fault, span, watch, held), sync=synced)


def _fresh(watch: Watch, topic: str, span: Span) -> list[int]:
    """When the records of a topic could be read that are of after the heal, by their own time."""
    return [at_ms for at_ms, record in list(watch.seen[topic]) if record.timestamp >= span.heal_ms]


def _outcome(scene: Scene, fault: str, span: Span, watch: Watch, held: int) -> Outcome:
    rigged = scene.rigged
    verdict = rigged.verdict(_AT_LEAST)
    counts = dict[str, int]({kind: verdict.count(kind) for kind in KINDS[:3]}, compared=verdict.compared.total())
    throttles, *peers = watch.seen
    late_ms = max((_late_ms(wait, watch.seen[throttles]) for wait in watch.waits), default=-1)
    late = [f"a caller of the gate waited {late_ms} ms longer than it was held"] if late_ms > _LATE_MS else []
    finished = _finished(rigged)
    batch_ms = min(finished[batch_id] for batch_id in _fresh_batches(rigged, span.heal_ms) if batch_id in finished)
    peer: dict[str, float] = {}
    for topic in peers:
        result_ms = _fresh(watch, topic, span)[0]
        read_ms = [at_ms for at_ms, _ in watch.seen[topic]]
        peer = {"peer_pause": _pause(read_ms, span.cut_ms, result_ms), "peer_result": _after(span, result_ms)}
    return Outcome(
        fault=fault,
        problems=[*verdict.told(), *late],
        counts=counts,
        note=scene.note,
        pause=_pause(list(finished.values()), span.cut_ms, batch_ms),
        batch=_after(span, batch_ms),
        record=_after(span, _fresh(watch, throttles, span)[0]),
        held=held,
        late_ms=late_ms,
        **peer,
    )


def _after(span: Span, at_ms: int) -> float:
    return max(at_ms - span.heal_ms, 0) / 1_000


def _pause(times_ms: Sequence[int], cut_ms: int, until_ms: int) -> float:
    """The longest pause between two of these times, of those that end between the fault and the recovery."""
    pairs = pairwise(sorted(times_ms))
    return max((later - before for before, later in pairs if cut_ms <= later <= until_ms), default=0) / 1_000


def _finished(rigged: Rig) -> dict[int, int]:
    """When each batch was finished, by the job's log."""
    now = time.time()
    lines = [line for line in rigged.job.log if " batch_id=" in line and " age_ms=" in line]
    return {int(line.partition(" batch_id=")[2].split()[0]): logged_ms(line, now) for line in lines}


def _fresh_batches(rigged: Rig, since_ms: int) -> Iterator[int]:
    """The batches that have usage of after an instant."""
    topic = rigged.job.usage_topic
    consumer: Any = KafkaConsumer(bootstrap_servers=rigged.job.bootstrap_servers)
    with closing(consumer):
        wanted = {TopicPartition(topic, number): since_ms for number in consumer.partitions_for_topic(topic)}
        first = {part.partition: found.offset for part, found in consumer.offsets_for_times(wanted).items() if found}
    for row in rigged.job.table("batches", ["batch_id", "end_offsets"]).to_pylist():
        ends = {int(number): end for number, end in json.loads(row["end_offsets"])[topic].items()}
        if any(ends.get(number, 0) > offset for number, offset in first.items()):
            yield row["batch_id"]


def _late_ms(wait: tuple[str, int, int], seen: Sequence[tuple[int, Any]]) -> int:
    """How much longer a caller waited than any record of before it went on has held it; below 0: less."""
    user, _, went_ms = wait
    values = (json.loads(record.value) for _, record in seen if record.timestamp <= went_ms)
    ends: list[int] = [value["throttled_until_ms"] for value in values if holds(value, user, CLIENT_ID)]
    return went_ms - max(ends)


def main() -> int:
    """Play the rounds, and print the table. Returns 1 if a round has a problem."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.three_brokers", description="Cut a cluster apart.")
    parser.add_argument("--faults", default=",".join(FAULTS), help="comma-separated; all of them without it")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cut-seconds", type=float, default=15)
    parser.add_argument("--streams", action="store_true", help="Kafka Streams too, under the same fault; needs javac")
    parser.add_argument("--results", type=Path, help="a file with a line for each round, to which these are added")
    parser.add_argument("--report", type=Path, help="the Markdown file whose table is replaced")
    parser.add_argument("--keep", type=Path, help="a folder for what brokers and jobs leave")
    given = parser.parse_args()
    fetch()
    outcomes = []
    with tempfile.TemporaryDirectory() as temporary:
        for number, fault in enumerate(filter(None, given.faults.split(","))):
            folder = (given.keep or Path(temporary)) / f"{fault}-{given.seed}-{number}"
            began = time.monotonic()
            try:
                outcome = play(fault, folder, given.seed + number, given.cut_seconds, given.streams)
            except (OSError, PeerFailed) as failure:
                print(f"nothing was played: {failure}")  # noqa: T201
                return 1
            outcomes.append(outcome)
            print(f"{outcome} ({time.monotonic() - began:.0f} s)", flush=True)  # noqa: T201
    lines = [json.dumps(asdict(outcome)) for outcome in outcomes]
    if given.results:
        lines = (given.results.read_text().splitlines() if given.results.exists() else []) + lines
        given.results.write_text("\n".join(lines) + "\n")
    text = _table([Outcome(**json.loads(line)) for line in lines], given.cut_seconds)
    print(f"\n{text}")  # noqa: T201
    if given.report:
        write_part(given.report, *PART, text)
    return int(any(outcome.problems for outcome in outcomes))


def _table(outcomes: Sequence[Outcome], cut_seconds: float) -> str:
    """A row for each fault, with the worst of its rounds."""
    rows = []
    for fault, (about, _) in FAULTS.items():
        own = [outcome for outcome in outcomes if outcome.fault == fault]
        if not own:
            continue
        sums = [str(sum(outcome.counts[kind] for outcome in own)) for kind in ("compared", *KINDS[:3])]
        times = [_worst(own, name) for name in ("pause", "batch", "record", "sync", "peer_pause", "peer_result")]
        note = f" ({own[-1].note})" if own[-1].note else ""
        late = f"{sum(one.held for one in own)} / {max(one.late_ms for one in own)}"
        rows.append([f"{about}{note}", str(len(own)), *sums, *times, late])
    head = ["fault", "rounds", "compared", *KINDS[:3], "longest pause, s", "batch, s", "record, s", "sync, s"]
    head += ["Streams: pause, s", "Streams: result, s", "held / late, ms"]
    return f"{machine_line()}. A fault lasts {cut_seconds:g} s.\n\n{table_of(head, rows)}"


def _worst(outcomes: Sequence[Outcome], name: str) -> str:
    values = [value for outcome in outcomes if (value := getattr(outcome, name)) is not None]
    return f"{max(values):.1f}" if values else "–"


if __name__ == "__main__":
    sys.exit(main())
