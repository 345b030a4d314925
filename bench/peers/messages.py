"""What all peers read: the same messages for each of them, once as objects and once as arrays.

This program is a steady load of keyed object messages, in a process of its own that costs little.

    python -m bench.peers.messages BOOTSTRAP_SERVERS TOPIC EVENTS_PER_SECOND CLIENTS

As `bench.load`, with keys: every message is on the partition of its client. It runs until it is terminated.
"""

import json
import random
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from threading import Event, Thread
from typing import Any, Final, Literal, Self

from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.partitioner.default import murmur2

from bench.load import BATCHES_PER_SECOND, BrokerConnection, TimedBatch, send_without_end
from bench.stage import add_topics
from pipeline.cluster.topics import TopicSpec

MEASURES: Final = ("produced_bytes", "fetched_bytes", "io_time_ns", "network_time_ns", "request_count")
WINDOW_MS: Final = 1_000

Key = tuple[int, str, str]
"""Start of the second in ms since the epoch, user, client-id."""
Sums = tuple[int, ...]
"""A sum for each of `MEASURES`."""


def sums_of(values: Iterable[bytes]) -> dict[Key, Sums]:
    sums: dict[Key, list[int]] = {}
    for value in values:
        told = json.loads(value)
        for event in told if isinstance(told, list) else (told,):
            time_ms = event["event_time_ms"]
            key = (time_ms - time_ms % WINDOW_MS, event["user"], event["client_id"])
            measured = [event[name] for name in MEASURES]
            before = sums.get(key)
            sums[key] = measured if before is None else [a + b for a, b in zip(before, measured, strict=True)]
    return {key: tuple(total) for key, total in sums.items()}


def shifted(sums: Mapping[Key, Sums], by_ms: int) -> dict[Key, Sums]:
    if by_ms % WINDOW_MS:
        message = f"{by_ms} ms are no whole seconds"
        raise ValueError(message)
    return {(second_ms + by_ms, user, client_id): total for (second_ms, user, client_id), total in sums.items()}


@dataclass(frozen=True, slots=True)
class Difference:
    """How results differ from the right answer."""

    missing: int = 0  # keys without a result
    unexpected: int = 0  # results that should not be
    wrong: int = 0  # keys with another sum
    example: str = ""  # the first of them, in words; "" if all is right

    @property
    def is_right(self) -> bool:
        return not (self.missing or self.unexpected or self.wrong)

    def __str__(self) -> str:
        if self.is_right:
            return "right"
        return f"{self.missing} missing, {self.unexpected} unexpected, {self.wrong} wrong; {self.example}"


def compare(expected: Mapping[Key, Sums], got: Mapping[Key, Sums]) -> Difference:
    missing = [key for key in expected if key not in got]
    unexpected = [key for key in got if key not in expected]
    wrong = [key for key, sums in expected.items() if key in got and got[key] != sums]
    examples = [
        *(f"{key} is {got[key]}, not {expected[key]}" for key in wrong[:1]),
        *(f"{key} is missing, expected {expected[key]}" for key in missing[:1]),
        *(f"{key} is unexpected: {got[key]}" for key in unexpected[:1]),
    ]
    return Difference(len(missing), len(unexpected), len(wrong), next(iter(examples), ""))


Shape = Literal["object", "array"]
SHAPES: Final[tuple[Shape, ...]] = ("object", "array")

PARTITIONS: Final = 4
EVENTS_PER_SECOND: Final = 100_000
"""Of event time."""
CLOSING_USER: Final = "closing"
"""Its events come last in each partition, and let windows of event time end. They are in no comparison."""

_ARRAY_LENGTH: Final = 100
_MESSAGES_PER_BATCH: Final[Mapping[Shape, int]] = {"object": 500, "array": 8}
_CLOSING_AFTER_MS: Final = 2_000


def partition_of(key: bytes) -> int:
    return int(murmur2(key) & 0x7FFFFFFF) % PARTITIONS


@dataclass(frozen=True)
class Backlog:
    """Messages that wait in a topic, in both shapes, and the sums that they must give."""

    batches: Mapping[Shape, Sequence[TimedBatch]]  # of each shape, in the order in which they are sent
    sums: Mapping[Key, Sums]  # what the oracle makes of the messages as they are built
    event_count: int  # without the closing ones
    span_ms: int  # by how much a copy must be moved, so that it begins after the end of the one before it

    @classmethod
    def build(cls, events: int, clients: int, start_ms: int) -> "Backlog":
        count = -(-events // _ARRAY_LENGTH) * _ARRAY_LENGTH
        made = list(_events(count, clients, start_ms))
        end_ms = start_ms + count * 1000 // EVENTS_PER_SECOND
        closing_ms = -(-end_ms // 1000) * 1000 + _CLOSING_AFTER_MS
        batches: dict[Shape, Sequence[TimedBatch]] = {
            "object": [*_objects(made), *closing_batches("object", closing_ms)],
            "array": [*_arrays(made), *closing_batches("array", closing_ms)],
        }
        sums = sums_of(value for _, value in made)
        return cls(batches, sums, count, closing_ms + _CLOSING_AFTER_MS - start_ms)

    def send(self, bootstrap_servers: str, topic: str, shape: Shape, copy: int) -> None:
        """Send one copy to a topic; each copy is later than the one before it by `span_ms`."""
        before = messages_in(bootstrap_servers, topic)
        connection = BrokerConnection(bootstrap_servers)
        for batch in self.batches[shape]:
            connection.produce(topic, batch.partition, batch.shifted(copy * self.span_ms))
        taken = messages_in(bootstrap_servers, topic) - before
        sent = sum(batch.message_count for batch in self.batches[shape])
        if taken != sent:
            message = f"the broker took {taken} of {sent} messages"
            raise RuntimeError(message)

    def expected(self, copy: int) -> dict[Key, Sums]:
        return shifted(self.sums, copy * self.span_ms)


def messages_in(bootstrap_servers: str, topic: str) -> int:
    """The messages of a topic without deletion and compaction, counted. Waits for the leader of each partition."""
    consumer: Any = KafkaConsumer(bootstrap_servers=bootstrap_servers)
    ends = consumer.end_offsets(partitions_of(consumer, topic))
    consumer.close()
    return int(sum(ends.values()))


def partitions_of(consumer: Any, topic: str) -> list[TopicPartition]:
    return [TopicPartition(topic, number) for number in sorted(consumer.partitions_for_topic(topic) or ())]


def create_logged_topics(bootstrap_servers: str, topics: Sequence[str]) -> None:
    """With `LogAppendTime`. Waits for their leaders: a load that came before them would be lost."""
    append_time = {"message.timestamp.type": "LogAppendTime"}
    add_topics(bootstrap_servers, [TopicSpec(topic, "usage", PARTITIONS, "any", append_time, {}) for topic in topics])
    messages_in(bootstrap_servers, topics[0])


def _events(count: int, clients: int, start_ms: int) -> Iterator[tuple[bytes, bytes]]:
    draw = random.Random(7)
    for number in range(count):
        client = draw.randrange(clients)
        yield event(client, start_ms + number * 1000 // EVENTS_PER_SECOND, draw)


def event(client: int, time_ms: int, draw: random.Random) -> tuple[bytes, bytes]:
    user, client_id = f"user-{client % 1000}", f"client-{client}"
    text = (
        f'{{"event_time_ms":{time_ms},"user":"{user}","client_id":"{client_id}","broker_id":"{client % 3}",'
        f'"produced_bytes":{draw.randrange(100_000)},"fetched_bytes":{draw.randrange(100_000)},'
        f'"io_time_ns":{draw.randrange(1_000_000)},"network_time_ns":{draw.randrange(1_000_000)},"request_count":1}}'
    )
    return f"{user}/{client_id}".encode(), text.encode()


def _objects(made: Sequence[tuple[bytes, bytes]]) -> Iterator[TimedBatch]:
    waiting: list[list[tuple[bytes | None, bytes]]] = [[] for _ in range(PARTITIONS)]
    partition_by_key: dict[bytes, int] = {}
    for key, value in made:
        if key not in partition_by_key:
            partition_by_key[key] = partition_of(key)
        partition = partition_by_key[key]
        waiting[partition].append((key, value))
        if len(waiting[partition]) == _MESSAGES_PER_BATCH["object"]:
            yield TimedBatch(partition, waiting[partition])
            waiting[partition] = []
    yield from (TimedBatch(partition, messages) for partition, messages in enumerate(waiting) if messages)


def _arrays(made: Sequence[tuple[bytes, bytes]]) -> Iterator[TimedBatch]:
    starts = range(0, len(made), _ARRAY_LENGTH)
    messages: list[tuple[bytes | None, bytes]] = [
        (None, b"[" + b",".join(value for _, value in made[start : start + _ARRAY_LENGTH]) + b"]") for start in starts
    ]
    size = _MESSAGES_PER_BATCH["array"]
    for number, start in enumerate(range(0, len(messages), size)):
        yield TimedBatch(number % PARTITIONS, messages[start : start + size])


def closing_batches(shape: Shape, time_ms: int) -> Iterator[TimedBatch]:
    """An event for each partition, with a key that belongs there; it ends windows that are over 1.2 s before it."""
    open_partitions, number = set(range(PARTITIONS)), 0
    while open_partitions:
        key = f"{CLOSING_USER}/{number}".encode()
        partition = partition_of(key)
        if partition in open_partitions:
            open_partitions.remove(partition)
            text = (
                f'{{"event_time_ms":{time_ms},"user":"{CLOSING_USER}","client_id":"{number}","produced_bytes":1,'
                '"fetched_bytes":1,"io_time_ns":1,"network_time_ns":1,"request_count":1}'
            ).encode()
            yield TimedBatch(partition, [(key, text) if shape == "object" else (None, b"[" + text + b"]")])
        number += 1


PROBE_USER: Final = "probe"
PROBE_MEASURES: Final = (1, 2, 3, 4, 1)
_PER_SECOND: Final = 10.0


class Probes:
    """Sends probes on a thread, while its block runs; `sent_ms` is the wall clock before each produce call."""

    def __init__(self, bootstrap_servers: str, topic: str) -> None:
        self.sent_ms: dict[str, float] = {}
        self._topic = topic
        self._producer: Any = KafkaProducer(bootstrap_servers=bootstrap_servers, linger_ms=0)
        self._stop = Event()
        self._draw = random.Random(7)
        self._thread = Thread(target=self._send, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._producer.flush()
        self._producer.close()

    def _send(self) -> None:
        # Random pauses: a probe that comes in step with windows or triggers would measure the step.
        while not self._stop.wait(2 * self._draw.random() / _PER_SECOND):
            client_id = str(len(self.sent_ms))
            now_ms = time.time() * 1000
            event = {"event_time_ms": int(now_ms), "user": PROBE_USER, "client_id": client_id}
            event |= dict(zip(MEASURES, PROBE_MEASURES, strict=True))
            self.sent_ms[client_id] = now_ms
            self._producer.send(self._topic, json.dumps(event).encode(), key=f"{PROBE_USER}/{client_id}".encode())


_TIME_MS = 10**12  # any time of 13 digits


def batches_of(partition: int, clients: Sequence[int], size: int) -> list[TimedBatch]:
    draw = random.Random(partition)
    count = max(len(clients) // size, 1)
    turns = [[clients[(first * size + turn) % len(clients)] for turn in range(size)] for first in range(count)]
    return [TimedBatch(partition, [event(client, _TIME_MS, draw) for client in turn]) for turn in turns]


def run(bootstrap_servers: str, topic: str, events_per_second: int, clients: int) -> None:
    at: list[list[int]] = [[] for _ in range(PARTITIONS)]
    for client in range(clients):
        at[partition_of(f"user-{client % 1000}/client-{client}".encode())].append(client)
    size = events_per_second // BATCHES_PER_SECOND
    by_partition = [batches_of(partition, clients_there, size) for partition, clients_there in enumerate(at)]

    def of_turn(number: int) -> tuple[int, TimedBatch]:
        turn, partition = divmod(number, PARTITIONS)
        return partition, by_partition[partition][turn % len(by_partition[partition])]

    send_without_end(bootstrap_servers, topic, of_turn)


if __name__ == "__main__":
    run(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
