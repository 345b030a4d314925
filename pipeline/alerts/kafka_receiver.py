"""A receiver that is a Kafka topic: each message a record, all of a group under one key."""

from contextlib import suppress
from typing import Any, Final

from kafka import KafkaProducer
from kafka.errors import KafkaError, MessageSizeTooLargeError, RecordListTooLargeError

from pipeline.alerts.payload import Message, body_of
from pipeline.alerts.receiver import Answer
from pipeline.cluster.access import ClusterAccess
from pipeline.errors import PipelineError, first_line

TOPIC: Final = "topic"
"""The name of this receiver."""


class KafkaReceiver:
    """Writes to a topic. It connects with the first message, and again whenever it has to.

    Args:
        topic: It must exist, or the cluster makes topics by itself.
        access: How to reach the cluster.
        timeout_ms: How long the broker may take to have a record.
    """

    name = TOPIC

    def __init__(self, topic: str, access: ClusterAccess, timeout_ms: int) -> None:
        self._topic = topic
        self._access = access
        self._timeout_ms = timeout_ms
        self._producer: Any = None

    @property
    def place(self) -> str:
        """Topic and brokers."""
        return f"{self._topic} at {self._access.bootstrap_servers}"

    def send(self, message: Message) -> Answer:
        """See `Receiver.send`."""
        try:
            if self._producer is None:
                self._producer = self._access.open(
                    KafkaProducer, acks="all", client_id="kquota-alerts", max_block_ms=self._timeout_ms
                )
            value = body_of(message, self.name)
            sent = self._producer.send(self._topic, key=message["groupKey"].encode(), value=value)
            place = sent.get(timeout=self._timeout_ms / 1000)
        except (MessageSizeTooLargeError, RecordListTooLargeError) as exc:
            return Answer("never", first_line(exc))
        except PipelineError as exc:
            return Answer("later", str(exc))
        except KafkaError as exc:
            # What it had not yet sent would come twice.
            self.close()
            return Answer("later", first_line(exc))
        return Answer("taken", f"partition {place.partition}, offset {place.offset}")

    def close(self) -> None:
        """Leave the cluster."""
        if self._producer is not None:
            with suppress(KafkaError):
                self._producer.close(timeout=1)
            self._producer = None
