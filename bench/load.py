"""Steady load on the usage topic, in a process of its own that costs little.

    python -m bench.load BOOTSTRAP_SERVERS EVENTS_PER_SECOND CLIENTS [EVENTS_PER_MESSAGE]

A client library spends some 25 µs on each record, so 20 000 a second would take half a core from what is measured. Here
the record batches are prepared once. To send one, only its event times and its checksum are written anew. The clients
take turns; 50 record batches a second, each to the next partition of the one broker. It runs until it is terminated, or
until the broker is gone.
"""

import re
import socket
import struct
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np
from crc32c import crc32c
from kafka import KafkaProducer
from kafka.protocol.producer import ProduceRequest
from kafka.record import MemoryRecordsBuilder
from kafka.record.default_records import DefaultRecordBatchBuilder

from schemas.names import USAGE_TOPIC

_VERSION: Final = 9


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


BATCHES_PER_SECOND: Final = 50
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


def prepared_batches(events_per_second: int, clients: int, events_per_message: int) -> list[TimedBatch]:
    messages_per_batch = max(events_per_second // BATCHES_PER_SECOND // events_per_message, 1)
    per_batch = messages_per_batch * events_per_message
    batches = []
    for first in range(0, clients, per_batch):
        events = [_event((first + number) % clients) for number in range(per_batch)]
        messages = [events[start : start + events_per_message] for start in range(0, per_batch, events_per_message)]
        batches.append(TimedBatch(0, [(None, _message(message, events_per_message)) for message in messages]))
    return batches


def _event(client: int) -> str:
    return (
        f'{{"event_time_ms":{10 ** (_DIGITS - 1)},"user":"team-{client % 997}","client_id":"service-{client}",'
        f'"produced_bytes":{200 + client % 800},"io_time_ns":{20_000 + client}}}'
    )


def _message(events: list[str], events_per_message: int) -> bytes:
    return (events[0] if events_per_message == 1 else f"[{','.join(events)}]").encode()


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


def send_without_end(bootstrap_servers: str, topic: str, of_turn: Callable[[int], tuple[int, TimedBatch]]) -> None:
    """Send the partition and batch of each turn, with the event times of now."""
    connection = BrokerConnection(bootstrap_servers)
    began, sent = time.monotonic(), 0
    while True:
        for number in range(sent, int((time.monotonic() - began) * BATCHES_PER_SECOND)):
            partition, batch = of_turn(number)
            connection.produce(topic, partition, batch.at(time.time_ns() // 1_000_000))
            sent = number + 1
        time.sleep(0.5 / BATCHES_PER_SECOND)


def run(bootstrap_servers: str, events_per_second: int, clients: int, events_per_message: int = 1) -> None:
    producer: Any = KafkaProducer(bootstrap_servers=bootstrap_servers)
    partitions = len(producer.partitions_for(USAGE_TOPIC))
    producer.close()
    batches = prepared_batches(events_per_second, clients, events_per_message)
    send_without_end(
        bootstrap_servers, USAGE_TOPIC, lambda number: (number % partitions, batches[number % len(batches)])
    )


if __name__ == "__main__":
    run(sys.argv[1], *map(int, sys.argv[2:]))
