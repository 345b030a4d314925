"""Three brokers that are cut apart, while a job runs on them under load; then the verifier.

    python -m tests.faults.three_brokers [--faults NAME,…] [--rounds N] [--cut-seconds 15] [--streams] [--report PAGE]

From the second round (`--seed`) on the faults come in another order. `--streams` has Kafka Streams too, under the same
faults, and needs javac; `--keep` is a folder for what brokers and jobs leave.

Brokers, job and clients are hosts of a network of their own (`Network`). Each round has a new cluster (KRaft, each node
broker and controller, replication factor 3, min ISR 2), new tables, its faults one after the other, and the same end:
the network is whole, the load ends, the job drains and stops. Ends with 1 if anything was lost, written twice or
different, a client of the gate waited after the end that was stored, or the job did not end by itself.
"""

import json
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from threading import Event, Thread
from typing import Any, Final

from kafka import KafkaConsumer, TopicPartition

from bench.machine import arguments, machine_line
from bench.pages import table as table_of
from bench.pages import write_part
from bench.peers.roster import PeerFailed, streams_classpath
from pipeline.cluster.connecting import open_client
from pipeline.gate import Gate
from pipeline.jvm.jars import fetch
from schemas.throttle_record import Target, holds
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
_LAST_QUOTA_FACTOR: Final = 1e4
_LAST_LINES: Final = 300
_AT_LEAST: Final = {
    **{"messages": 100, "batches": 5, "usage": 50, "dead_letters": 3},
    **{"decisions": 5, "renewals": 3, "releases": 3, "publish_seq": 10, "topic": 10},
}


class Watch:
    """What clients of this cluster see: callers of a gate, and stock consumers. To be closed.

    Attributes:
        waits: The user of each caller that had to wait at the gate, and when it went on.
        seen: Of each topic its records, each with when it could be read.
    """

    def __init__(self, servers: str, throttle_topic: str, *topics: str) -> None:
        self.waits: list[tuple[str, int]] = []
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
            with self.gate.acquire(user, CLIENT_ID) as passage:
                if passage.was_throttled and not self._stop.is_set():
                    self.waits.append((user, now_ms()))

    def _read(self, topic: str) -> None:
        consumer: Any = open_client(KafkaConsumer, self._servers, isolation_level="read_committed", **STOCK)
        with closing(consumer):
            consumer.assign([TopicPartition(topic, number) for number in consumer.partitions_for_topic(topic)])
            consumer.seek_to_beginning()
            while not self._stop.is_set():
                for records in consumer.poll(timeout_ms=100).values():
                    self.seen[topic] += [(now_ms(), record) for record in records]


@dataclass
class Fault:
    """One fault of a round: instants in epoch milliseconds, times in seconds; None: not measured.

    Attributes:
        note: How it was made, or why it was not.
        held: Clients that were held at the gate when it began.
        cut_ms, heal_ms, end_ms: When it began, when nothing was broken any more, when it was recovered from.
        pause, peer_pause: The longest time without a finished batch, or a result, from the fault to the recovery.
        batch, record, peer_result: From the heal to the first one that can be seen and has usage of after it; a
            throttle record: that could be read.
        sync: From the heal until an edit of during the fault is on the brokers as their own quota.
        late_ms: The longest that a caller of the gate waited after the end that could be read; below 0: less. It is
            wall time: a busy machine makes it longer.
    """

    name: str
    note: str = ""
    held: int = 0
    cut_ms: int = 0
    heal_ms: int = 0
    end_ms: int = 0
    pause: float = 0.0
    batch: float = 0.0
    record: float = 0.0
    sync: float = 0.0
    late_ms: int = 0
    peer_pause: float | None = None
    peer_result: float | None = None


@dataclass(frozen=True)
class Outcome:
    """One round: its faults, what was compared, and what the verifier has against it.

    Attributes:
        last_lines: Of the job's log, if it had to be ended because it did not end by itself.
    """

    faults: list[Fault]
    counts: dict[str, int]
    problems: list[str]
    last_lines: list[str]

    @property
    def late(self) -> list[str]:
        """The faults at which a caller of the gate waited longer than a machine without other work makes it wait."""
        return [f"{one.name}: waited {one.late_ms} ms too long" for one in self.faults if one.late_ms > _LATE_MS]


def play(faults: Sequence[str], folder: Path, seed: int, cut_seconds: float = 15, has_peer: bool = False) -> Outcome:
    """Run one round: in one life of cluster and job one fault after the other.

    Raises:
        OSError: This machine has no network namespaces; the message says why.
        AssertionError: The job or the cluster did not come back.
    """
    peer_classes = streams_classpath() if has_peer else ""  # a host of the network reaches no other network
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
        rigged = scene.rigged = stack.enter_context(rig("three", folder, scene.servers))
        stack.callback(lambda: (folder / "job.log").write_text("\n".join(rigged.job.log), encoding="utf-8"))
        if has_peer:
            stack.enter_context(streams_peer(scene, folder / "peer", peer_classes))
        stack.enter_context(quota_sync(scene, folder))
        rigged.begin_load(seed)
        with network.inside(JOB):
            rigged.start()
        peer = (PEER_SUMS,) if has_peer else ()
        watch = stack.enter_context(closing(Watch(scene.servers, "three.throttle", *peer)))
        wait_until(lambda: all(watch.seen.values()), "records and results")
        wait_until(lambda: synced_rate(scene.servers) > 0, "the sync's first quota")
        made = [_made(scene, watch, name, 10.0**number) for number, name in enumerate(faults, 1)]
        rigged.end_load()
        rigged.set_quotas(_LAST_QUOTA_FACTOR)  # releases all who would be held for what was sent meanwhile
        rigged.drain()
        code = rigged.job.stop()
        watch.close()
        for fault in made:
            _measure(fault, rigged, watch)
        verdict = rigged.verdict(_AT_LEAST)
        counts = dict[str, int]({kind: verdict.count(kind) for kind in KINDS[:3]}, compared=verdict.compared.total())
        return Outcome(made, counts, verdict.told(), rigged.job.log[-_LAST_LINES:] if code else [])


def _made(scene: Scene, watch: Watch, name: str, factor: float) -> Fault:
    """Make a fault, and wait until everything goes on."""
    rigged, fault = scene.rigged, Fault(name)
    scene.await_whole()
    wait_until(lambda: bool(watch.gate.throttles()), "a hold at the gate")
    time.sleep(_BEFORE_SECONDS)
    fault.held, fault.cut_ms = len(watch.gate.throttles()), now_ms()
    rigged.set_quotas(factor, SYNCED)
    fault.note = FAULTS[name][1](scene) or ""
    fault.heal_ms = now_ms()
    # The brokers together enforce the bound, so each at least a third of it.
    wait_until(
        lambda: synced_rate(scene.servers) > factor / 10 * RATES["producer_byte_rate"], "the edit on the brokers"
    )
    fault.sync = (now_ms() - fault.heal_ms) / 1_000
    rigged.job.wait_until(lambda: all(_fresh(watch, topic, fault) for topic in watch.seen), "news of after the heal")
    rigged.job.wait_until(
        lambda: any(went_ms >= fault.cut_ms for _, went_ms in list(watch.waits)), "a caller of the gate to go on"
    )
    since = len(rigged.job.log)
    time.sleep(_AFTER_SECONDS)
    rigged.job.wait_for_line("batch_id=", since)
    fault.end_ms = now_ms()
    return fault


def _fresh(watch: Watch, topic: str, fault: Fault) -> list[int]:
    """When the records of a topic could be read that are of after the heal, by their own time."""
    return [at_ms for at_ms, record in list(watch.seen[topic]) if record.timestamp >= fault.heal_ms]


def _measure(fault: Fault, rigged: Rig, watch: Watch) -> None:
    throttles, *peers = watch.seen
    finished = _finished(rigged)
    batch_ms = min(finished[batch_id] for batch_id in _fresh_batches(rigged, fault.heal_ms) if batch_id in finished)
    fault.pause = _pause(list(finished.values()), fault.cut_ms, batch_ms)
    fault.batch = (batch_ms - fault.heal_ms) / 1_000
    fault.record = (_fresh(watch, throttles, fault)[0] - fault.heal_ms) / 1_000
    for topic in peers:
        result_ms = _fresh(watch, topic, fault)[0]
        fault.peer_result = (result_ms - fault.heal_ms) / 1_000
        fault.peer_pause = _pause([at_ms for at_ms, _ in watch.seen[topic]], fault.cut_ms, result_ms)
    values = [(at_ms, record.timestamp, json.loads(record.value)) for at_ms, record in watch.seen[throttles]]
    within = [(user, went_ms) for user, went_ms in watch.waits if fault.cut_ms <= went_ms <= fault.end_ms]
    fault.late_ms = max(went_ms - _end_ms(values, user, went_ms) for user, went_ms in within)


def _end_ms(values: Sequence[tuple[int, int, Mapping[str, Any]]], user: str, now_ms: int) -> int:
    """Until when a user's caller is held, as far as it can know: the last record of each target counts.

    One that could not be read here yet may be read by the caller already; so it counts if it ends later.
    """
    ends_ms: dict[Target, int] = {}
    for read_ms, stored_ms, value in values:
        if stored_ms <= now_ms and holds(value, user, CLIENT_ID):
            target, end_ms = Target.of(value), value["throttled_until_ms"]
            ends_ms[target] = end_ms if read_ms <= now_ms else max(ends_ms.get(target, end_ms), end_ms)
    return max(ends_ms.values())


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


def main() -> int:
    """Play the rounds, and print the table. Returns 1 if a round has a problem, or a caller of the gate was late."""
    given = arguments(
        __doc__, faults=",".join(FAULTS), rounds=1, seed=1, cut_seconds=15.0, streams=False, report="", keep=""
    )
    fetch()
    faults, outcomes = given.faults.split(","), list[Outcome]()
    with tempfile.TemporaryDirectory() as temporary:
        for seed in range(given.seed, given.seed + given.rounds):
            folder, began = Path(given.keep or temporary) / str(seed), time.monotonic()
            order = random.Random(seed).sample(faults, len(faults)) if seed > 1 else faults
            try:
                outcome = play(order, folder, seed, given.cut_seconds, given.streams)
            except (OSError, PeerFailed) as failure:
                print(f"nothing was played: {failure}")  # noqa: T201
                return 1
            outcomes.append(outcome)
            print(f"{json.dumps(asdict(outcome))} ({time.monotonic() - began:.0f} s)", flush=True)  # noqa: T201
    text = _text(outcomes, given.cut_seconds)
    print(f"\n{text}")  # noqa: T201
    if given.report:
        write_part(Path(given.report), *PART, text)
    return int(any(outcome.problems or outcome.late or outcome.last_lines for outcome in outcomes))


def _text(rounds: Sequence[Outcome], cut_seconds: float) -> str:
    """What was compared, and a row for each fault with the worst of its rounds."""
    counts = ", ".join(f"{kind} {sum(one.counts[kind] for one in rounds)}" for kind in ("compared", *KINDS[:3]))
    rows = []
    for name, (about, _) in FAULTS.items():
        own = [fault for played in rounds for fault in played.faults if fault.name == name]
        if own:
            times = [_worst(own, time) for time in ("pause", "batch", "record", "sync", "peer_pause", "peer_result")]
            held = f"{sum(fault.held for fault in own)} / {max(fault.late_ms for fault in own)}"
            rows.append([f"{about}{own[-1].note and f' ({own[-1].note})'}", str(len(own)), *times, held])
    head = ["fault", "times", "longest pause, s", "batch, s", "record, s", "sync, s"]
    head += ["Streams: pause, s", "result, s", "held / late, ms"]
    about = (
        f"{machine_line()}. {len(rounds)} rounds, a fault lasts {cut_seconds:g} s: {counts}. The worst of each fault:"
    )
    return f"{about}\n\n{table_of(head, rows)}"


def _worst(faults: Sequence[Fault], name: str) -> str:
    values = [value for fault in faults if (value := getattr(fault, name)) is not None]
    return f"{max(values):.1f}" if values else "–"


if __name__ == "__main__":
    sys.exit(main())
