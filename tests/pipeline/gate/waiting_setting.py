"""A waiting room on a clock moved by hand, for tests of who waits and what is charged."""

from typing import Any

from pipeline.gate.waiting_room import GateLimits, WaitingCaller, WaitingRoom
from schemas.names import ClientKey
from schemas.throttle_record import ThrottleRecord
from tests.fakes.clock import ManualClock
from tests.pipeline.throttle.factories import ALICE, record

START_MS = 1_000


class Setting:
    """A waiting room, its clock, and the names of the callers that were woken."""

    def __init__(self, **limits: Any) -> None:
        self.clock = ManualClock(START_MS)
        self.waiting_room = WaitingRoom(
            GateLimits(**{"pool_bytes": 100, "max_request_bytes": 100, **limits}), "c", self.clock
        )
        self.woken: list[str] = []

    def apply(self, *records: ThrottleRecord) -> None:
        self.waiting_room.apply(records)

    def enter(self, name: str = "caller", size_bytes: int = 0, client: ClientKey = ALICE) -> WaitingCaller | None:
        return self.waiting_room.enter(client, size_bytes, lambda: self.woken.append(name))

    def must_wait(self, name: str = "caller", size_bytes: int = 0, client: ClientKey = ALICE) -> WaitingCaller:
        caller = self.enter(name, size_bytes, client)
        assert caller is not None
        return caller

    def pass_time(self, by_ms: int) -> None:
        self.clock.advance(by_ms)
        self.waiting_room.advance_clock(0)

    @property
    def gauges(self) -> tuple[int, int, int]:
        now = self.waiting_room.occupancy()
        return now.purgatory_size, now.delayed_operations, now.pool_used_bytes


def until(end_ms: int, publish_seq: int = 1, **changes: Any) -> ThrottleRecord:
    return record(publish_seq, end_ms, throttle_time_ms=end_ms, **changes)
