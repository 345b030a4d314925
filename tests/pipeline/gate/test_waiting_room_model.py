"""The waiting room against a naive model: a dictionary of ends and a list of waiters, in any order of calls."""

from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pipeline.gate.errors import GateDepleted
from pipeline.gate.waiting_caller import Hold
from pipeline.gate.waiting_room import GateLimits, WaitingRoom
from schemas.client_key import ClientKey
from tests.fakes.clock import ManualClock
from tests.pipeline.throttle.factories import record, release

POOL_BYTES = 10
MAX_REQUEST_BYTES = 6

users = st.sampled_from(["alice", "bob", "carol"])


@dataclass
class Waiter:
    """One caller, as the model sees it."""

    hold: Hold
    name: int
    user: str
    size_bytes: int
    is_in: bool
    is_awake: bool = False


class RoomAgainstModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock(1_000)
        self.room = WaitingRoom(GateLimits(POOL_BYTES, MAX_REQUEST_BYTES), None, self.clock)
        self.refuses = True
        self.woken: set[int] = set()
        self.until_ms: dict[str, int] = {}
        self.waiters: list[Waiter] = []  # in the order they came
        self.callers = 0
        self.seq = 100

    @initialize(refuses=st.booleans())
    def start(self, refuses: bool) -> None:
        self.refuses = refuses
        when_full = "refuse" if refuses else "wait"
        self.room = WaitingRoom(GateLimits(POOL_BYTES, MAX_REQUEST_BYTES, when_full), None, self.clock)  # type: ignore[arg-type]

    @property
    def now_ms(self) -> int:
        return self.clock.steady_ms

    @property
    def used_bytes(self) -> int:
        return sum(waiter.size_bytes for waiter in self.waiters if waiter.is_in)

    def is_throttled(self, user: str) -> bool:
        return self.until_ms.get(user, 0) > self.now_ms

    def settle(self) -> None:
        """Let those in who find room, the first first; wake those that are in and whose throttle is over."""
        for waiter in self.waiters:
            if not waiter.is_in:
                if self.used_bytes >= POOL_BYTES:
                    break
                waiter.is_in = True
        for waiter in self.waiters:
            if waiter.is_in and not self.is_throttled(waiter.user):
                waiter.is_awake = True

    @rule(user=users, length_ms=st.integers(1, 40))
    def throttle(self, user: str, length_ms: int) -> None:
        self.seq += 1
        until_ms = self.now_ms + length_ms
        self.room.take([record(self.seq, until_ms, user=user, throttle_time_ms=length_ms)])
        self.until_ms[user] = until_ms
        self.settle()

    @rule(user=users)
    def release(self, user: str) -> None:
        self.seq += 1
        self.room.take([release(self.seq, user=user)])
        self.until_ms[user] = 0
        self.settle()

    @rule(user=users, is_release=st.booleans())
    @precondition(lambda self: len(self.until_ms) == 3)
    def late_copy(self, user: str, is_release: bool) -> None:
        self.room.take([release(1, user=user) if is_release else record(1, self.now_ms + 500, user=user)])

    @rule(user=users, size_bytes=st.integers(0, MAX_REQUEST_BYTES))
    def enter(self, user: str, size_bytes: int) -> None:
        name, self.callers = self.callers, self.callers + 1
        try:
            hold = self.room.enter(ClientKey("", user, "etl"), size_bytes, lambda: self.woken.add(name))
        except GateDepleted:
            assert self.refuses
            assert self.is_throttled(user)
            assert self.used_bytes >= POOL_BYTES
            return
        assert (hold is not None) == self.is_throttled(user)
        if hold is not None:
            somebody_waits = any(not waiter.is_in for waiter in self.waiters)
            is_in = size_bytes == 0 or (self.used_bytes < POOL_BYTES and not somebody_waits)
            assert is_in or not self.refuses
            self.waiters.append(Waiter(hold, name, user, size_bytes, is_in))

    @rule(data=st.data())
    @precondition(lambda self: bool(self.waiters))
    def leave(self, data: st.DataObject) -> None:
        waiter = data.draw(st.sampled_from(range(len(self.waiters))))
        gone = self.waiters.pop(waiter)
        self.room.leave(gone.hold)
        self.room.leave(gone.hold)
        self.woken.discard(gone.name)
        self.settle()

    @rule(by_ms=st.integers(0, 60))
    def pass_time(self, by_ms: int) -> None:
        self.clock.advance(by_ms)
        self.room.advance_clock(0)
        self.settle()

    @invariant()
    def those_are_awake_who_should_be(self) -> None:
        assert self.woken == {waiter.name for waiter in self.waiters if waiter.is_awake}

    @invariant()
    def the_gauges_count_the_waiters(self) -> None:
        now = self.room.occupancy()
        timed = sum(waiter.is_in and not waiter.is_awake for waiter in self.waiters)
        assert now.delayed_operations == timed
        assert timed <= now.purgatory_size <= len(self.waiters)
        assert now.waiting == sum(not waiter.is_awake for waiter in self.waiters)
        assert now.waiting_for_room == sum(not waiter.is_in for waiter in self.waiters)
        assert now.pool_used_bytes == self.used_bytes <= POOL_BYTES + MAX_REQUEST_BYTES - 1
        assert now.throttled_clients == sum(map(self.is_throttled, self.until_ms))

    def teardown(self) -> None:
        self.room.close()
        assert len(self.woken) == len(self.waiters)
        for waiter in self.waiters:
            self.room.leave(waiter.hold)
        now = self.room.occupancy()
        assert (now.purgatory_size, now.delayed_operations, now.waiting, now.pool_used_bytes) == (0, 0, 0, 0)


TestRoomAgainstModel = RoomAgainstModel.TestCase
TestRoomAgainstModel.settings = settings(max_examples=120, stateful_step_count=50, deadline=None)
