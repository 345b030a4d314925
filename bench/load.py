"""Steady load on a topic, in a process of its own that costs little.

    python -m bench.load BOOTSTRAP_SERVERS TOPIC EVENTS_PER_SECOND CLIENTS EVENTS_PER_MESSAGE

A client library spends some 25 µs on each record, so 20 000 a second would take half a core from what is measured. Here
the record batches are prepared once. To send one, only its event times and its checksum are written anew. The clients
take turns; some 50 record batches a second. It runs until it is terminated, or until the broker is gone.
"""

import random
import re
import socket
import struct
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import cycle
from typing import Any, Final

import numpy as np
from crc32c import crc32c
from kafka import KafkaConsumer, TopicPartition
from kafka.partitioner.default import murmur2
from kafka.protocol.producer import ProduceRequest
from kafka.record import MemoryRecordsBuilder
from kafka.record.default_records import DefaultRecordBatchBuilder

_VERSION: Final = 9
_BATCHES_PER_SECOND: Final = 50
_ANY_TIME_MS: Final = 10**12


def produce_request(topic: str, partition: int, records: bytes, client_id: str = "load") -> bytes:
    """The request with its length and header; acks=1."""
    data = ProduceRequest.TopicProduceData
    part = data.PartitionProduceData(index=partition, records=records)
    request: Any = ProduceRequest(
        transactional_id=None,
        acks=1,
        timeout_ms=30_000,
        topic_data=[data(name=topic, partition_data=[part])],
        version=_VERSION,
    )
    request.with_header(client_id=client_id)
    return bytes(request.encode(header=True, framed=True))


_TIME: Final = b'"event_time_ms":'
_DIGITS: Final = 13  # of an event time, from 2001 to 2286
_POWERS: Final = 10 ** np.arange(_DIGITS - 1, -1, -1)
_CRC_OFFSET: Final = DefaultRecordBatchBuilder.CRC_OFFSET
_CHECKED_FROM: Final = DefaultRecordBatchBuilder.ATTRIBUTES_OFFSET


class TimedBatch:
    """A record batch for one partition whose events can be moved in time."""

    def __init__(self, partition: int, messages: Sequence[tuple[bytes | None, bytes]]) -> None:
        builder: Any = MemoryRecordsBuilder(2, 0, batch_size=2**31 - 1)
        for key, value in messages:
            builder.append(timestamp=None, key=key, value=value)
        builder.close()
        self.partition = partition
        self.message_count = len(messages)
        self._bytes = np.frombuffer(bytearray(builder.buffer()), dtype=np.uint8)
        starts = [found.end() for found in re.finditer(_TIME, self._bytes.tobytes())]
        self._places = np.array(starts)[:, None] + np.arange(_DIGITS)
        self.event_count = len(starts)
        self._times_ms = (self._bytes[self._places].astype(np.int64) - ord("0")) @ _POWERS

    def shifted(self, by_ms: int) -> bytes:
        """The batch with all events so much later than they were built, as bytes for a produce request."""
        return self._with_times(self._times_ms + by_ms)

    def at(self, now_ms: int) -> bytes:
        return self._with_times(np.full_like(self._times_ms, now_ms))

    def _with_times(self, times_ms: "np.ndarray[Any, np.dtype[np.int64]]") -> bytes:
        self._bytes[self._places] = times_ms[:, None] // _POWERS % 10 + ord("0")
        checksum = struct.pack(">I", crc32c(self._bytes[_CHECKED_FROM:].tobytes()))
        self._bytes[_CRC_OFFSET : _CRC_OFFSET + 4] = np.frombuffer(checksum, dtype=np.uint8)
        return self._bytes.tobytes()


def event(client: int, time_ms: int, draw: random.Random) -> tuple[bytes, bytes]:
    """A message with one event of a client, and its key."""
    user, client_id = f"user-{client % 1000}", f"client-{client}"
    text = (
        f'{{"event_time_ms":{time_ms},"user":"{user}","client_id":"{client_id}","broker_id":"{client % 3}",'
        f'"produced_bytes":{draw.randrange(100_000)},"fetched_bytes":{draw.randrange(100_000)},'
        f'"io_time_ns":{draw.randrange(1_000_000)},"network_time_ns":{draw.randrange(1_000_000)},"request_count":1}}'
    )
    return f"{user}/{client_id}".encode(), text.encode()


def partition_of(key: bytes, partitions: int) -> int:
    """As Kafka's clients choose it."""
    return int(murmur2(key) & 0x7FFFFFFF) % partitions


def objects(events: Sequence[tuple[bytes, bytes]], partitions: int, batch_size: int) -> Iterator[TimedBatch]:
    """A message for each event, with its key and on the partition of that."""
    waiting: list[list[tuple[bytes | None, bytes]]] = [[] for _ in range(partitions)]
    for key, value in events:
        partition = partition_of(key, partitions)
        waiting[partition].append((key, value))
        if len(waiting[partition]) == batch_size:
            yield TimedBatch(partition, waiting[partition])
            waiting[partition] = []
    yield from (TimedBatch(partition, messages) for partition, messages in enumerate(waiting) if messages)


def arrays(
    events: Sequence[tuple[bytes, bytes]], partitions: int, batch_size: int, events_per_message: int
) -> Iterator[TimedBatch]:
    """Messages with several events and without a key; each record batch goes to the next partition."""
    messages: list[tuple[bytes | None, bytes]] = [
        (None, b"[" + b",".join(value for _, value in events[start : start + events_per_message]) + b"]")
        for start in range(0, len(events), events_per_message)
    ]
    for number, start in enumerate(range(0, len(messages), batch_size)):
        yield TimedBatch(number % partitions, messages[start : start + batch_size])


def steady_batches(
    events_per_second: int, clients: int, events_per_message: int, partitions: int
) -> Iterator[TimedBatch]:
    """An event of each client, in the record batches of a steady load."""
    draw, size = random.Random(7), max(events_per_second // _BATCHES_PER_SECOND // events_per_message, 1)
    events = [event(client, _ANY_TIME_MS, draw) for client in range(clients)]
    if events_per_message == 1:
        return objects(events, partitions, size)
    return arrays(events, partitions, size, events_per_message)


class BrokerConnection:
    """One connection to the only broker of a cluster, without security.

    Requests wait on it in order, and so do their responses; `OSError` if the broker is gone.
    """

    def __init__(self, bootstrap_servers: str) -> None:
        host, _, port = bootstrap_servers.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=30)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._due: deque[float] = deque()
        self._received = bytearray()

    def produce(self, topic: str, partition: int, records: bytes) -> None:
        """Send one record batch, and wait until the broker has it."""
        self.send(produce_request(topic, partition, records), 0)
        while not list(self.receive()):
            pass

    def send(self, request: bytes, due: float) -> None:
        self._due.append(due)
        self.socket.sendall(request)

    def receive(self) -> Iterator[float]:
        """Take what has arrived: of each response the time at which its request was due."""
        more = self.socket.recv(65_536)
        if not more:
            message = "the broker has closed the connection"
            raise OSError(message)
        self._received += more
        while len(self._received) >= 4:
            end = 4 + struct.unpack_from(">i", self._received)[0]
            if len(self._received) < end:
                return
            del self._received[:end]
            yield self._due.popleft()


def partitions_of(consumer: Any, topic: str) -> list[TopicPartition]:
    return [TopicPartition(topic, number) for number in sorted(consumer.partitions_for_topic(topic) or ())]


def messages_in(bootstrap_servers: str, topic: str) -> dict[int, int]:
    """How many messages each partition of a topic without deletion and compaction has. Waits for their leaders."""
    consumer: Any = KafkaConsumer(bootstrap_servers=bootstrap_servers)
    ends = consumer.end_offsets(partitions_of(consumer, topic))
    consumer.close()
    return {partition.partition: end for partition, end in ends.items()}


def run(bootstrap_servers: str, topic: str, events_per_second: int, clients: int, events_per_message: int) -> None:
    partitions = len(messages_in(bootstrap_servers, topic))
    batches = list(steady_batches(events_per_second, clients, events_per_message, partitions))
    connection = BrokerConnection(bootstrap_servers)
    began, sent = time.monotonic(), 0
    for batch in cycle(batches):
        time.sleep(max(began + sent / events_per_second - time.monotonic(), 0.0))
        connection.produce(topic, batch.partition, batch.at(time.time_ns() // 1_000_000))
        sent += batch.event_count


if __name__ == "__main__":
    run(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:]))
