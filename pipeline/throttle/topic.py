"""The throttle topic: one transaction at a time, with the publish marker inside it.

The marker is the committed offset of the consumer group `kquota-<job>` on the marker topic: the next `publish_seq`
to publish, with the id of the table of the records as its metadata. It moves in the same Kafka transaction as the
records, so the two cannot disagree.
"""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final, Self

import pyarrow as pa
from kafka import KafkaConsumer, TopicPartition
from kafka import errors as kafka_errors

from pipeline.cluster.acls import Acl
from pipeline.cluster.connecting import ClusterAccess
from pipeline.cluster.transactions import RETRIED, Mark, MarkedTransactions, detail_of
from pipeline.errors import ClusterUnreachable
from pipeline.settings.model import Settings
from pipeline.throttle.publisher import Marker, TopicEnd
from schemas.names import UnreadableRecord
from schemas.throttle_record import JOB_HEADER, MESSAGE_COLUMNS, ThrottleRecord, message_of

# The throttle topic on a real broker, through kafka-python's transactional producer.

_TAIL_RECORDS: Final = 500
_EMPTY: Final = TopicEnd(-1, "")


class KafkaThrottleTopic:
    """Publishes in transactions whose last act is to move the marker."""

    def __init__(
        self,
        job: str,
        topic: str,
        marker_topic: str,
        access: ClusterAccess,
        transaction_timeout_ms: int,
    ) -> None:
        self._job = job
        self._topic = topic
        self._access = access
        identity = f"kquota-{job}"
        self._transactions = MarkedTransactions(
            identity, marker_topic, topic, access, transaction_timeout_ms, client_id=identity
        )

    @classmethod
    def from_settings(cls, settings: Settings, access: ClusterAccess) -> Self:
        """The throttle topic of a job."""
        kafka = settings.kafka
        return cls(settings.job, kafka.throttle_topic, kafka.marker_topic, access, kafka.transaction_timeout_ms)

    def committed(self) -> Marker | None:
        """See `ThrottleTopic.committed`."""
        return _marker_of(self._transactions.committed())

    def open(self) -> Marker | None:
        """See `ThrottleTopic.open`: a new producer with our transactional id fences every earlier one.

        A coordinator that is being elected, or whose topic is being made, is waited for.
        """
        return _marker_of(self._transactions.open())

    def publish(self, rows: pa.Table, marker: Marker) -> None:
        """See `ThrottleTopic.publish`."""
        self._transactions.commit(lambda producer: self._send(producer, rows), Mark(*marker))

    def end(self) -> TopicEnd:
        """See `ThrottleTopic.end`: reads the end of every partition, all of it only if need be."""
        consumer = self._access.open(
            KafkaConsumer, isolation_level="read_committed", enable_auto_commit=False, group_id=None
        )
        try:
            numbers = consumer.partitions_for_topic(self._topic) or {0}
            return max(self._end_of(consumer, TopicPartition(self._topic, number)) for number in numbers)
        except kafka_errors.KafkaError as exc:
            refused = self._access.refusal(exc, [Acl("topic", self._topic, "Read")])
            raise refused or ClusterUnreachable(self._access.bootstrap_servers, detail_of(exc), RETRIED) from exc
        finally:
            consumer.close()

    def close(self) -> None:
        """See `ThrottleTopic.close`."""
        self._transactions.close()

    def _send(self, producer: Any, rows: pa.Table) -> Sequence[Any]:
        messages = (message_of(row, self._job) for row in rows.select(MESSAGE_COLUMNS).to_pylist())
        return [producer.send(self._topic, **each._asdict()) for each in messages]

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
                        job = (dict(record.headers).get(JOB_HEADER) or b"").decode()
                        highest = max(highest, TopicEnd(sequence, job))
            if highest != _EMPTY:
                return highest
        return _EMPTY


def _marker_of(mark: Mark | None) -> Marker | None:
    return None if mark is None else Marker(*mark)
