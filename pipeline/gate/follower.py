"""Follows the throttle topic: a reader, a thread that hands records to the gate, and the tail for the command line.

A broker that is away stops nothing: the follower retries without end.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from threading import Event, Thread
from typing import Any, Final, Literal, NamedTuple
from uuid import UUID

from kafka import KafkaConsumer, TopicPartition
from kafka.errors import KafkaError, TopicAuthorizationFailedError

from pipeline.cluster.acls import Acl, PermissionMissing
from pipeline.cluster.connecting import open_client, permission_missing, topic_missing
from pipeline.errors import PipelineError, first_line
from schemas.names import UnreadableRecord
from schemas.throttle_record import Target, ThrottleRecord

# The reader: from the start of the topic, committed records only, with partitions that are added later.

log = logging.getLogger(__name__)

NEW_PARTITIONS_MS: Final = 5_000
ASK_EVERY_SECONDS: Final = 2.0
ASK_TIMEOUT_MS: Final = 3_000
REFUSAL_WAIT_MS: Final = 1_000

Ends = Mapping[Any, int]
"""The offset after the last record of each partition."""


class Found(NamedTuple):
    """A record, and where on the topic it was."""

    partition: Any
    offset: int
    record: ThrottleRecord


class ThrottleTopicReader:
    """One consumer of the throttle topic at a time. One thread. What is not a throttle record is skipped, counted."""

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
        self._ask_at = 0.0

    def open(self) -> None:
        """Begin at the start of the topic, or continue where it was if it was read before.

        Raises:
            PipelineError: It is not there, or no broker lets us in.
            KafkaError: Anything else; `line_of` makes a line of it.
        """
        self.close()
        ours = {
            "isolation_level": "read_committed",
            "enable_auto_commit": False,
            "group_id": None,
            # A topic that was cut short, or recreated, is read from its start, too.
            "auto_offset_reset": "earliest",
            "allow_auto_create_topics": False,
            "metadata_max_age_ms": NEW_PARTITIONS_MS,
        }
        self._consumer = open_client(KafkaConsumer, self._servers, **self._options | ours)
        if not self.add_partitions():
            _raise_if_refused(self._consumer, self._topic)
            raise topic_missing(self._topic, self._servers, "throttle")

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
        """Whether the topic was recreated since the last call: another id, or offsets that were had before.

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

    def keep_up(self) -> bool:
        """Read new partitions, too, and ask the brokers for something every 2 s; whether they have answered just now.

        `poll` does not fail when no broker answers; this raises KafkaError.
        """
        self.add_partitions()
        if time.monotonic() < self._ask_at:
            return False
        self._ask_at = time.monotonic() + ASK_EVERY_SECONDS
        self._consumer.end_offsets(list(self._consumer.assignment()), timeout_ms=ASK_TIMEOUT_MS)
        return True

    def line_of(self, error: BaseException) -> str:
        """What one of these calls has raised, in one line."""
        known = self.as_pipeline_error(error)
        if isinstance(known, PermissionMissing):
            return str(known)
        return (f"{type(error).__name__}: {first_line(error)}" if known is None else known.message)[:300]

    def as_pipeline_error(self, error: BaseException) -> PipelineError | None:
        """The error as one that an operator can act on; None if it is not known as one."""
        known = error if isinstance(error, PipelineError) else None
        return known or permission_missing(error, self._acls, self._options, self._servers)

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

    def _throttle_of(self, value: bytes | None) -> ThrottleRecord | None:
        if value is None:  # a tombstone: the topic forgets the key
            return None
        try:
            return ThrottleRecord.from_value(value)
        except UnreadableRecord as exc:
            self.unreadable += 1
            if self.unreadable == 1:
                log.warning("a record of %s is skipped: %s", self._topic, self.line_of(exc))
            return None


def _raise_if_refused(consumer: Any, topic: str) -> None:
    """Raise if the consumer has no right to see the topic.

    Kafka's metadata leave out a topic that the user may not describe. A request for its end fails with the reason.
    """
    try:
        consumer.end_offsets([TopicPartition(topic, 0)], timeout_ms=REFUSAL_WAIT_MS)
    except KafkaError as exc:
        if isinstance(exc, TopicAuthorizationFailedError):
            raise


FollowerState = Literal["connecting", "catching-up", "following", "stale", "closed"]
RecordHandler = Callable[[Sequence[ThrottleRecord], bool], object]
"""Takes records, and whether they begin another topic, which has taken the place of the one before."""

POLL_MS: Final = 200
RETRY_SECONDS: Final = (0.5, 1.0, 2.0, 5.0)


class KafkaFollower:
    """Hands every committed record of the throttle topic to a function, once.

    It begins at the start of the compacted topic, so that a program that has just started knows the running
    throttles. It reads committed records only. Partitions that are added later are read from their start. While the
    topic cannot be reached it tries again without end, and continues where it was.

    `options` are further kafka-python options, as of `client_properties.kafka_options`.
    """

    def __init__(self, bootstrap_servers: str, topic: str, options: Mapping[str, Any] | None = None) -> None:
        self._new_reader = partial(ThrottleTopicReader, bootstrap_servers, topic, options)
        self._handle_records: RecordHandler = lambda _records, _is_new_topic: None
        self._begin()

    def _begin(self) -> None:
        self._state: FollowerState = "connecting"
        self._reader = self._new_reader()
        self._caught_up = Event()
        self._stopping = Event()
        self._first: dict[tuple[str, Target], Found] = {}
        self._thread = Thread(target=self._run, name="gate-follower", daemon=True)

    @property
    def unreadable(self) -> int:
        """The number of records that were skipped because they are not throttle records."""
        return self._reader.unreadable

    @property
    def state(self) -> FollowerState:
        """How far it is.

        connecting: it has never read anything. catching-up: it reads what was on the topic at the start. following:
        it has read everything that is readable. stale: it lost the broker and tries again. closed: `close` was
        called.
        """
        return "closed" if self._stopping.is_set() else self._state

    def start(self, handle_records: RecordHandler) -> None:
        """Start a daemon thread, which hands over the records; returns at once. Call it once.

        All calls come from that thread, and the records of one target come in the order of the topic. Records that
        arrived together are handed over in one call, because it costs less to wake many callers at once. When the topic
        was deleted and recreated, a call has the flag, perhaps without a record; all that was handed over is void then.
        """
        self._handle_records = handle_records
        self._thread.start()

    def restart(self) -> None:
        """In a child of `fork()`, which has not got the thread: begin again at the start of the topic, if it had begun.

        Everything is handed over once more. The parent's connection stays as it is: closing it here would end it
        there, too.
        """
        had_begun, was_closed = self._thread.ident is not None, self._stopping.is_set()
        self._begin()
        if was_closed:
            self._stopping.set()
        elif had_begun:
            self._thread.start()

    def wait_until_caught_up(self, timeout_seconds: float) -> bool:
        """Wait until everything that was on the topic at the start is handed over; False if that takes longer."""
        return self._caught_up.wait(timeout_seconds)

    def close(self, timeout_seconds: float = 5.0) -> None:
        """Stop. Nothing is handed over afterwards. May be called twice, or before `start`."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(timeout_seconds)

    def _run(self) -> None:
        failures = 0
        while not self._stopping.is_set():
            try:
                self._reader.open()
                failures = 0
                self._follow()
            except Exception as exc:
                wait_seconds = RETRY_SECONDS[min(failures, len(RETRY_SECONDS) - 1)]
                failures += 1
                if self._state != "connecting":
                    self._state = "stale"
                # One warning per failure, not one per attempt.
                write = log.warning if failures == 1 else log.debug
                reason = self._reader.line_of(exc)
                write("the throttle topic cannot be followed, new throttles are not seen: %s", reason)
                self._stopping.wait(wait_seconds)
            finally:
                self._reader.close()

    def _follow(self) -> None:
        ends, knows_all = self._reader.ends(), False
        self._state = "catching-up"
        while not self._stopping.is_set():
            if self._reader.take_is_new_topic():
                log.warning("the throttle topic was recreated; it is read from its start, earlier throttles are void")
                self._first = {}
                self._hand_over([], is_new_topic=True)
                ends, knows_all, self._state = self._reader.ends(), False, "catching-up"
            found = self._reader.poll(POLL_MS)
            if knows_all:
                self._hand_over(found)
            else:
                self._gather(found)
                if self._reader.has_read(ends):
                    self._hand_over(list(self._first.values()))
                    self._first, knows_all, self._state = {}, True, "following"
                    self._caught_up.set()
            self._reader.keep_up()

    def _gather(self, found: Sequence[Found]) -> None:
        """Keep the last record of each target, as partitions are read one after the other at first.

        In one partition the order of the topic counts. A target has records in two only after partitions were added;
        of those the job has counted the later ones up.
        """
        for one in found:
            key = (one.record.cluster, one.record.target)
            last = self._first.get(key)
            if last is None or last.partition == one.partition or last.record.publish_seq < one.record.publish_seq:
                self._first[key] = one

    def _hand_over(self, found: Sequence[Found], is_new_topic: bool = False) -> None:
        if (found or is_new_topic) and not self._stopping.is_set():
            self._handle_records([one.record for one in found], is_new_topic)


# The tail: new records in the order in which the job wrote them.


class ThrottleTail:
    """The records of the topic from an instant on. One thread.

    It reads the whole topic first: partitions are read one after the other, and the job has counted its records up.

    Args:
        since_ms: When they were written, by wall clock; 0 = all that the topic still has; None = from now on.
    """

    def __init__(self, reader: ThrottleTopicReader, since_ms: int | None) -> None:
        self._reader = reader
        self._since_ms = since_ms
        self._ends: Ends = reader.ends()
        self._first: list[Found] | None = []
        self._is_away = False

    def step(self, wait_ms: int) -> list[ThrottleRecord]:
        """The next wanted records; empty while the topic is read for the first time, or if nothing comes.

        A broker that is away is logged once; the next records come when it is back. Raises KafkaError if the topic can
        no longer be read.
        """
        if self._reader.take_is_new_topic():
            self._ends = {}
        found = self._reader.poll(wait_ms)
        self._look_after_the_brokers()
        if self._first is not None:
            self._first += found
            if not self._reader.has_read(self._ends):
                return []
            found, self._first = self._first, None
        found.sort(key=lambda one: (one.record.cluster, one.record.publish_seq))
        return [one.record for one in found if self._is_wanted(one)]

    def _is_wanted(self, found: Found) -> bool:
        if self._since_ms is None:
            return found.offset >= self._ends.get(found.partition, 0)
        return found.record.written_ms >= self._since_ms

    def _look_after_the_brokers(self) -> None:
        try:
            has_answered = self._reader.keep_up()
        except KafkaError as exc:
            if not self._is_away:
                log.warning("the throttle topic does not answer, it is retried: %s", self._reader.line_of(exc))
            self._is_away = True
            return
        if has_answered and self._is_away:
            log.warning("the throttle topic answers; no record was missed")
            self._is_away = False
