"""The one place where record batches go into kafka-python's producer as a whole, through its inside.

`KafkaProducer.send` takes records one by one, at some 45 µs each. A prepared batch skips no more than that: it is put
where `send` would have put its records, in the accumulator. Transaction, producer id, epoch, sequence numbers, order,
retries, splitting, compression, header and check sum stay the library's.

The names used here are not public: another version than `TRIED_VERSION` gets its records one by one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, overload

import kafka
from kafka import TopicPartition
from kafka import errors as kafka_errors
from kafka.producer.future import FutureRecordMetadata
from kafka.producer.producer_batch import ProducerBatch
from kafka.record import MemoryRecordsBuilder
from kafka.record.default_records import DefaultRecordBatchBuilder

TRIED_VERSION: Final = "3.0.12"
HEADER_BYTES: Final[int] = DefaultRecordBatchBuilder.HEADER_STRUCT.size
_MAGIC: Final = 2
_FULL: Final = 1  # a size that is reached: nothing can be appended


@dataclass(frozen=True, slots=True)
class PreparedBatch:
    """Records of one partition.

    Attributes:
        partition: Of the topic.
        records: Their bytes, one after the other, as `record_format.records_of` makes them, not compressed.
        count: How many they are, > 0.
        timestamp_ms: The time of all of them.
    """

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
        """Wait until all records of the batch are stored.

        Args:
            timeout: Seconds to wait for each of its parts.

        Raises:
            KafkaError: The batch, or a part of it, is not stored, or not in time.
        """
        self._last.get(timeout)
        for future in self._others:
            future.get(timeout)

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, place: int) -> Any: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[Any]: ...
    def __getitem__(self, place: int | slice) -> Any:
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
    """Send a batch within the open transaction of a `KafkaProducer`, behind what it was given for the partition before.

    Raises:
        KafkaError: There is no open transaction, or the producer has failed or is closed.
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
