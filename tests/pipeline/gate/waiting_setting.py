"""A waiting room on a clock moved by hand, for the tests of who waits and of what is charged."""

from typing import Any

from pipeline.gate.waiting_caller import Hold
from pipeline.gate.waiting_room import GateLimits, WaitingRoom
from schemas.client_key import ClientKey
from schemas.throttle_record import ThrottleRecord
from tests.fakes.clock import ManualClock
from tests.pipeline.throttle.factories import ALICE, record

START_MS = 1_000


class Setting:
    """A waiting room, its clock, and who was woken."""

    def __init__(self, **room: Any) -> None:
        self.clock = ManualClock(START_MS)
        self.room = WaitingRoom(GateLimits(**{"pool_bytes": 100, "max_request_bytes": 100, **room}), "c", self.clock)
        self.woken: list[str] = []

    def take(self, *records: ThrottleRecord) -> None:
        self.room.take(records)

    def enter(self, name: str = "caller", size_bytes: int = 0, client: ClientKey = ALICE) -> Hold | None:
        return self.room.enter(client, size_bytes, lambda: self.woken.append(name))

    def must_wait(self, name: str = "caller", size_bytes: int = 0, client: ClientKey = ALICE) -> Hold:
        hold = self.enter(name, size_bytes, client)
        assert hold is not None
        return hold

    def pass_time(self, by_ms: int) -> None:
        self.clock.advance(by_ms)
        self.room.advance_clock(0)

    @property
    def gauges(self) -> tuple[int, int, int]:
        now = self.room.occupancy()
        return now.purgatory_size, now.delayed_operations, now.pool_used_bytes


def until(end_ms: int, publish_seq: int = 1, **changes: Any) -> ThrottleRecord:
    return record(publish_seq, end_ms, throttle_time_ms=end_ms, **changes)
