"""The usage topic: the port that the meter writes to, its adapter for a real broker, and the publisher.

The mark of the meter counts its transactions, and its text is a name that each process makes up for itself. So a meter
that finds the mark moved knows whether it was itself, in a transaction with an unknown outcome, or a second meter.
"""

import logging
import uuid
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

from kafka import errors as kafka_errors
from prometheus_client.metrics_core import CounterMetricFamily, Metric
from pydantic_core import to_json

from pipeline.cluster.acls import METER_IDENTITY, Acl, PermissionMissing
from pipeline.cluster.connecting import ClusterAccess, as_cluster_error, principal_of, topic_missing
from pipeline.cluster.transactions import Mark, MarkedTransactions
from pipeline.errors import Conflict, PipelineError, TransactionFenced, TransactionUndecided, Unreachable
from schemas.usage import UsageEvent

# What a client used, as the messages of the usage topic that tell it in JSON, which equals that of `UsageEvent`.


class Client(NamedTuple):
    """A client as its events name it; the client-id is "" if it has none. All names are valid."""

    user: str
    client_id: str
    broker_id: str

    def partition(self, count: int) -> int:
        """The partition of all its events, of so many."""
        return zlib.crc32(f"{self.user}\0{self.client_id}".encode()) % count


def new_client(user: str, client_id: str, broker_id: str) -> Client:
    """A client by its names; `ValueError` if one of them cannot be in a usage event."""
    valid = UsageEvent(event_time_ms=0, user=user, client_id=client_id, broker_id=broker_id)
    return Client(valid.user, valid.client_id, valid.broker_id)


MAX_MESSAGE_BYTES: Final = 512 * 1024
"""The most bytes of a message with several events. A message with one event may have more."""


class Message(NamedTuple):
    """One message of the usage topic: some events."""

    partition: int
    value: bytes


_MOST_EVENTS: Final = 1_000
_MEASURES: Final = ("produced_bytes", "fetched_bytes", "io_time_ns")


class Used(NamedTuple):
    """What a client used until an instant, by measure: bytes, bytes and ns; 0 = nothing of it."""

    client: Client
    event_time_ms: int
    amounts: Sequence[int]


def messages_of(usage: Iterable[Used], partition_count: int) -> list[Message]:
    """The messages of some usage; the events of a client keep their order."""
    events: dict[int, list[bytes]] = {}
    for one in usage:
        used = {name: amount for name, amount in zip(_MEASURES, one.amounts, strict=True) if amount}
        event = to_json({"event_time_ms": one.event_time_ms, **one.client._asdict(), **used, "request_count": 0})
        events.setdefault(one.client.partition(partition_count), []).append(event)
    return [
        Message(partition, b"[%b]" % b",".join(part))
        for partition in sorted(events)
        for part in _parts(events[partition])
    ]


def _parts(events: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    """The events of each message: as many as it may have, at least one."""
    begin, size_bytes = 0, 2
    for at, event in enumerate(events):
        size_bytes += len(event) + 1
        if at > begin and (at - begin == _MOST_EVENTS or size_bytes > MAX_MESSAGE_BYTES):
            yield events[begin:at]
            begin, size_bytes = at, len(event) + 3
    yield events[begin:]


logger = logging.getLogger(__name__)

# kafka-python has no types.
_ERRORS: Final[Any] = kafka_errors


class UsageWriter(Protocol):
    """Port to the usage topic: messages and mark in one transaction. `MarkedTransactions` lists the errors."""

    @property
    def partition_count(self) -> int:
        """Partitions of the usage topic."""

    def open(self) -> Mark | None:
        """Fence every earlier writer; the mark, None if there is none."""

    def committed(self) -> Mark | None:
        """The mark, without fencing anybody."""

    def store(self, messages: Sequence[Message], mark: Mark) -> None:
        """Store messages and mark, all or nothing."""

    def close(self) -> None:
        """Leave; aborts an open transaction. Harmless when called twice."""


class KafkaUsageTopic(MarkedTransactions):
    """The usage topic of a cluster, for its meter: a `UsageWriter`.

    Args:
        topic: The usage topic. Its partitions are counted once, at the start.

    Raises:
        NotFound: One of the topics does not exist.
        PermissionMissing: The user may not write to the usage topic, or not read the marker topic.
        ClusterUnreachable, Unreachable: There is no connection.
    """

    def __init__(self, topic: str, marker_topic: str, access: ClusterAccess, transaction_timeout_ms: int) -> None:
        self._topic = topic
        with access.admin() as admin, as_cluster_error(access.bootstrap_servers):
            self.partition_count = _partitions(admin, Acl("topic", topic, "Write"), access)
            _partitions(admin, Acl("topic", marker_topic, "Read"), access)
        super().__init__(METER_IDENTITY, marker_topic, topic, access, transaction_timeout_ms)

    def store(self, messages: Sequence[Message], mark: Mark) -> None:
        """See `UsageWriter.store`."""
        self.commit(
            lambda producer: [producer.send(self._topic, value=value, partition=number) for number, value in messages],
            mark,
        )


def _partitions(admin: Any, wanted: Acl, access: ClusterAccess) -> int:
    (described,) = admin.describe_topics([wanted.name])
    if _ERRORS.for_code(described["error_code"]) is _ERRORS.TopicAuthorizationFailedError:
        raise PermissionMissing([wanted], principal_of(access.client_options()), access.bootstrap_servers)
    if not described["partitions"]:
        purpose: Any = "usage" if wanted.operation == "Write" else "marker"
        raise topic_missing(wanted.name, access.bootstrap_servers, purpose)
    return len(described["partitions"])


# Publishes batches of usage, each exactly once.
#
# A batch whose transaction failed, or has an unknown outcome, is published again after the mark was read: if the mark
# is the batch's own, it was stored; if it is the one before, it was not. Another mark is a second meter's, and this one
# ends. A pause that the transaction did not survive leaves the mark as it was, so it is not taken for a second meter.

COMPLAIN_EVERY_MS: Final = 5_000
_FIRST_RETRY_MS: Final = 250
_LONGEST_RETRY_MS: Final = 4_000
_CLAIMS: Final = 5
_TRIED_AGAIN: Final = (Unreachable, TransactionFenced, TransactionUndecided)


@dataclass(slots=True)
class DeliveryCounts:
    """What was sent so far; `failures` are transactions that failed, or whose outcome was not known."""

    events: int = 0
    messages: int = 0
    failures: int = 0

    def __str__(self) -> str:
        return f"{self.events:,} stored in {self.messages:,} messages, {self.failures:,} transactions retried"


def delivery_metrics(counts: DeliveryCounts) -> Iterator[Metric]:
    """What was sent, now; for any thread."""
    for name, documentation, count in (
        ("stored_events", "Events stored on the usage topic.", counts.events),
        ("stored_messages", "Messages stored on the usage topic.", counts.messages),
        ("failed_transactions", "Transactions that were retried.", counts.failures),
    ):
        yield CounterMetricFamily(f"kquota_meter_{name}", documentation, value=count)


class UsagePublisher:
    """The one publisher of all that is scraped. One thread."""

    def __init__(self, topic: UsageWriter, destination: str) -> None:
        self.counts = DeliveryCounts()
        self.partition_count = topic.partition_count
        self._topic = topic
        self._destination = destination
        self._meter = uuid.uuid4().hex
        self._mark: Mark | None = None
        self._tried: Mark | None = None
        self._is_open = False
        self._failures_in_a_row = 0
        self._retry_at_ms: int | None = None
        self._complained_ms: int | None = None

    def take_over(self) -> None:
        """Fence every earlier meter, and put this one's name into the mark.

        Raises:
            ClusterUnreachable, PermissionMissing, Unreachable, TransactionUndecided: The topic cannot be written.
            TransactionFenced: Another meter takes the topic back, again and again.
        """
        for tries_left in reversed(range(_CLAIMS)):
            self._mark = self._topic.open()
            self._is_open = True
            try:
                self._commit([])
            except (TransactionFenced, TransactionUndecided):
                # The earlier meter may open the topic once more before it hears of this one.
                if not tries_left:
                    raise
            else:
                return

    def publish(self, messages: Sequence[Message], events: int, now_ms: int) -> bool:
        """Store a batch. Call it again with the same until it is true.

        Returns:
            Whether it is stored. False: the next try is due later; nothing is known yet.

        Raises:
            Conflict: A second meter has taken over.
        """
        if self._retry_at_ms is not None and now_ms < self._retry_at_ms:
            return False
        try:
            if self._is_open or not self._was_stored():
                self._commit(messages)
        except _TRIED_AGAIN as exc:
            self._is_open = False
            self._put_off(exc, events, now_ms)
            return False
        self._tried = self._retry_at_ms = self._complained_ms = None
        self._failures_in_a_row = 0
        self.counts.messages += len(messages)
        self.counts.events += events
        return True

    def close(self) -> None:
        """Leave the topic."""
        self._is_open = False
        self._topic.close()

    def _commit(self, messages: Sequence[Message]) -> None:
        self._tried = Mark(0 if self._mark is None else self._mark.number + 1, self._meter)
        self._topic.store(messages, self._tried)
        self._mark = self._tried

    def _was_stored(self) -> bool:
        """Open the topic again, and see what has become of the transaction that was tried."""
        # First without fencing: a second meter shall not be disturbed by the one that ends.
        self._refuse_another(self._topic.committed())
        mark = self._topic.open()
        self._refuse_another(mark)
        self._is_open = True
        was_stored = mark is not None and mark == self._tried
        self._mark = mark
        return was_stored

    def _refuse_another(self, mark: Mark | None) -> None:
        if mark not in (self._mark, self._tried):
            msg = "another meter of scrapes has taken over and continues from here"
            raise Conflict(msg, "stop one of the two: one process scrapes all brokers of a cluster")

    def _put_off(self, error: PipelineError, events: int, now_ms: int) -> None:
        self.counts.failures += 1
        delay_ms = min(_FIRST_RETRY_MS * 2**self._failures_in_a_row, _LONGEST_RETRY_MS)
        self._failures_in_a_row += 1
        self._retry_at_ms = now_ms + delay_ms
        if self._complained_ms is not None and now_ms - self._complained_ms < COMPLAIN_EVERY_MS:
            return
        self._complained_ms = now_ms
        cause = str(error)
        if isinstance(error, TransactionFenced):
            cause = "a transaction was open for longer than its time-out, or a second meter has started"
        logger.warning(
            "%s usage events are not known to be stored on %s: %s; retrying",
            f"{events:,}",
            self._destination,
            cause,
        )
