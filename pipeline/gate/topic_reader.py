"""Reads the throttle topic from its start: committed records only, and partitions that are added later, too."""

import logging
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final, NamedTuple
from uuid import UUID

from kafka import KafkaConsumer, TopicPartition
from kafka.errors import KafkaError, TopicAuthorizationFailedError

from pipeline.cluster.acls import Acl
from pipeline.cluster.connecting import open_client
from pipeline.cluster.errors import PermissionMissing, TopicMissing
from pipeline.cluster.permissions import permission_missing
from pipeline.errors import PipelineError, first_line
from schemas.errors import UnreadableRecord
from schemas.throttle_record import ThrottleRecord

log = logging.getLogger(__name__)

NEW_PARTITIONS_MS: Final = 5_000
PROBE_TIMEOUT_MS: Final = 3_000
REFUSAL_WAIT_MS: Final = 1_000

Ends = Mapping[Any, int]
"""Of each partition the offset after its last record."""


class Found(NamedTuple):
    """A record, and where on the topic it was."""

    partition: Any
    offset: int
    record: ThrottleRecord


class ThrottleTopicReader:
    """One consumer of the throttle topic at a time. One thread.

    Records that are no throttle records are skipped and counted.

    Args:
        bootstrap_servers: Of the cluster that has the topic.
        topic: The throttle topic.
        options: Further kafka-python options, as of `client_properties.kafka_options`.
    """

    def __init__(self, bootstrap_servers: str, topic: str, options: Mapping[str, Any] | None = None) -> None:
        self.unreadable = 0
        self._servers = bootstrap_servers
        self._topic = topic
        self._options = dict(options or {})
        self._acls = (Acl("topic", topic, "Read"),)
        self._consumer: Any = None
        self._topic_id: UUID | None = None
        self._next: dict[Any, int] = {}
        self._is_new_topic = False

    def open(self) -> None:
        """Begin at the start of the topic, or go on where it was if it was read before.

        Raises:
            TopicMissing: It is not there.
            ClusterUnreachable, SignInRefused: No broker lets us in.
            KafkaError: Anything else; `told` makes a line of it.
        """
        self.close()
        ours = {
            "isolation_level": "read_committed",
            "enable_auto_commit": False,
            "group_id": None,
            # A topic that was cut short, or made anew, is read from its start, too.
            "auto_offset_reset": "earliest",
            "allow_auto_create_topics": False,
            "metadata_max_age_ms": NEW_PARTITIONS_MS,
        }
        self._consumer = open_client(KafkaConsumer, self._servers, **self._options | ours)
        if not self.add_partitions():
            _raise_if_refused(self._consumer, self._topic)
            raise TopicMissing(self._topic, self._servers, "throttle")

    def add_partitions(self) -> bool:
        """Also read the topic's new partitions, from their start; False if the topic has no partition at all."""
        numbers = self._consumer.partitions_for_topic(self._topic) or ()
        topic_id = self._consumer._cluster.topic_id(self._topic) or self._topic_id
        if self._topic_id not in {None, topic_id}:
            self._begin_anew()
        self._topic_id = topic_id
        known = self._consumer.assignment()
        found = {TopicPartition(self._topic, number) for number in numbers}
        added = sorted(found - known)
        if added:
            self._consumer.assign(sorted(found | known))
        for partition in added:
            if partition in self._next:
                self._consumer.seek(partition, self._next[partition])
            else:
                self._consumer.seek_to_beginning(partition)
        return bool(found)

    def take_is_new_topic(self) -> bool:
        """Whether the topic was made anew since the last call: another id, or offsets that were had before.

        Then it is read from its start.
        """
        taken, self._is_new_topic = self._is_new_topic, False
        return taken

    def ends(self) -> Ends:
        """Ends of what is committed. Nothing after an open transaction is readable until it is decided."""
        ends: Ends = self._consumer.end_offsets(list(self._consumer.assignment()))
        return ends

    def has_read(self, ends: Ends) -> bool:
        """Whether everything before these ends is read."""
        return all(self._consumer.position(partition) >= end for partition, end in ends.items())

    def poll(self, wait_ms: int) -> list[Found]:
        """The next records; of each partition in its order, and each once. Empty after `wait_ms` without any."""
        found = []
        for partition, records in self._consumer.poll(wait_ms).items():
            if records and records[0].offset < self._next.get(partition, 0):
                self._begin_anew()
                return []
            throttles = ((record.offset, self._throttle_of(record.value)) for record in records)
            found += [Found(partition, offset, throttle) for offset, throttle in throttles if throttle is not None]
            if records:
                self._next[partition] = records[-1].offset + 1
        return found

    def probe(self) -> None:
        """Ask the brokers for something: `poll` does not fail when none of them answers any more; this does."""
        self._consumer.end_offsets(list(self._consumer.assignment()), timeout_ms=PROBE_TIMEOUT_MS)

    def told(self, error: BaseException) -> str:
        """What one of these calls has raised, in one line."""
        error = permission_missing(error, self._acls, self._options, self._servers) or error
        if isinstance(error, PermissionMissing):
            return str(error)
        text = error.message if isinstance(error, PipelineError) else f"{type(error).__name__}: {first_line(error)}"
        return text[:300]

    def as_pipeline_error(self, error: BaseException) -> PipelineError | None:
        """The same as an error that an operator can act on; None if it is not known as one."""
        return error if isinstance(error, PipelineError) else self._permission_missing(error)

    def close(self) -> None:
        """Leave the cluster. May be repeated."""
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            with suppress(Exception):
                consumer.close()

    def _begin_anew(self) -> None:
        self._next = {}
        self._is_new_topic = True
        assigned = self._consumer.assignment()
        if assigned:
            self._consumer.seek_to_beginning(*assigned)

    def _permission_missing(self, error: BaseException) -> PermissionMissing | None:
        return permission_missing(error, self._acls, self._options, self._servers)

    def _throttle_of(self, value: bytes | None) -> ThrottleRecord | None:
        if value is None:  # a tombstone: the topic forgets the key
            return None
        try:
            return ThrottleRecord.from_value(value)
        except UnreadableRecord as exc:
            self.unreadable += 1
            if self.unreadable == 1:
                log.warning("a record of %s is skipped: %s", self._topic, self.told(exc))
            return None


def _raise_if_refused(consumer: Any, topic: str) -> None:
    """Raise if the consumer has no right to see the topic.

    Kafka's metadata leave out a topic that the user may not describe. When asked for its end, the broker says so.
    """
    try:
        consumer.end_offsets([TopicPartition(topic, 0)], timeout_ms=REFUSAL_WAIT_MS)
    except TopicAuthorizationFailedError:
        raise
    except KafkaError:
        return
