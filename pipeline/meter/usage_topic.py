"""The usage topic: its name in request logs, the marks of a meter's place, the writer, and the publisher."""

import logging
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, Protocol, Self

from kafka import errors as kafka_errors
from kafka.errors import KafkaError
from prometheus_client.metrics_core import CounterMetricFamily, Metric
from pydantic import BaseModel, ConfigDict, StringConstraints, ValidationError

from pipeline.cluster.access import ClusterAccess, topic_missing
from pipeline.cluster.acls import METER_IDENTITIES, Acl, PermissionMissing
from pipeline.cluster.connecting import as_cluster_error, principal_of
from pipeline.cluster.topic_ids import id_text
from pipeline.cluster.transactions import Mark, MarkedTransactions
from pipeline.errors import Conflict, PipelineError, Refused, TransactionFenced, TransactionUndecided, Unreachable
from pipeline.meter.log_follower import LogPlace
from pipeline.meter.usage_messages import Message
from schemas.names import USAGE_TOPIC


@dataclass(frozen=True, slots=True)
class UsageTopic:
    """The topic that meters write to.

    Attributes:
        name: Its name. Produce requests up to v12 carry it.
        topic_id: Its id in the request log's form (base64 for URLs, without padding). Produce requests from v13 on
            carry only the id. None: not known.
    """

    name: str = USAGE_TOPIC
    topic_id: str | None = None

    @classmethod
    def described_by(cls, admin: Any, name: str) -> Self:
        """The topic with its id, if the cluster has one."""
        try:
            (topic,) = admin.describe_topics([name])
        except KafkaError:
            return cls(name)
        return cls(name, id_text(topic.get("topic_id")) or None)

    def is_all_of(self, produce_request: Any) -> bool:
        """Whether a logged produce request, "" if its body was not logged, writes to this topic and to no other.

        `KeyError`, `TypeError` or `AttributeError` if the body has another form.
        """
        topics: list[dict[str, Any]] = (produce_request or {}).get("topicData") or []
        return bool(topics) and all(self._is_named_by(topic) for topic in topics)

    def _is_named_by(self, topic: dict[str, Any]) -> bool:
        if "topicId" in topic:
            return self.topic_id is not None and topic["topicId"] == self.topic_id
        return bool(topic["name"] == self.name)


# The mark of a meter: its place in the log, as metadata of a committed offset. Each process writes its own name into
# its marks. So a meter that finds its mark moved knows whether it was itself, in a transaction whose outcome it did not
# hear of, or a second meter of the same broker.


class MeterMark(BaseModel):
    """The text of a mark: all lines before `place` are on the usage topic, those after it are not."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    version: Literal[1] = 1
    meter: Annotated[str, StringConstraints(min_length=1, max_length=64)]
    place: LogPlace


def place_of(mark: Mark, group: str, marker_topic: str, bootstrap_servers: str) -> LogPlace:
    """The place of a mark.

    Raises:
        Refused: Its text is empty, damaged, or of a later release. To begin anywhere else instead would leave
            out usage, or report it twice, without a word.
    """
    try:
        return MeterMark.model_validate_json(mark.text).place
    except ValidationError as exc:
        first = exc.errors()[0]
        reason = ": ".join([*(str(part) for part in first["loc"]), first["msg"]]) if mark.text else "it is empty"
        msg = f"the offset of group '{group}' on {marker_topic} has metadata that no meter has written: {reason}"
        fix = (
            f"kafka-consumer-groups --bootstrap-server {bootstrap_servers} --delete-offsets --group {group} --topic "
            f"{marker_topic}, then start with --from-beginning, which reports the whole log again, or without, which "
            "leaves out what was logged until now"
        )
        raise Refused(msg, fix) from exc


def mark_of(number: int, meter: str, place: LogPlace) -> Mark:
    """The mark of a place."""
    return Mark(number, MeterMark(meter=meter, place=place).model_dump_json())


SCRAPES: Final = "prometheus"
"""In place of a broker-id: the meter that scrapes all brokers of a cluster."""

NO_PLACE: Final = LogPlace(inode=0, offset_bytes=0, head_bytes=0, head_sha256="")
"""The place of a meter that follows no log."""


# The port that a meter writes to, and its adapter for a real broker.

# kafka-python has no types.
_ERRORS: Final[Any] = kafka_errors


class UsageWriter(Protocol):
    """Port to the usage topic: messages and mark in one transaction. `MarkedTransactions` lists the errors."""

    @property
    def partition_count(self) -> int:
        """Partitions of the usage topic."""

    def place_of(self, mark: Mark) -> LogPlace:
        """The place of a mark. Raises `Refused`."""

    def open(self) -> Mark | None:
        """Fence every earlier writer of this broker; its mark, None if there is none."""

    def committed(self) -> Mark | None:
        """The mark, without fencing anybody."""

    def store(self, messages: Sequence[Message], mark: Mark) -> None:
        """Store messages and mark, all or nothing."""

    def close(self) -> None:
        """Leave; aborts an open transaction. Harmless when called twice."""


class KafkaUsageTopic(MarkedTransactions):
    """The usage topic of a cluster, for the meter of one broker: a `UsageWriter`.

    Args:
        topic: The usage topic. Its partitions are counted once, at the start.

    Raises:
        Unreachable: One of the topics does not exist.
        PermissionMissing: The user may not write to the usage topic, or not read the marker topic.
        ClusterUnreachable, Unreachable: There is no connection.
    """

    def __init__(
        self, broker_id: str, topic: str, marker_topic: str, access: ClusterAccess, transaction_timeout_ms: int
    ) -> None:
        self._topic, self._marker_topic = topic, marker_topic
        with access.admin() as admin, as_cluster_error(access.bootstrap_servers):
            self.partition_count = _partitions(admin, Acl("topic", topic, "Write"), access)
            _partitions(admin, Acl("topic", marker_topic, "Read"), access)
        super().__init__(group_of(broker_id), marker_topic, topic, access, transaction_timeout_ms)

    def place_of(self, mark: Mark) -> LogPlace:
        """See `UsageWriter.place_of`."""
        return place_of(mark, self._identity, self._marker_topic, self._access.bootstrap_servers)

    def store(self, messages: Sequence[Message], mark: Mark) -> None:
        """See `UsageWriter.store`."""
        self.commit(
            lambda producer: [producer.send(self._topic, value=value, partition=number) for number, value in messages],
            mark,
        )


def group_of(broker_id: str) -> str:
    """Name of group and transactional id of a meter: of one broker, or `SCRAPES`."""
    return f"{METER_IDENTITIES}{broker_id}"


def _partitions(admin: Any, wanted: Acl, access: ClusterAccess) -> int:
    (described,) = admin.describe_topics([wanted.name])
    if _ERRORS.for_code(described["error_code"]) is _ERRORS.TopicAuthorizationFailedError:
        raise PermissionMissing([wanted], principal_of(access.client_options()), access.bootstrap_servers)
    if not described["partitions"]:
        purpose: Any = "usage" if wanted.operation == "Write" else "marker"
        raise topic_missing(wanted.name, access.bootstrap_servers, purpose)
    return len(described["partitions"])


# Publishes batches of usage, each exactly once, with the place in the log that it reaches to.
#
# A batch whose transaction failed, or has an unknown outcome, is published again after the mark was read: if the mark
# is the batch's own, it was stored; if it is the one before, it was not. Another mark is a second meter's, and this one
# ends. A pause that the transaction did not survive leaves the mark as it was, so it is not taken for a second meter.

logger = logging.getLogger(__name__)

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


def counters(broker_id: str, rows: Iterable[tuple[str, str, int]]) -> Iterator[Metric]:
    """Counters of the meter of a broker, by name without prefix, help and count."""
    for name, documentation, count in rows:
        counter = CounterMetricFamily(f"kquota_meter_{name}", documentation, labels=["broker_id"])
        counter.add_metric([broker_id], count)
        yield counter


def delivery_metrics(counts: DeliveryCounts, broker_id: str) -> Iterator[Metric]:
    """What was sent, now; for any thread. The broker-id is "" for all that is scraped."""
    return counters(
        broker_id,
        (
            ("stored_events", "Events stored on the usage topic.", counts.events),
            ("stored_messages", "Messages stored on the usage topic.", counts.messages),
            ("failed_transactions", "Transactions that were retried.", counts.failures),
        ),
    )


class UsagePublisher:
    """The one publisher of a broker's usage, or of all that is scraped (`SCRAPES`). One thread."""

    def __init__(self, broker_id: str, topic: UsageWriter, destination: str) -> None:
        self.counts = DeliveryCounts()
        self.partition_count = topic.partition_count
        self._name = "meter of scrapes" if broker_id == SCRAPES else f"meter with --broker-id {broker_id}"
        self._topic = topic
        self._destination = destination
        self._meter = uuid.uuid4().hex
        self._mark: Mark | None = None
        self._tried: Mark | None = None
        self._is_open = False
        self._failures_in_a_row = 0
        self._retry_at_ms: int | None = None
        self._complained_ms: int | None = None

    def take_over(self) -> LogPlace | None:
        """Fence every earlier meter of this broker, and put this one's name into the mark.

        Returns:
            Where the earlier meter has stopped, None if there was none. Then the first batch makes the mark.

        Raises:
            Refused: The mark is none that a meter has written.
            ClusterUnreachable, PermissionMissing, Unreachable, TransactionUndecided: The topic cannot be written.
            TransactionFenced: Another meter of this broker takes the topic back, again and again.
        """
        for tries_left in reversed(range(_CLAIMS)):
            self._mark = self._topic.open()
            self._is_open = True
            if self._mark is None:
                return None
            place = self._topic.place_of(self._mark)
            try:
                self._commit([], place)
            except (TransactionFenced, TransactionUndecided):
                # The earlier meter may open the topic once more before it hears of this one.
                if not tries_left:
                    raise
            else:
                return place
        return None

    def publish(self, messages: Sequence[Message], events: int, place: LogPlace, now_ms: int) -> bool:
        """Store a batch and its place. Call it again with the same until it is true.

        Args:
            messages: The events; may be empty, which only moves the place.

        Returns:
            Whether they are stored. False: the next try is due later; nothing is known yet.

        Raises:
            Conflict: A second meter has taken over; it continues at the place of the last batch that was stored.
        """
        if self._retry_at_ms is not None and now_ms < self._retry_at_ms:
            return False
        try:
            if self._is_open or not self._was_stored():
                self._commit(messages, place)
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
        """Leave the topic. The next meter reads a batch that is not stored from the log."""
        self._is_open = False
        self._topic.close()

    def _commit(self, messages: Sequence[Message], place: LogPlace) -> None:
        number = 0 if self._mark is None else self._mark.number + 1
        self._tried = mark_of(number, self._meter, place)
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
            msg = f"another {self._name} has taken over and continues from here"
            raise Conflict(msg, "stop one of the two: the usage of a broker is stored by one meter")

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
            cause = "a transaction was open for longer than its time-out, or a second meter of this broker has started"
        logger.warning(
            "%s usage events are not known to be stored on %s: %s; retrying",
            f"{events:,}",
            self._destination,
            cause,
        )
