"""Who waits, for how long, and what it is charged, on a clock moved by hand and without threads.

The model is a dictionary of ends and a list of waiters, with calls in any order; the tests after it have what the model
has not: brokers, clocks, closing, and what happens while a caller comes in or moves its end.
"""

from dataclasses import dataclass
from itertools import product
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from pipeline.clock import Moment
from pipeline.gate.waiting_room import GateDepleted, GateLimits, RequestSizeRefused, WaitingCaller, WaitingRoom
from purgatory.timer import SystemTimer
from purgatory.timing_wheel import TimerTask
from quota.entity import QUOTA_TYPES
from schemas.names import ClientKey
from schemas.throttle_record import ThrottleRecord
from tests.fakes.clock import ManualClock
from tests.pipeline.throttle.factories import ALICE
from tests.throttle_records import held_until_ms, message, record, release

START_MS = 1_000


class Room:
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


POOL_BYTES = 10
MAX_REQUEST_BYTES = 6
CLIENT_IDS = ("", "etl", "web")
CLIENTS = [ClientKey("", *names) for names in product(("alice", "bob"), CLIENT_IDS)]
clients = st.sampled_from(CLIENTS)
TARGETS: list[dict[str, Any]] = [
    *({"user": one.user, "client_id": one.client_id} for one in CLIENTS),
    *({"user": user, "client_id": None, "quota_type": kind} for kind in QUOTA_TYPES for user in ("alice", "bob")),
]
targets = st.sampled_from(TARGETS)


@dataclass
class Waiter:
    """One caller, as the model sees it."""

    caller: WaitingCaller
    name: int
    client: ClientKey
    size_bytes: int
    has_memory: bool
    in_pool: bool = False
    is_awake: bool = False

    def __post_init__(self) -> None:
        self.in_pool = self.has_memory


class RoomAgainstModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock(1_000)
        self.woken: set[int] = set()
        self.records: list[ThrottleRecord] = []
        self.ends_ms = dict.fromkeys(CLIENTS, 0)
        self.waiters: list[Waiter] = []  # in the order they came
        self.callers = 0

    @initialize(refuses=st.booleans(), lengths_ms=st.lists(st.integers(1, 1_000), min_size=6, max_size=6))
    def start(self, refuses: bool, lengths_ms: list[int]) -> None:
        self.refuses = refuses
        limits = GateLimits(POOL_BYTES, MAX_REQUEST_BYTES, "refuse" if refuses else "wait")
        self.waiting_room = WaitingRoom(limits, None, self.clock)
        for target, length_ms in zip(TARGETS, lengths_ms, strict=False):
            self.throttle(target, length_ms, ())

    @property
    def now_ms(self) -> int:
        return self.clock.steady_ms

    @property
    def used_bytes(self) -> int:
        return sum(waiter.size_bytes for waiter in self.waiters if waiter.in_pool)

    def used_bytes_of(self, client: ClientKey) -> int:
        return sum(waiter.size_bytes for waiter in self.waiters if waiter.has_memory and waiter.client == client)

    def is_throttled(self, client: ClientKey) -> bool:
        return self.ends_ms[client] > self.now_ms

    def settle(self) -> None:
        """Give memory to those that wait for it, then wake those that have it and whose throttle is over.

        In order: from the pool while anything is left; and to clients whose throttle is over, while their own
        requests use less than the pool's size.
        """
        for waiter in self.waiters:
            if not waiter.has_memory:
                if self.used_bytes >= POOL_BYTES:
                    break
                waiter.has_memory = waiter.in_pool = True
        for waiter in self.waiters:
            if not self.is_throttled(waiter.client) and self.used_bytes_of(waiter.client) < POOL_BYTES:
                waiter.has_memory = True
        for waiter in self.waiters:
            if waiter.has_memory and not self.is_throttled(waiter.client):
                waiter.is_awake = True

    def throttle_of(self, target: dict[str, Any], length_ms: int, excepted: tuple[str, ...] = ()) -> ThrottleRecord:
        exceptions = excepted if target["client_id"] is None else None
        until_ms = self.now_ms + length_ms
        return record(0, until_ms, throttle_time_ms=length_ms, except_client_ids=exceptions, **target)

    @rule(
        whom=targets,
        length_ms=st.integers(1, 40) | st.integers(100, 1_000),
        excepted=st.lists(st.sampled_from(CLIENT_IDS), max_size=2).map(tuple),
    )
    def throttle(self, whom: dict[str, Any], length_ms: int, excepted: tuple[str, ...]) -> None:
        self.apply(self.throttle_of(whom, length_ms, excepted))

    @rule(released=st.lists(targets, min_size=1, max_size=3))
    def release(self, released: list[dict[str, Any]]) -> None:
        throttles = (self.throttle_of(target, 0) for target in released)
        self.apply(*(each.model_copy(update={"action": "release"}) for each in throttles))

    @rule(lengths_ms=st.lists(st.integers(1, 1_000), max_size=len(TARGETS)))
    def new_topic(self, lengths_ms: list[int]) -> None:
        self.records = []
        pairs = zip(reversed(TARGETS), lengths_ms, strict=False)
        self.apply(*(self.throttle_of(target, length_ms) for target, length_ms in pairs), is_new_topic=True)

    def apply(self, *records: ThrottleRecord, is_new_topic: bool = False) -> None:
        self.records += records
        sent = [message(each) for each in self.records]
        self.ends_ms = {client: held_until_ms(sent, "c", *client) for client in CLIENTS}
        self.waiting_room.apply(records, is_new_topic)
        self.settle()

    @rule(client=clients, sizes_bytes=st.lists(st.integers(0, MAX_REQUEST_BYTES), min_size=1, max_size=5))
    def enter(self, client: ClientKey, sizes_bytes: list[int]) -> None:
        for size_bytes in sizes_bytes:
            self.enter_one(client, size_bytes)

    def enter_one(self, client: ClientKey, size_bytes: int) -> None:
        name, self.callers = self.callers, self.callers + 1
        try:
            caller = self.waiting_room.enter(client, size_bytes, lambda: self.woken.add(name))
        except GateDepleted:
            assert self.refuses
            assert self.is_throttled(client)
            assert self.used_bytes >= POOL_BYTES
            return
        assert (caller is not None) == self.is_throttled(client)
        if caller is not None:
            somebody_waits = any(not waiter.has_memory for waiter in self.waiters)
            has_memory = size_bytes == 0 or (self.used_bytes < POOL_BYTES and not somebody_waits)
            assert has_memory or not self.refuses
            self.waiters.append(Waiter(caller, name, client, size_bytes, has_memory))

    @rule(number=st.integers(0, 20))
    def leave(self, number: int) -> None:
        if not self.waiters:
            return
        gone = self.waiters.pop(number % len(self.waiters))
        self.waiting_room.leave(gone.caller)
        self.waiting_room.leave(gone.caller)
        self.woken.discard(gone.name)
        self.settle()

    @rule(by_ms=st.integers(0, 15) | st.integers(100, 1_000))
    def pass_time(self, by_ms: int) -> None:
        self.clock.advance(by_ms)
        self.waiting_room.advance_clock(0)
        self.settle()

    @invariant()
    def exactly_those_are_awake_that_should_be(self) -> None:
        assert self.woken == {waiter.name for waiter in self.waiters if waiter.is_awake}

    @invariant()
    def the_gauges_count_the_waiters(self) -> None:
        now = self.waiting_room.occupancy()
        asleep = sum(not waiter.is_awake for waiter in self.waiters)
        throttled = sum(self.is_throttled(waiter.client) and not waiter.is_awake for waiter in self.waiters)
        assert throttled <= now.delayed_operations <= asleep
        assert 2 * asleep <= now.purgatory_size <= 2 * len(self.waiters)
        assert now.waiting == asleep
        assert now.waiting_for_memory == sum(not waiter.has_memory for waiter in self.waiters)
        assert now.pool_used_bytes == self.used_bytes <= POOL_BYTES + MAX_REQUEST_BYTES - 1
        running = {each.target: each for each in self.records}.values()
        assert now.throttles == sum(each.throttled_until_ms > self.now_ms for each in running)

    def teardown(self) -> None:
        self.waiting_room.close()
        assert len(self.woken) == len(self.waiters)
        for waiter in self.waiters:
            self.waiting_room.leave(waiter.caller)
        now = self.waiting_room.occupancy()
        assert (now.purgatory_size, now.delayed_operations, now.waiting, now.pool_used_bytes) == (0, 0, 0, 0)


TestRoomAgainstModel = RoomAgainstModel.TestCase
TestRoomAgainstModel.settings = settings(max_examples=60, stateful_step_count=40)


def test_setting_the_machines_clock_back_makes_no_caller_wait_longer() -> None:
    setting = Room()
    setting.apply(until(5_000))
    setting.must_wait()
    setting.clock.set_wall(0)
    setting.pass_time(4_000)
    assert setting.woken == ["caller"]


def test_a_throttle_of_one_broker_blocks_callers_of_that_broker_alone() -> None:
    setting = Room()
    setting.apply(until(5_000, broker_id="1"))
    there = ALICE._replace(broker_id="1")
    assert setting.enter() is None
    assert setting.enter(client=ALICE._replace(broker_id="2")) is None
    setting.must_wait("there", client=there)
    setting.apply(until(9_000, 2), release(3, broker_id="1"))
    assert setting.woken == []
    setting.apply(release(4))
    assert setting.woken == ["there"]


def test_a_restart_wakes_all_callers_and_begins_empty_with_the_known_throttles() -> None:
    setting = Room(when_full="wait")
    setting.apply(until(5_000))
    callers = [setting.must_wait("first", 100), setting.must_wait("without memory", 100)]
    setting.waiting_room.restart()
    assert sorted(setting.woken) == ["first", "without memory"]
    setting.must_wait("later", 60)
    for caller in callers:
        setting.waiting_room.leave(caller)
    assert setting.gauges == (2, 1, 60)


def test_bytes_that_become_free_wake_who_waits_for_them() -> None:
    setting = Room(when_full="wait")
    setting.apply(until(5_000))
    first = setting.must_wait("first", 100)
    setting.must_wait("second", 100)
    setting.pass_time(4_000)
    assert setting.woken == ["first"]
    setting.waiting_room.leave(first)
    assert setting.woken == ["first", "second"]


def test_a_caller_that_comes_while_the_room_closes_passes() -> None:
    setting = Room()
    setting.apply(until(5_000))
    when_asked = setting.clock.now

    def close_and_read() -> Moment:
        setting.clock.now = when_asked  # type: ignore[method-assign]
        setting.waiting_room.close()
        return when_asked()

    setting.clock.now = close_and_read  # type: ignore[method-assign]
    assert setting.enter(size_bytes=10) is None
    assert setting.gauges == (0, 0, 0)


def test_a_throttle_that_ends_while_its_caller_comes_in_leaves_nothing_watched() -> None:
    setting = Room()
    setting.apply(until(START_MS + 3))
    when_asked = setting.clock.now

    def a_millisecond_later() -> Moment:
        setting.clock.advance(1)
        return when_asked()

    setting.clock.now = a_millisecond_later  # type: ignore[method-assign]
    setting.must_wait()
    assert setting.woken == ["caller"]
    assert setting.gauges == (0, 0, 0)


@pytest.mark.parametrize("size_bytes", [-1, 101])
def test_a_size_beyond_the_limits_is_refused_throttled_or_not(size_bytes: int) -> None:
    with pytest.raises(RequestSizeRefused, match=f"lets in requests of 0 to 100 bytes; this one has {size_bytes}"):
        Room().enter(size_bytes=size_bytes)


def test_a_caller_that_is_woken_while_its_end_moves_leaves_no_timer_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted(SystemTimer):
        adds = 0

        def add(self, task: TimerTask) -> None:
            self.adds += 1
            if self.adds == 2 and isinstance(task, WaitingCaller):  # another thread's release, just before the move
                task.force_complete()
            super().add(task)

    monkeypatch.setattr("pipeline.gate.waiting_room.SystemTimer", Interrupted)
    setting = Room()
    setting.apply(until(2_000))
    setting.must_wait()
    setting.apply(until(3_000, 2))
    assert (setting.woken, setting.waiting_room.occupancy().delayed_operations) == (["caller"], 0)
