"""Sends many messages of one topic as prepared record batches: a few microseconds each."""

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import kafka
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from kafka import TopicPartition
from kafka import errors as kafka_errors
from kafka.partitioner.default import murmur2
from kafka.producer.future import FutureRecordMetadata
from kafka.producer.producer_batch import ProducerBatch
from kafka.record import MemoryRecordsBuilder
from kafka.record.default_records import DefaultRecordBatchBuilder
from kafka.record.util import encode_varint

from quota.arrays import Ints
from schemas.throttle_messages import MessageColumns

Binaries: TypeAlias = "pa.Array[Any]"

# The one place where record batches go into kafka-python's producer as a whole, through its inside.
#
# `KafkaProducer.send` takes records one by one, at some 45 µs each. A prepared batch skips no more than that: it is put
# where `send` would have put its records, in the accumulator. Transaction, producer id, epoch, sequence numbers, order,
# retries, splitting, compression, header and check sum stay the library's.
#
# The names used here are not public: another version than `TRIED_VERSION` gets its records one by one.

TRIED_VERSION: Final = "3.0.12"
HEADER_BYTES: Final[int] = DefaultRecordBatchBuilder.HEADER_STRUCT.size
_MAGIC: Final = 2
_FULL: Final = 1  # a size that is reached: nothing can be appended


@dataclass(frozen=True, slots=True)
class PreparedBatch:
    """Records of one partition, at least one: their bytes as `records_of` makes them, not compressed."""

    partition: int
    records: "memoryview[int]"
    count: int
    timestamp_ms: int


class Delivery(Sequence[Any]):
    """Whether a batch is stored; `get` as a record's future has it.

    To kafka-python it is the list of the futures of the batch's records. It asks for them only when it splits a batch
    that the broker finds too large, and from then on each record has a future of its own.
    """

    def __init__(self, whole: Any, count: int) -> None:
        self._whole = whole
        self._count = count
        self._last = self._future(count - 1)
        self._others: list[Any] = []

    @property
    def was_split(self) -> bool:
        """Whether the broker has found the batch too large."""
        return bool(self._others)

    def get(self, timeout: float) -> None:
        """Wait until all records are stored, or raise `KafkaError`; so many seconds for each part of the batch."""
        self._last.get(timeout)
        for future in self._others:
            future.get(timeout)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            return [self[each] for each in range(self._count)[place]]
        if range(self._count)[place] == self._count - 1:
            return self._last
        self._others.append(self._future(place))
        return self._others[-1]

    def _future(self, place: int) -> Any:
        return FutureRecordMetadata(self._whole, place, None, None, -1, -1, -1)


def can_prepare() -> bool:
    """Whether this is the version of kafka-python whose inside is known."""
    return bool(kafka.__version__ == TRIED_VERSION)


def put(producer: Any, topic: str, batch: PreparedBatch) -> Delivery:
    """Send a batch within the open transaction of a `KafkaProducer`, behind what it has for the partition.

    `KafkaError` if there is no open transaction, or the producer has failed or is closed.
    """
    partition = TopicPartition(topic, batch.partition)
    producer._transaction_manager.maybe_add_partition_to_transaction(partition)
    accumulator = producer._accumulator
    prepared = batch_of(partition, batch, accumulator.config["compression_attrs"])
    accumulator._appends_in_progress.increment()
    try:
        with accumulator._tp_lock(partition):
            if accumulator._closed:
                message = "the producer is closed"
                raise kafka_errors.IllegalStateError(message)
            accumulator._batches[partition].append(prepared)
            accumulator._incomplete.add(prepared)
    finally:
        accumulator._appends_in_progress.decrement()
    producer._sender.wakeup()
    delivery: Delivery = prepared._record_futures
    return delivery


def batch_of(partition: TopicPartition, batch: PreparedBatch, compression: int) -> Any:
    """The library's batch, as if each of the records had been appended to it."""
    records: Any = MemoryRecordsBuilder(_MAGIC, compression, _FULL)
    records._next_offset = batch.count
    builder = records._builder
    builder._buffer += batch.records
    builder._first_timestamp = builder._max_timestamp = batch.timestamp_ms
    builder._last_offset = batch.count - 1
    builder._num_records = batch.count
    prepared = ProducerBatch(partition, records)
    prepared._record_futures = Delivery(prepared.produce_future, batch.count)
    return prepared


# Records in Kafka's format (version 2) by columns: the same bytes as kafka-python writes one by one.

_NO_ATTRIBUTES_SAME_TIME = b"\x00\x00"


def bodies_of(messages: MessageColumns) -> "Binaries":
    """What of each record does not depend on its place in a batch: key, value and headers with their lengths."""
    pieces: list[Binaries | bytes] = [*_with_length(messages.keys), *_with_length(messages.values)]
    pieces.append(_varint(len(messages.headers)))
    for name, values in messages.headers:
        pieces += [*_with_length(name.encode()), *_with_length(values)]
    return _joined(pieces)


def records_of(bodies: "Binaries", places: Ints) -> "Binaries":
    """Whole records, which all have the time of their batch; each with its place there, from 0 on."""
    offsets = _varints(places)
    sizes = len(_NO_ATTRIBUTES_SAME_TIME) + lengths_of(offsets) + lengths_of(bodies)
    return _joined([_varints(sizes), _NO_ATTRIBUTES_SAME_TIME, offsets, bodies])


def lengths_of(values: "Binaries") -> Ints:
    """The number of bytes of each value."""
    lengths: Ints = pc.binary_length(values).to_numpy().astype(np.int64)
    return lengths


def _with_length(value: "Binaries | bytes") -> "Sequence[Binaries | bytes]":
    if isinstance(value, bytes):
        return [_varint(len(value)) + value]
    return [_varints(lengths_of(value)), value]


def _varints(numbers: Ints) -> "Binaries":
    """Each number in Kafka's variable length; equal numbers are encoded once."""
    encoded = pa.array(numbers).dictionary_encode()
    each = [_varint(number) for number in encoded.dictionary.to_pylist()]
    return pa.array(each, pa.binary()).take(encoded.indices)


def _varint(number: int) -> bytes:
    written = bytearray()
    encode_varint(number, written.append)
    return bytes(written)


def _joined(pieces: "Sequence[Binaries | bytes]") -> "Binaries":
    merged: list[Any] = []
    for piece in pieces:
        if merged and isinstance(piece, bytes) and isinstance(merged[-1], bytes):
            merged[-1] += piece
        else:
            merged.append(piece)
    joined: Binaries = pc.binary_join_element_wise(*merged, b"")
    return joined


# To which partition each key belongs: as kafka-python's default partitioner, for a column of keys.

_Words = npt.NDArray[np.uint32]
_SEED: Final = np.uint32(0x9747B28C)
_MIX: Final = np.uint32(0x5BD1E995)
_POSITIVE: Final = 0x7FFFFFFF
_WORD_BYTES: Final = 4
_FEW: Final = 100  # keys that one step over columns must have, to be quicker than a step for each


def partitions_of(keys: "pa.Array[Any]", count: int) -> Ints:
    """The partition of each key (binary, no nulls) of so many partitions."""
    hashes = murmur2_of(keys).astype(np.int64)
    partitions: Ints = (hashes & _POSITIVE) % count
    return partitions


def murmur2_of(keys: "pa.Array[Any]") -> _Words:
    """The hash of each key. Keys that are longer than nearly all others are hashed one by one."""
    _, offsets, data = keys.buffers()
    ends = np.frombuffer(offsets, np.int32, len(keys) + 1, keys.offset * _WORD_BYTES).astype(np.int64)
    lengths = np.diff(ends)
    text = np.zeros(ends[-1] + _WORD_BYTES, np.uint8)  # so that a word can be read from each place
    text[: ends[-1]] = np.frombuffer(data or b"", np.uint8, ends[-1])
    longest = int(np.partition(lengths, -_FEW - 1)[-_FEW - 1]) if len(lengths) > _FEW else 0
    in_columns = np.flatnonzero(lengths <= longest)
    hashes = np.empty(len(keys), np.uint32)
    hashes[in_columns] = _hashed(text, ends[:-1][in_columns], lengths[in_columns])
    for place in np.flatnonzero(lengths > longest):
        hashes[place] = murmur2(keys[int(place)].as_py())
    return hashes


def _hashed(text: npt.NDArray[np.uint8], starts: Ints, lengths: Ints) -> _Words:
    words: Any = np.ndarray(len(text) - _WORD_BYTES + 1, "<u4", text.data, strides=(1,))  # from each place
    order = np.argsort(-lengths, kind="stable")
    starts, lengths = starts[order], lengths[order]
    hashes = _SEED ^ lengths.astype(np.uint32)
    num_words = lengths // _WORD_BYTES
    for step in range(int(num_words.max(initial=0))):
        # The longest keys come first, so those that still have a word are the first ones.
        still = np.searchsorted(-num_words, -step, side="left")
        word = words[starts[:still] + _WORD_BYTES * step] * _MIX
        word ^= word >> 24
        hashes[:still] = hashes[:still] * _MIX ^ word * _MIX
    rest = lengths % _WORD_BYTES
    tail = words[starts + lengths - rest] & ((1 << (8 * rest)) - 1).astype(np.uint32)
    hashes = np.where(rest > 0, (hashes ^ tail) * _MIX, hashes)
    hashes ^= hashes >> 13
    hashes *= _MIX
    hashes ^= hashes >> 15
    unsorted = np.empty_like(hashes)
    unsorted[order] = hashes
    return unsorted


MOST_BATCH_BYTES: Final = 1_000_000
"""The bytes of a batch that brokers and topics take at least, unless configured otherwise (`max.message.bytes`)."""

_FEWEST_BATCH_BYTES: Final = 16_384
_RECORD_OVERHEAD_BYTES: Final = 21  # the most that length, attributes, time and offset of a record take


class ColumnSender:
    """Sends to a topic, within the transactions of producers, one after the other. One thread.

    While the library sends one part of the messages, the next one is prepared; of further ones there is nothing in
    memory. Batches that the topic finds too large are split by the library, and made smaller from then on.
    """

    def __init__(self, topic: str, timeout_seconds: float) -> None:
        self._topic = topic
        self._timeout_seconds = timeout_seconds
        self._batch_bytes = MOST_BATCH_BYTES
        self._sent: list[Delivery] = []

    def send(self, producer: Any, parts: Iterable[MessageColumns]) -> list[Delivery]:
        """Send parts of at least one message, in their order, to the partitions of their keys.

        Returns the deliveries, of which the last may not be done yet.

        Raises:
            MessageSizeTooLargeError: A message is larger than the producer takes.
            KafkaError: Something was not stored.
        """
        if any(delivery.was_split for delivery in self._sent):
            self._batch_bytes = max(self._batch_bytes // 2, _FEWEST_BATCH_BYTES)
        self._sent = []
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


def prepared(
    messages: MessageColumns, numbers: Ints, batch_bytes: int, message_bytes: int, timestamp_ms: int
) -> Iterator[PreparedBatch]:
    """Messages, at least one, as record batches, those of each partition in their order.

    A batch has at most so many bytes before it is compressed, unless it is of one message. A message with more than
    `message_bytes` is a `MessageSizeTooLargeError`.
    """
    bodies = bodies_of(messages)
    sizes = lengths_of(bodies) + _RECORD_OVERHEAD_BYTES
    largest_bytes = int(sizes.max()) + HEADER_BYTES
    if largest_bytes > message_bytes:
        message = f"a message has {largest_bytes} bytes; the producer takes at most {message_bytes} (max_request_size)"
        raise kafka_errors.MessageSizeTooLargeError(message)
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
