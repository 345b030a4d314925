"""Sends usage events to the usage topic, many in one message, within a bound of memory.

Each event is stored at least once. A message that could not be delivered is sent again until it is stored. It may be
stored twice, if the broker had stored it but its answer was lost.
"""

import logging
import zlib
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from kafka.errors import KafkaTimeoutError, TopicAuthorizationFailedError

from pipeline.cluster.acls import Acl
from pipeline.cluster.errors import PermissionMissing, TopicMissing
from pipeline.cluster.permissions import principal_of
from pipeline.meter.log_follower import LogPosition
from schemas.usage_event import UsageEvent

logger = logging.getLogger(__name__)

RETRY_AFTER_MS: Final = 1_000
COMPLAIN_EVERY_MS: Final = 5_000


class UsageSink(Protocol):
    """Port to the usage topic. `send` may be called again with the same value."""

    partition_count: int

    def send(self, partition: int, value: bytes, done: Callable[[Exception | None], None]) -> None:
        """Send one message. Call `done` once, from any thread: with None when it is stored, or with the error."""
        ...


@dataclass(frozen=True, slots=True)
class Batching:
    """How events become messages.

    Attributes:
        max_events: The most events in one message.
        max_message_bytes: The most bytes of a message with several events. A message with one event may have more.
        linger_ms: How long an event waits, at most, for others to share its message.
        max_unsent_bytes: No further events are read while this many bytes, or more, are not stored yet.
    """

    max_events: int = 100
    max_message_bytes: int = 512 * 1024
    linger_ms: int = 100
    max_unsent_bytes: int = 8 * 1024 * 1024


@dataclass(slots=True)
class DeliveryCounts:
    """What was sent so far.

    Attributes:
        events: Events stored on the topic.
        messages: Messages stored on the topic.
        failures: Sends that failed and were repeated.
    """

    events: int = 0
    messages: int = 0
    failures: int = 0

    def __str__(self) -> str:
        return f"{self.events:,} stored in {self.messages:,} messages, {self.failures:,} sent again"


@dataclass(slots=True)
class _Message:
    opened_ms: int
    first: LogPosition
    elements: list[bytes] = field(default_factory=list)
    size_bytes: int = 2


class UsageProducer:
    """Collects events by partition and sends them as JSON arrays.

    All events of a <user, client-id> go to one partition: the crc32 of both names, modulo the number of partitions.
    One thread must call all methods. Only the sink's answers come from another thread.

    Args:
        sink: The topic.
        batching: Sizes and times.
        destination: Topic and address, for warnings.
    """

    def __init__(self, sink: UsageSink, batching: Batching, destination: str) -> None:
        self.counts = DeliveryCounts()
        self._sink = sink
        self._batching = batching
        self._destination = destination
        self._open: dict[int, _Message] = {}
        self._sent: dict[int, tuple[int, _Message]] = {}
        self._answers: deque[tuple[int, Exception | None]] = deque()
        self._retries: deque[tuple[int, int, _Message]] = deque()
        self._serial = 0
        self._complained_ms: int | None = None
        self.unsent_bytes = 0

    @property
    def has_space(self) -> bool:
        """Whether further events may be added."""
        return self.unsent_bytes < self._batching.max_unsent_bytes

    def add(self, event: UsageEvent, position: LogPosition, now_ms: int) -> None:
        """Add one event. `position` is where its line starts; positions must never go back."""
        entity = f"{event.user}\0{event.client_id}".encode("utf-8", "surrogatepass")
        partition = zlib.crc32(entity) % self._sink.partition_count
        element = event.to_value()
        message = self._open.get(partition)
        if message and message.size_bytes + len(element) + 1 > self._batching.max_message_bytes:
            self._send(partition, self._open.pop(partition))
            message = None
        if message is None:
            message = self._open[partition] = _Message(now_ms, position)
        message.elements.append(element)
        message.size_bytes += len(element) + 1
        self.unsent_bytes += len(element) + 1
        if len(message.elements) >= self._batching.max_events:
            self._send(partition, self._open.pop(partition))

    def pump(self, now_ms: int) -> None:
        """Take the sink's answers, then send what has waited long enough and what must be sent again.

        To be called every few ms.
        """
        self._take_answers(now_ms)
        for partition in [p for p, m in self._open.items() if now_ms - m.opened_ms >= self._batching.linger_ms]:
            self._send(partition, self._open.pop(partition))
        while self._retries and self._retries[0][0] <= now_ms:
            _, partition, message = self._retries.popleft()
            self._send(partition, message)

    def first_unsent(self) -> LogPosition | None:
        """Start of the earliest line whose event is not known to be stored; None if all are stored."""
        waiting = [message.first for message in self._open.values()]
        waiting += [message.first for _, message in self._sent.values()]
        waiting += [message.first for _, _, message in self._retries]
        return min(waiting, default=None)

    def send_open(self) -> None:
        """Send all collected events now."""
        for partition in list(self._open):
            self._send(partition, self._open.pop(partition))

    def _send(self, partition: int, message: _Message) -> None:
        serial = self._serial
        self._serial += 1
        self._sent[serial] = (partition, message)
        value = b"[" + b",".join(message.elements) + b"]"
        # The sink's thread touches only a deque, and its append is atomic.
        self._sink.send(partition, value, lambda error: self._answers.append((serial, error)))

    def _take_answers(self, now_ms: int) -> None:
        while self._answers:
            serial, error = self._answers.popleft()
            partition, message = self._sent.pop(serial)
            if error is None:
                self.counts.messages += 1
                self.counts.events += len(message.elements)
                self.unsent_bytes -= message.size_bytes - 2
                self._complained_ms = None
            else:
                self.counts.failures += 1
                self._retries.append((now_ms + RETRY_AFTER_MS, partition, message))
                self._complain(error, now_ms)

    def _complain(self, error: Exception, now_ms: int) -> None:
        if self._complained_ms is not None and now_ms - self._complained_ms < COMPLAIN_EVERY_MS:
            return
        self._complained_ms = now_ms
        logger.warning(
            "usage events are not stored on %s: %s; %s bytes held, trying again every %s ms",
            self._destination,
            error,
            f"{self.unsent_bytes:,}",
            RETRY_AFTER_MS,
        )


class KafkaUsageSink:
    """The sink on a `kafka.KafkaProducer`, which stays the caller's to close.

    Args:
        producer: A connected producer.
        topic: It must exist. Its partitions are counted once, at the start.
        bootstrap_servers: For the message if the topic does not exist.
        options: kafka-python options that the producer signed in with.

    Raises:
        TopicMissing: There is no such topic.
        PermissionMissing: The user may not write to it.
    """

    def __init__(
        self, producer: Any, topic: str, bootstrap_servers: str, options: Mapping[str, Any] | None = None
    ) -> None:
        try:
            partitions = producer.partitions_for(topic)
        except TopicAuthorizationFailedError as exc:
            wanted = [Acl("topic", topic, "Write")]
            raise PermissionMissing(wanted, principal_of(options or {}), bootstrap_servers) from exc
        except KafkaTimeoutError as exc:  # a producer's way to say that there is no such topic
            raise TopicMissing(topic, bootstrap_servers, "usage") from exc
        if not partitions:
            raise TopicMissing(topic, bootstrap_servers, "usage")
        self._producer = producer
        self._topic = topic
        self.partition_count = len(partitions)

    def send(self, partition: int, value: bytes, done: Callable[[Exception | None], None]) -> None:
        """Hand the message to the producer. If that fails, `done` gets the error, as any other error."""
        try:
            future = self._producer.send(self._topic, value=value, partition=partition)
        except Exception as exc:
            done(exc)
            return
        future.add_callback(lambda _: done(None))
        future.add_errback(done)
