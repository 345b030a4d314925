"""The driver's side of a real throttle topic, without a driver: a real transactional publisher."""

import time
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from kafka import KafkaAdminClient

from pipeline.clock import SystemClock
from pipeline.cluster.connecting import ClusterAccess
from pipeline.cluster.topics import create_topics, topic_specs
from pipeline.errors import ClusterUnreachable
from pipeline.throttle.publisher import Publisher
from pipeline.throttle.topic import KafkaThrottleTopic
from quota.decisions import Evaluation
from schemas.names import ClientKey
from tests.fakes.outbox import MemoryOutbox
from tests.pipeline.throttle.factories import publications, violation
from tests.waiting import wait_until


class ThrottleJob:
    """Publishes for client-id "c" of some users, through an outbox, in transactions. Topic and marker are its own.

    Attributes:
        name: The name of the throttle topic.
    """

    def __init__(self, servers: str) -> None:
        self.name = f"throttle.{time.time_ns()}"
        marker = f"{self.name}.marker"
        admin: Any = KafkaAdminClient(bootstrap_servers=servers)
        create_topics(admin, topic_specs(1, 1_000, throttle_topic=self.name, marker_topic=marker)[1:])
        admin.close()
        topic = KafkaThrottleTopic(self.name, self.name, marker, ClusterAccess(servers), 15_000)
        self._held: set[str] = set()
        self._publisher = Publisher(self.name, "c", MemoryOutbox(), topic)
        wait_until(self._has_taken_over, "the coordinator of a broker that has just started")

    def _has_taken_over(self) -> bool:
        try:
            self._publisher.take_over(-1, SystemClock().now())
        except ClusterUnreachable:
            return False
        return True

    def throttle(self, *users: object, for_ms: int = 120_000) -> None:
        self._publish("throttle", users, for_ms)

    def release(self, *users: object) -> None:
        self._publish("release", users, 0)

    def reopen(self) -> None:
        """Open the topic again after the broker was away."""
        self._publisher.take_over(self._publisher.next_seq - 1, SystemClock().now())

    def close(self) -> None:
        self._publisher.close()

    def _publish(self, action: Any, users: Iterable[object], throttle_time_ms: int) -> None:
        news = []
        for user in map(str, users):
            cause: Any = ("extended" if user in self._held else "violation") if action == "throttle" else "expired"
            news.append(replace(violation(ClientKey("", user, "c"), throttle_time_ms), action=action, cause=cause))
            (self._held.add if action == "throttle" else self._held.discard)(user)
        wall_ms = SystemClock().now().wall_ms
        assert self._publisher.write(publications(*news), Evaluation("q", 1, wall_ms, 1), wall_ms)
        assert not self._publisher.is_behind
