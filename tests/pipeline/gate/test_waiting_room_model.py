"""The waiting room against a naive model (a dictionary of ends, a list of waiters), with calls in any order."""

from dataclasses import dataclass

from hypothesis import event, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from pipeline.gate.waiting_room import GateDepleted, GateLimits, WaitingCaller, WaitingRoom
from schemas.names import ClientKey
from tests.fakes.clock import ManualClock
from tests.pipeline.throttle.factories import record, release

POOL_BYTES = 10
MAX_REQUEST_BYTES = 6

USERS = ("alice", "bob", "carol")

users = st.sampled_from(USERS)


@dataclass
class Waiter:
    """One caller, as the model sees it."""

    caller: WaitingCaller
    name: int
    user: str
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
        self.waiting_room = WaitingRoom(GateLimits(POOL_BYTES, MAX_REQUEST_BYTES), None, self.clock)
        self.refuses = True
        self.woken: set[int] = set()
        self.until_ms: dict[str, int] = {}
        self.waiters: list[Waiter] = []  # in the order they came
        self.callers = 0
        self.seq = 100

    @initialize(refuses=st.booleans(), lengths_ms=st.lists(st.integers(1, 1_000), min_size=3, max_size=3))
    def start(self, refuses: bool, lengths_ms: list[int]) -> None:
        self.refuses = refuses
        when_full = "refuse" if refuses else "wait"
        self.waiting_room = WaitingRoom(GateLimits(POOL_BYTES, MAX_REQUEST_BYTES, when_full), None, self.clock)  # type: ignore[arg-type]
        for user, length_ms in zip(USERS, lengths_ms, strict=True):
            self.throttle(user, length_ms)

    @property
    def now_ms(self) -> int:
        return self.clock.steady_ms

    @property
    def used_bytes(self) -> int:
        return sum(waiter.size_bytes for waiter in self.waiters if waiter.in_pool)

    def used_bytes_of(self, user: str) -> int:
        return sum(waiter.size_bytes for waiter in self.waiters if waiter.has_memory and waiter.user == user)

    def is_throttled(self, user: str) -> bool:
        return self.until_ms.get(user, 0) > self.now_ms

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
            if not self.is_throttled(waiter.user) and self.used_bytes_of(waiter.user) < POOL_BYTES:
                waiter.has_memory = True
        for waiter in self.waiters:
            if waiter.has_memory and not self.is_throttled(waiter.user):
                waiter.is_awake = True

    @rule(user=users, length_ms=st.integers(1, 40) | st.integers(100, 1_000))
    def throttle(self, user: str, length_ms: int) -> None:
        self.seq += 1
        until_ms = self.now_ms + length_ms
        self.waiting_room.apply([record(self.seq, until_ms, user=user, throttle_time_ms=length_ms)])
        self.until_ms[user] = until_ms
        self.settle()

    @rule(user=users)
    def release(self, user: str) -> None:
        self.seq += 1
        self.waiting_room.apply([release(self.seq, user=user)])
        self.until_ms[user] = 0
        self.settle()

    @rule(lengths_ms=st.dictionaries(users, st.integers(1, 1_000)))
    def new_topic(self, lengths_ms: dict[str, int]) -> None:
        self.seq = 0
        self.until_ms = dict.fromkeys(self.until_ms, 0) | {
            user: self.now_ms + length_ms for user, length_ms in lengths_ms.items()
        }
        records = [record(0, self.until_ms[user], user=user, throttle_time_ms=lengths_ms[user]) for user in lengths_ms]
        self.waiting_room.apply(records, is_new_topic=True)
        self.settle()

    @rule(user=users, sizes_bytes=st.lists(st.integers(0, MAX_REQUEST_BYTES), min_size=1, max_size=5))
    def enter(self, user: str, sizes_bytes: list[int]) -> None:
        for size_bytes in sizes_bytes:
            self.enter_one(user, size_bytes)

    def enter_one(self, user: str, size_bytes: int) -> None:
        name, self.callers = self.callers, self.callers + 1
        try:
            caller = self.waiting_room.enter(ClientKey("", user, "etl"), size_bytes, lambda: self.woken.add(name))
        except GateDepleted:
            assert self.refuses
            assert self.is_throttled(user)
            assert self.used_bytes >= POOL_BYTES
            return
        assert (caller is not None) == self.is_throttled(user)
        if caller is not None:
            somebody_waits = any(not waiter.has_memory for waiter in self.waiters)
            has_memory = size_bytes == 0 or (self.used_bytes < POOL_BYTES and not somebody_waits)
            assert has_memory or not self.refuses
            self.waiters.append(Waiter(caller, name, user, size_bytes, has_memory))

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
    def no_caller_waits_for_the_bytes_of_other_clients_after_its_throttle(self) -> None:
        for waiter in self.waiters:
            if waiter.name not in self.woken and not self.is_throttled(waiter.user):
                assert self.used_bytes_of(waiter.user) >= POOL_BYTES

    @invariant()
    def the_gauges_count_the_waiters(self) -> None:
        now = self.waiting_room.occupancy()
        if now.waiting_for_memory:
            event("a caller waits for memory")
        if any(waiter.has_memory and not waiter.in_pool and waiter.size_bytes for waiter in self.waiters):
            event("a caller has memory beyond the pool")
        if any(not waiter.has_memory and not self.is_throttled(waiter.user) for waiter in self.waiters):
            event("a caller waits for its own client")
        asleep = sum(not waiter.is_awake for waiter in self.waiters)
        throttled = sum(self.is_throttled(waiter.user) and not waiter.is_awake for waiter in self.waiters)
        assert throttled <= now.delayed_operations <= asleep
        assert asleep <= now.purgatory_size <= len(self.waiters)
        assert now.waiting == asleep
        assert now.waiting_for_memory == sum(not waiter.has_memory for waiter in self.waiters)
        assert now.pool_used_bytes == self.used_bytes <= POOL_BYTES + MAX_REQUEST_BYTES - 1
        assert now.throttled_clients == sum(map(self.is_throttled, self.until_ms))

    def teardown(self) -> None:
        self.waiting_room.close()
        assert len(self.woken) == len(self.waiters)
        for waiter in self.waiters:
            self.waiting_room.leave(waiter.caller)
        now = self.waiting_room.occupancy()
        assert (now.purgatory_size, now.delayed_operations, now.waiting, now.pool_used_bytes) == (0, 0, 0, 0)


TestRoomAgainstModel = RoomAgainstModel.TestCase
TestRoomAgainstModel.settings = settings(max_examples=100, stateful_step_count=50)
