"""The throttle topic on a real broker, through kafka-python's transactional producer."""

import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka import errors as kafka_errors
from kafka.structs import OffsetAndMetadata

from pipeline.cluster.access import ClusterAccess
from pipeline.cluster.acls import Acl
from pipeline.cluster.errors import ClusterUnreachable
from pipeline.failpoints import failpoint
from pipeline.throttle.errors import PublisherFenced, PublishUndecided, RecordTooLarge
from pipeline.throttle.topic import TopicEnd
from schemas.errors import UnreadableRecord
from schemas.throttle_record import JOB_HEADER, ThrottleRecord
from schemas.throttle_records import ThrottleRecords

_FENCING: Final = (kafka_errors.ProducerFencedError, kafka_errors.InvalidProducerEpochError)
_TOO_LARGE: Final = (kafka_errors.MessageSizeTooLargeError, kafka_errors.RecordListTooLargeError)
_TAIL_RECORDS: Final = 500
_EMPTY: Final = TopicEnd(-1, "")
_RETRY_SECONDS: Final = 0.1
_CLOSE_SECONDS: Final = 2
_WAIT: Final = "nothing needs doing: it is tried again"


class KafkaThrottleTopic:
    """Publishes in transactions whose last act is to move the marker.

    Args:
        job: Group and transactional id are `kquota-<job>`.
        topic: The throttle topic.
        marker_topic: One partition, nothing in it; only its committed offset is used.
        access: How to reach the cluster.
        transaction_timeout_ms: The broker aborts a transaction that is open for longer.
    """

    def __init__(
        self,
        job: str,
        topic: str,
        marker_topic: str,
        access: ClusterAccess,
        transaction_timeout_ms: int,
    ) -> None:
        self._job = job
        self._id = f"kquota-{job}"
        self._topic = topic
        self._marker_partition = TopicPartition(marker_topic, 0)
        self._access = access
        self._timeout_ms = transaction_timeout_ms
        self._producer: KafkaProducer | None = None
        self._rights = (
            Acl("topic", topic, "Write"),
            Acl("topic", marker_topic, "Read"),
            Acl("group", self._id, "Read"),
            Acl("transactional-id", self._id, "Write"),
        )

    def open(self) -> int | None:
        """See `ThrottleTopic.open`: a new producer with our transactional id fences every earlier one.

        A coordinator that is being elected, or whose topic is being made, is waited for.
        """
        self._drop_producer()
        deadline = time.monotonic() + self._timeout_ms / 1000
        while True:
            try:
                return self._opened()
            except kafka_errors.KafkaError as exc:
                self._drop_producer()
                refused = self._access.refusal(exc, self._rights[1:])
                if refused is not None:
                    raise refused from exc
                if not isinstance(exc, kafka_errors.RetriableError) or time.monotonic() > deadline:
                    raise ClusterUnreachable(self._access.bootstrap_servers, _detail(exc), _WAIT) from exc
                time.sleep(_RETRY_SECONDS)

    def publish(self, records: Sequence[ThrottleRecord], marker: int) -> None:
        """See `ThrottleTopic.publish`."""
        producer = self._producer
        if producer is None:
            detail = "no open producer"
            raise PublishUndecided(detail)
        messages = ThrottleRecords.of(records).messages(self._job)
        try:
            producer.begin_transaction()
            sent = [
                producer.send(self._topic, key=each.key, value=each.value, headers=each.headers) for each in messages
            ]
            # First: kafka-python commits also what is left of a transaction of which a batch has expired, as Kafka's
            # own producer did before KAFKA-5385.
            producer.flush(self._timeout_ms / 1000)
            for future in sent:
                future.get(timeout=0)
            self._move_marker(producer, marker)
            failpoint("transaction.committed")
        except _FENCING as exc:
            self._drop_producer()
            raise PublisherFenced(self._job) from exc
        except _TOO_LARGE as exc:
            self._drop_producer()
            raise RecordTooLarge(_detail(exc)) from exc
        except kafka_errors.KafkaError as exc:
            self._drop_producer()
            raise self._access.refusal(exc, self._rights) or PublishUndecided(_detail(exc)) from exc

    def end(self) -> TopicEnd:
        """See `ThrottleTopic.end`: reads the end of every partition, all of it only if need be."""
        consumer = self._access.open(
            KafkaConsumer, isolation_level="read_committed", enable_auto_commit=False, group_id=None
        )
        try:
            return max(self._end_of(consumer, partition) for partition in self._partitions(consumer))
        except kafka_errors.KafkaError as exc:
            refused = self._access.refusal(exc, [Acl("topic", self._topic, "Read")])
            raise refused or ClusterUnreachable(self._access.bootstrap_servers, _detail(exc), _WAIT) from exc
        finally:
            consumer.close()

    def close(self) -> None:
        """See `ThrottleTopic.close`."""
        self._drop_producer()

    def _opened(self) -> int | None:
        producer = self._access.open(
            KafkaProducer,
            client_id=self._id,
            transactional_id=self._id,
            transaction_timeout_ms=self._timeout_ms,
            max_block_ms=self._timeout_ms,
            request_timeout_ms=min(self._timeout_ms, 10_000),
            delivery_timeout_ms=self._timeout_ms,
            linger_ms=0,
            batch_size=262_144,
        )
        self._producer = producer
        producer.init_transactions()
        return self._committed_marker()

    def _move_marker(self, producer: Any, marker: int) -> None:
        """`send_offsets_to_transaction` and `commit_transaction`, which wait without end for a broker that is gone."""
        transactions = producer._transaction_manager
        offsets = {self._marker_partition: OffsetAndMetadata(marker, "", -1)}
        self._wait(producer, transactions.send_offsets_to_transaction(offsets, self._id))
        failpoint("transaction.sent")
        self._wait(producer, transactions.begin_commit())

    def _wait(self, producer: Any, result: Any) -> None:
        producer._sender.wakeup()
        if not result.wait(self._timeout_ms):
            message = f"the broker has not answered within {self._timeout_ms / 1000:g} s"
            raise kafka_errors.KafkaTimeoutError(message)

    def _committed_marker(self) -> int | None:
        with self._access.admin() as admin:
            offsets = admin.list_group_offsets({self._id: [self._marker_partition]})[self._id]
        committed = offsets.get(self._marker_partition)
        return None if committed is None or committed.offset < 0 else int(committed.offset)

    def _partitions(self, consumer: KafkaConsumer) -> list[TopicPartition]:
        return [TopicPartition(self._topic, number) for number in consumer.partitions_for_topic(self._topic) or {0}]

    def _end_of(self, consumer: KafkaConsumer, partition: TopicPartition) -> TopicEnd:
        consumer.assign([partition])
        begin = consumer.beginning_offsets([partition])[partition]
        end = consumer.end_offsets([partition])[partition]
        for first in sorted({max(begin, end - _TAIL_RECORDS), begin}, reverse=True):
            consumer.seek(partition, first)
            highest = _EMPTY
            while consumer.position(partition) < end:
                for record in consumer.poll(timeout_ms=500).get(partition, []):
                    with suppress(UnreadableRecord):
                        sequence = ThrottleRecord.from_value(record.value).publish_seq
                        job = dict(record.headers).get(JOB_HEADER) or b""
                        highest = max(highest, TopicEnd(sequence, job.decode()))
            if highest != _EMPTY:
                return highest
        return _EMPTY

    def _drop_producer(self) -> None:
        """End the producer and its thread. What it has not sent yet is not sent any more: the outbox has it.

        `close` first waits for unsent records, and if they stay unsent it raises and closes nothing. So they are given
        up first, for which kafka-python has no public way.
        """
        producer, self._producer = self._producer, None
        if producer is None:
            return
        producer._sender.force_close()
        producer._sender.join(_CLOSE_SECONDS)
        with suppress(kafka_errors.KafkaError):
            producer.close(timeout=_CLOSE_SECONDS)


def _detail(exc: Exception) -> str:
    return f"{type(exc).__name__}: {exc}".rstrip(": ")
