"""Sends many messages of one topic as prepared record batches: a few microseconds each."""

import time
from collections.abc import Iterable, Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa
from kafka import errors as kafka_errors

from pipeline.cluster.key_partitions import Ints, partitions_of
from pipeline.cluster.prepared_batches import HEADER_BYTES, Delivery, PreparedBatch, put
from pipeline.cluster.record_format import bodies_of, lengths_of, records_of
from schemas.throttle_messages import MessageColumns

MOST_BATCH_BYTES: Final = 1_000_000
"""Brokers and topics take at least so many bytes in a batch, unless they are told otherwise (`max.message.bytes`)."""

_FEWEST_BATCH_BYTES: Final = 16_384
_RECORD_OVERHEAD_BYTES: Final = 21  # the most that length, attributes, time and offset of a record take


class ColumnSender:
    """Sends within the transactions of producers, one after the other. One thread.

    While the library sends one part of the messages, the next one is prepared; of further ones there is nothing in
    memory. Batches that the topic finds too large are split by the library, and made smaller from then on.

    Args:
        topic: Where the messages go; each to the partition of its key.
        timeout_seconds: Longest wait for a batch.
    """

    def __init__(self, topic: str, timeout_seconds: float) -> None:
        self._topic = topic
        self._timeout_seconds = timeout_seconds
        self._batch_bytes = MOST_BATCH_BYTES
        self._sent: list[Delivery] = []

    def send(self, producer: Any, parts: Iterable[MessageColumns]) -> list[Delivery]:
        """Send messages; they are in the order of the parts within each partition.

        Args:
            producer: A `KafkaProducer` in a transaction.
            parts: Messages, each part at least one.

        Returns:
            The deliveries, of which the last may not be done yet.

        Raises:
            MessageSizeTooLargeError: A message is larger than the producer takes.
            KafkaError: Something was not stored.
        """
        self._learn_from_splits()
        numbers = np.array(sorted(producer.partitions_for(self._topic)))
        most_bytes = producer.config["max_request_size"]
        before = 0
        for part in parts:
            batches = list(prepared(part, numbers, self._batch_bytes, most_bytes, time.time_ns() // 1_000_000))
            for delivery in self._sent[before:]:
                delivery.get(self._timeout_seconds)
            before = len(self._sent)
            self._sent += [put(producer, self._topic, batch) for batch in batches]
        return self._sent

    def _learn_from_splits(self) -> None:
        if any(delivery.was_split for delivery in self._sent):
            self._batch_bytes = max(self._batch_bytes // 2, _FEWEST_BATCH_BYTES)
        self._sent = []


def prepared(
    messages: MessageColumns, numbers: Ints, batch_bytes: int, message_bytes: int, timestamp_ms: int
) -> Iterator[PreparedBatch]:
    """Messages as record batches, those of each partition in their order.

    Args:
        messages: At least one.
        numbers: Of the topic's partitions, ascending.
        batch_bytes: The most a batch may have, before it is compressed, unless it is of one message.
        message_bytes: The most a message may have.
        timestamp_ms: The time of all messages.

    Raises:
        MessageSizeTooLargeError: A message has more.
    """
    bodies = bodies_of(messages)
    sizes = lengths_of(bodies) + _RECORD_OVERHEAD_BYTES
    _refuse_larger(int(sizes.max()) + HEADER_BYTES, message_bytes)
    places = partitions_of(messages.keys, len(numbers))
    order = np.argsort(places, kind="stable")
    places, sizes = places[order], sizes[order]
    starts = np.array(list(_starts(places, sizes, batch_bytes - HEADER_BYTES)))
    counts = np.diff(starts, append=len(order))
    records = records_of(bodies.take(pa.array(order)), np.arange(len(order)) - np.repeat(starts, counts))
    _, offsets, data = records.buffers()
    ends = np.frombuffer(offsets, np.int32, len(records) + 1, records.offset * np.dtype(np.int32).itemsize)
    for start, count in zip(starts.tolist(), counts.tolist(), strict=True):
        content = memoryview(data)[ends[start] : ends[start + count]]
        yield PreparedBatch(int(numbers[places[start]]), content, count, timestamp_ms)


def _starts(places: Ints, sizes: Ints, most_bytes: int) -> Iterator[int]:
    """Where batches begin: with each partition, and wherever the next record would be too much."""
    ends = np.cumsum(sizes)
    start, stop = 0, len(places)
    while start < stop:
        yield start
        of_partition = int(np.searchsorted(places, places[start], side="right"))
        fitting = int(np.searchsorted(ends, ends[start] - sizes[start] + most_bytes, side="right"))
        start = min(of_partition, max(fitting, start + 1))


def _refuse_larger(largest_bytes: int, most_bytes: int) -> None:
    if largest_bytes > most_bytes:
        message = f"a message has {largest_bytes} bytes; the producer takes at most {most_bytes} (max_request_size)"
        raise kafka_errors.MessageSizeTooLargeError(message)
