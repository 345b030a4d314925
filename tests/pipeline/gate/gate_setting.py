"""A gate over a topic in memory, with its real threads."""

from typing import Any

from pipeline.gate.gate import Gate
from pipeline.gate.waiting_room import GateLimits, Occupancy
from tests.fakes.clock import ManualClock
from tests.fakes.follower import MemoryFollower
from tests.fakes.topic import TopicBroker
from tests.throttle_records import record, release
from tests.waiting import wait_until

START_MS = 1_000
LONG_MS = 1_000_000


class GateSetting:
    """A gate on a clock moved by hand: a throttle ends only when a test moves the clock."""

    def __init__(self, *, is_reachable: bool = True, **limits: Any) -> None:
        self.broker = TopicBroker()
        self.broker.is_reachable = is_reachable
        self.clock = ManualClock(START_MS)
        self.gate = Gate(MemoryFollower(self.broker), GateLimits(**limits), "c", self.clock)
        self._seq = 0

    def throttle(self, user: str = "alice", for_ms: int = LONG_MS, **changes: Any) -> None:
        """Publish a throttle of the user's client-id "etl"."""
        until_ms = self.clock.wall_ms + for_ms
        self._publish(record(self._seq, until_ms, user=user, throttle_time_ms=for_ms, **changes))

    def release(self, user: str = "alice") -> None:
        """Publish a release."""
        self._publish(release(self._seq, user=user, throttled_until_ms=self.clock.wall_ms))

    def wait_for(self, waiting: int) -> None:
        """Until so many callers wait."""
        wait_until(lambda: self.occupancy.waiting == waiting, f"{waiting} callers to wait")

    @property
    def occupancy(self) -> Occupancy:
        return self.gate.stats().occupancy

    def assert_empty(self) -> None:
        """No operation, no caller and no byte is left."""
        now = self.occupancy
        left = (now.purgatory_size, now.delayed_operations, now.waiting, now.waiting_for_memory, now.pool_used_bytes)
        assert left == (0, 0, 0, 0, 0)

    def _publish(self, each: Any) -> None:
        """What another program writes need not fit into a row."""
        self._seq += 1
        self.broker.commit([each])
