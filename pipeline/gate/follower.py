"""Follows the throttle topic on its own thread and hands over the records; survives a broker that is away."""

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from threading import Event, Thread
from typing import Any, Final, Literal, Protocol

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

FollowerState = Literal["connecting", "catching-up", "following", "stale", "closed"]
RecordHandler = Callable[[Sequence[ThrottleRecord]], object]

POLL_MS: Final = 200
RETRY_SECONDS: Final = (0.5, 1.0, 2.0, 5.0)
NEW_PARTITIONS_MS: Final = 5_000
PROBE_EVERY_SECONDS: Final = 2.0
PROBE_TIMEOUT_MS: Final = 3_000
REFUSAL_WAIT_MS: Final = 1_000


class Follower(Protocol):
    """Port to the throttle topic, as readers see it."""

    @property
    def state(self) -> FollowerState:
        """How far the follower is.

        connecting: it has never read anything. catching-up: it reads what was on the topic at the start. following:
        it has read everything that is readable. stale: it lost the broker and tries again. closed: `close` was
        called.
        """
        ...

    @property
    def unreadable(self) -> int:
        """How many records were skipped because they are not throttle records."""
        ...

    def start(self, handle_records: RecordHandler) -> None:
        """Hand every committed record to `handle_records`. Call it once.

        All calls come from one thread, and the records of one client come in the order of the topic. Records that
        arrived together are handed over in one call, because it costs less to wake many callers at once.
        """
        ...

    def wait_until_caught_up(self, timeout_seconds: float) -> bool:
        """Wait until everything that was on the topic at the start is handed over; False if that takes longer."""
        ...

    def close(self, timeout_seconds: float = 5.0) -> None:
        """Stop. Nothing is handed over afterwards. May be called twice, or before `start`."""
        ...


class KafkaFollower:
    """A `Follower` of a real topic.

    It begins at the start of the compacted topic, so that a program that has just started knows the running
    throttles. It reads committed records only. Partitions that are added later are read from their start. While the
    topic can not be reached it tries again without end. Then it reads the whole topic again, so records are handed
    over a second time.

    Args:
        bootstrap_servers: Of the cluster that has the topic.
        topic: The throttle topic.
        options: Further kafka-python options, as of `client_properties.kafka_options`.
        name: Of the thread.
    """

    def __init__(
        self, bootstrap_servers: str, topic: str, options: Mapping[str, Any] | None = None, name: str = "throttle-view"
    ) -> None:
        self.unreadable = 0
        self._state: FollowerState = "connecting"
        self._servers = bootstrap_servers
        self._topic = topic
        self._options = dict(options or {})
        self._acls = (Acl("topic", topic, "Read"),)
        self._caught_up = Event()
        self._stopping = Event()
        self._handle_records: RecordHandler = lambda _: None
        self._thread = Thread(target=self._run, name=name, daemon=True)

    @property
    def state(self) -> FollowerState:
        """See `Follower.state`."""
        return "closed" if self._stopping.is_set() else self._state

    def start(self, handle_records: RecordHandler) -> None:
        """See `Follower.start`. Starts a daemon thread and returns at once."""
        self._handle_records = handle_records
        self._thread.start()

    def wait_until_caught_up(self, timeout_seconds: float) -> bool:
        """See `Follower.wait_until_caught_up`."""
        return self._caught_up.wait(timeout_seconds)

    def close(self, timeout_seconds: float = 5.0) -> None:
        """See `Follower.close`."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(timeout_seconds)

    def _run(self) -> None:
        failures = 0
        while not self._stopping.is_set():
            consumer = None
            try:
                consumer = self._open()
                self._assign_all(consumer)
                failures = 0
                self._follow(consumer)
            except Exception as error:
                exc = permission_missing(error, self._acls, self._options, self._servers) or error
                wait_seconds = RETRY_SECONDS[min(failures, len(RETRY_SECONDS) - 1)]
                failures += 1
                if self._state != "connecting":
                    self._state = "stale"
                # One warning per failure, not one per attempt.
                level = logging.WARNING if failures == 1 else logging.DEBUG
                log.log(
                    level,
                    "the throttle topic can not be followed, new throttles are not seen: %s",
                    _one_line(exc),
                )
                self._stopping.wait(wait_seconds)
            finally:
                if consumer is not None:
                    with suppress(Exception):
                        consumer.close()

    def _open(self) -> Any:
        ours = {
            "isolation_level": "read_committed",
            "enable_auto_commit": False,
            "group_id": None,
            # A topic that was deleted and created again is read from its start, too.
            "auto_offset_reset": "earliest",
            "allow_auto_create_topics": False,
            "metadata_max_age_ms": NEW_PARTITIONS_MS,
        }
        return open_client(KafkaConsumer, self._servers, **self._options | ours)

    def _assign_all(self, consumer: Any) -> None:
        if not self._assign(consumer):
            _raise_if_refused(consumer, self._topic)
            raise TopicMissing(self._topic, self._servers, "throttle")

    def _assign(self, consumer: Any) -> bool:
        """Also read the topic's new partitions, from their start; False if the topic has no partition at all."""
        known = consumer.assignment()
        found = {TopicPartition(self._topic, number) for number in consumer.partitions_for_topic(self._topic) or ()}
        added = sorted(found - known)
        if added:
            consumer.assign(sorted(found | known))
            consumer.seek_to_beginning(*added)
        return bool(found)

    def _follow(self, consumer: Any) -> None:
        # Ends of what is committed. Nothing after an open transaction is readable until it is decided.
        ends = consumer.end_offsets(list(consumer.assignment()))
        self._state = "catching-up"
        knows_all = False
        probe_at = time.monotonic() + PROBE_EVERY_SECONDS
        while not self._stopping.is_set():
            self._hand_over(chain.from_iterable(consumer.poll(POLL_MS).values()))
            if not knows_all and all(consumer.position(tp) >= end for tp, end in ends.items()):
                knows_all = True
                self._state = "following"
                self._caught_up.set()
            self._assign(consumer)
            if time.monotonic() > probe_at:
                # `poll` does not fail when no broker answers any more; this call does.
                consumer.end_offsets(list(consumer.assignment()), timeout_ms=PROBE_TIMEOUT_MS)
                probe_at = time.monotonic() + PROBE_EVERY_SECONDS

    def _hand_over(self, records: Iterable[Any]) -> None:
        throttles = [throttle for record in records if (throttle := self._throttle_of(record)) is not None]
        if throttles and not self._stopping.is_set():
            self._handle_records(throttles)

    def _throttle_of(self, record: Any) -> ThrottleRecord | None:
        if record.value is None:  # a tombstone: the topic forgets the key
            return None
        try:
            return ThrottleRecord.from_value(record.value)
        except UnreadableRecord as exc:
            self.unreadable += 1
            if self.unreadable == 1:
                log.warning("a record of %s is skipped: %s", self._topic, _one_line(exc))
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


def _one_line(error: Exception) -> str:
    if isinstance(error, PermissionMissing):
        return str(error)
    text = error.message if isinstance(error, PipelineError) else f"{type(error).__name__}: {first_line(error)}"
    return text[:300]
