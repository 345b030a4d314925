"""The consumer's side: until when is a <user, client-id> blocked?

`ThrottleState` is the rule, without Kafka. `ThrottleView` follows the topic on a thread of its own and keeps a
state up to date. Both fail open: a throttle ends at its `throttled_until_ms`, whether or not anything more is
heard, and a client nothing was heard of is not blocked.
"""

import logging
from collections.abc import Mapping
from contextlib import suppress
from threading import Event, Thread
from typing import Any, Final, NamedTuple

from kafka import KafkaConsumer, TopicPartition

from pipeline.cluster.connecting import open_client
from pipeline.cluster.errors import TopicMissing
from pipeline.errors import PipelineError
from schemas.errors import UnreadableRecord
from schemas.throttle_record import ThrottleRecord

log = logging.getLogger(__name__)

POLL_MS: Final = 200
FORGET_AFTER_MS: Final = 3_600_000
RETRY_SECONDS: Final = (0.5, 1.0, 2.0, 5.0)
_PRUNE_EVERY: Final = 10_000

_Key = tuple[str, str, str]


class _Last(NamedTuple):
    publish_seq: int
    until_ms: int


class ThrottleState:
    """Who is blocked until when, from records in any order.

    Safe to read from any thread while one thread applies.

    Args:
        cluster: Records of other clusters are ignored; null: all are taken as one cluster's.
    """

    def __init__(self, cluster: str | None = None) -> None:
        self._cluster = cluster
        self._last: dict[_Key, _Last] = {}

    def __len__(self) -> int:
        return len(self._last)

    def apply(self, record: ThrottleRecord) -> bool:
        """Take one record; whether it changed anything.

        Of a client's records on a broker the one with the highest `publish_seq` holds. One that is older, or
        comes again, is dropped: a late copy never brings an ended throttle back. A release blocks no longer,
        from now on.
        """
        if self._cluster is not None and record.cluster != self._cluster:
            return False
        key = (record.broker_id, record.user, record.client_id)
        last = self._last.get(key)
        if last is not None and record.publish_seq <= last.publish_seq:
            return False
        until_ms = record.throttled_until_ms if record.action == "throttle" else 0
        self._last[key] = _Last(record.publish_seq, until_ms)
        return True

    def blocked_until_ms(self, user: str, client_id: str, broker_id: str = "") -> int:
        """End of the throttle, exclusive, wall clock in epoch ms; 0 if none was heard of or it was released.

        The end may be in the past. With a broker, the later of that broker's throttle and the cluster's;
        without, the cluster's alone.
        """
        until_ms = self._until_ms(("", user, client_id))
        return max(until_ms, self._until_ms((broker_id, user, client_id))) if broker_id else until_ms

    def remaining_ms(self, user: str, client_id: str, now_ms: int, broker_id: str = "") -> int:
        """How much longer the client must wait at `now_ms`, wall clock; 0 at the end and after it."""
        return max(0, self.blocked_until_ms(user, client_id, broker_id) - now_ms)

    def prune(self, now_ms: int) -> int:
        """Forget throttles that ended `FORGET_AFTER_MS` ago or earlier, and releases; how many.

        Forgetting a release lets a still older record of the same client in; it would have to come after it
        on the topic, and would have ended.
        """
        old = [key for key, last in list(self._last.items()) if last.until_ms + FORGET_AFTER_MS <= now_ms]
        for key in old:
            del self._last[key]
        return len(old)

    def _until_ms(self, key: _Key) -> int:
        last = self._last.get(key)
        return last.until_ms if last is not None else 0


class ThrottleView:
    """Follows the throttle topic and answers from memory.

    Begins at the start of the compacted topic, so that a client that has just started knows of a running
    throttle; reads committed records only. While the topic can not be reached it tries again without end, and
    what is known lapses by itself.

    Args:
        bootstrap_servers: Of the cluster that has the topic.
        topic: The throttle topic.
        cluster: See `ThrottleState`.
        options: Further kafka-python options, as of `client_properties.kafka_options`.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        topic: str = "quota.throttle.v1",
        cluster: str | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self.state = ThrottleState(cluster)
        self.unreadable = 0
        self._servers = bootstrap_servers
        self._topic = topic
        self._options = dict(options or {})
        self._caught_up = Event()
        self._stopping = Event()
        self._thread = Thread(target=self._run, name="throttle-view", daemon=True)

    def start(self) -> None:
        """Begin to follow, on a daemon thread; returns at once. Once only."""
        self._thread.start()

    def wait_until_caught_up(self, timeout_seconds: float) -> bool:
        """Wait until all that was on the topic at the start is known; whether that came to pass in time."""
        return self._caught_up.wait(timeout_seconds)

    def close(self, timeout_seconds: float = 5.0) -> None:
        """Stop following. What is known stays, and lapses. May be called twice, or before `start`."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(timeout_seconds)

    def blocked_until_ms(self, user: str, client_id: str, broker_id: str = "") -> int:
        """See `ThrottleState.blocked_until_ms`."""
        return self.state.blocked_until_ms(user, client_id, broker_id)

    def remaining_ms(self, user: str, client_id: str, now_ms: int, broker_id: str = "") -> int:
        """See `ThrottleState.remaining_ms`."""
        return self.state.remaining_ms(user, client_id, now_ms, broker_id)

    def _run(self) -> None:
        failures = 0
        while not self._stopping.is_set():
            consumer = None
            try:
                consumer = self._open()
                failures = 0
                self._follow(consumer)
            except Exception as exc:
                wait_seconds = RETRY_SECONDS[min(failures, len(RETRY_SECONDS) - 1)]
                failures += 1
                # Once a failure, not once a try.
                level = logging.WARNING if failures == 1 else logging.DEBUG
                log.log(level, "throttles are not followed, clients go on freely: %s", _one_line(exc))
                self._stopping.wait(wait_seconds)
            finally:
                if consumer is not None:
                    with suppress(Exception):
                        consumer.close()

    def _open(self) -> Any:
        consumer: Any = open_client(
            KafkaConsumer,
            self._servers,
            **self._options | {"isolation_level": "read_committed", "enable_auto_commit": False, "group_id": None},
        )
        partitions = consumer.partitions_for_topic(self._topic)
        if not partitions:
            consumer.close()
            raise TopicMissing(self._topic, self._servers)
        assigned = [TopicPartition(self._topic, partition) for partition in sorted(partitions)]
        consumer.assign(assigned)
        consumer.seek_to_beginning(*assigned)
        return consumer

    def _follow(self, consumer: Any) -> None:
        # Committed up to here; an open transaction ends the read there until it is decided.
        ends = consumer.end_offsets(list(consumer.assignment()))
        applied = 0
        while not self._stopping.is_set():
            for records in consumer.poll(POLL_MS).values():
                for record in records:
                    self._apply(record)
                    applied += 1
                    if applied % _PRUNE_EVERY == 0:
                        self.state.prune(record.timestamp)
            if not self._caught_up.is_set() and all(consumer.position(tp) >= end for tp, end in ends.items()):
                self._caught_up.set()

    def _apply(self, record: Any) -> None:
        if record.value is None:  # a tombstone
            return
        try:
            self.state.apply(ThrottleRecord.from_value(record.value))
        except UnreadableRecord as exc:
            self.unreadable += 1
            if self.unreadable == 1:
                log.warning("a record of %s is skipped: %s", self._topic, _one_line(exc))


def _one_line(error: Exception) -> str:
    text = error.message if isinstance(error, PipelineError) else f"{type(error).__name__}: {error}"
    return " ".join(text.split())[:300]
