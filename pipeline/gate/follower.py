"""Follows the throttle topic on its own thread and hands over the records; survives a broker that is away."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from threading import Event, Thread
from typing import Any, Final, Literal, Protocol

from pipeline.gate.topic_reader import Found, ThrottleTopicReader
from schemas.names import ClientKey
from schemas.throttle_record import ThrottleRecord

log = logging.getLogger(__name__)

FollowerState = Literal["connecting", "catching-up", "following", "stale", "closed"]
RecordHandler = Callable[[Sequence[ThrottleRecord], bool], object]
"""Takes records, and whether they begin another topic, which has taken the place of the one before."""

POLL_MS: Final = 200
RETRY_SECONDS: Final = (0.5, 1.0, 2.0, 5.0)
PROBE_EVERY_SECONDS: Final = 2.0


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
        """The number of records that were skipped because they are not throttle records."""
        ...

    def start(self, handle_records: RecordHandler) -> None:
        """Hand every committed record to `handle_records`, once. Call it once.

        All calls come from one thread, and the records of one client come in the order of the topic. Records that
        arrived together are handed over in one call, because it costs less to wake many callers at once. When the topic
        was deleted and made anew, a call says so, perhaps without a record; all that was handed over is void then.
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
    topic can not be reached it tries again without end, and goes on where it was.

    Args:
        bootstrap_servers: Of the cluster that has the topic.
        topic: The throttle topic.
        options: Further kafka-python options, as of `client_properties.kafka_options`.
        name: Of the thread.
    """

    def __init__(
        self, bootstrap_servers: str, topic: str, options: Mapping[str, Any] | None = None, name: str = "throttle-view"
    ) -> None:
        self._state: FollowerState = "connecting"
        self._reader = ThrottleTopicReader(bootstrap_servers, topic, options)
        self._caught_up = Event()
        self._stopping = Event()
        self._handle_records: RecordHandler = lambda _records, _is_new_topic: None
        self._first: dict[tuple[str, ClientKey], Found] = {}
        self._thread = Thread(target=self._run, name=name, daemon=True)

    @property
    def unreadable(self) -> int:
        """See `Follower.unreadable`."""
        return self._reader.unreadable

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
                level = logging.WARNING if failures == 1 else logging.DEBUG
                log.log(
                    level,
                    "the throttle topic can not be followed, new throttles are not seen: %s",
                    self._reader.told(exc),
                )
                self._stopping.wait(wait_seconds)
            finally:
                self._reader.close()

    def _follow(self) -> None:
        ends, knows_all = self._reader.ends(), False
        self._state = "catching-up"
        probe_at = time.monotonic() + PROBE_EVERY_SECONDS
        while not self._stopping.is_set():
            if self._reader.take_is_new_topic():
                log.warning("the throttle topic was made anew; it is read from its start, earlier throttles are void")
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
            self._reader.add_partitions()
            if time.monotonic() > probe_at:
                self._reader.probe()
                probe_at = time.monotonic() + PROBE_EVERY_SECONDS

    def _gather(self, found: Sequence[Found]) -> None:
        """Keep the last record of each client, as partitions are read one after the other at first.

        In one partition the order of the topic counts. A client has records in two only after partitions were added;
        of those the job has counted the later ones up.
        """
        for one in found:
            key = (one.record.cluster, ClientKey(one.record.broker_id, one.record.user, one.record.client_id))
            last = self._first.get(key)
            if last is None or last.partition == one.partition or last.record.publish_seq < one.record.publish_seq:
                self._first[key] = one

    def _hand_over(self, found: Sequence[Found], is_new_topic: bool = False) -> None:
        if (found or is_new_topic) and not self._stopping.is_set():
            self._handle_records([one.record for one in found], is_new_topic)
