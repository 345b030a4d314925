"""Where throttled callers wait: Kafka's purgatory for the time, KIP-72's memory pool for the bytes. No threads."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Final, Literal, NamedTuple

from pipeline.clock import Clock, Moment
from pipeline.errors import PipelineError
from purgatory.delayed_operation import DelayedOperation, DelayedOperationPurgatory
from purgatory.memory_pool import Allocation, MemoryIntake, MemoryPool
from purgatory.timer import MonotonicClock, SystemTimer
from schemas.names import ClientKey
from schemas.throttle_record import ThrottleRecord

# Until when each client is blocked, from the records of the throttle topic.

WatchKey = tuple[str, str, str | None]
"""Broker, user and client-id of a throttle, or of who waits for it; client-id None: all client-ids of the user."""


def watch_keys_of(client: ClientKey) -> tuple[WatchKey, ...]:
    """The keys of all throttles that may hold a client: on the whole cluster, and on its broker if one is named."""
    broker_id, user, client_id = client
    on_cluster: tuple[WatchKey, ...] = (("", user, client_id), ("", user, None))
    return (*on_cluster, (broker_id, user, client_id), (broker_id, user, None)) if broker_id else on_cluster


class Lease(NamedTuple):
    """A throttle, by its newest record; its end, exclusive, is on the clock of the state's caller."""

    until_ms: int
    record: ThrottleRecord


def lease_end_ms(record: ThrottleRecord, now: Moment) -> int:
    """End of a throttle on this machine's steady clock; 0 for a release.

    It is as far from now as `throttled_until_ms` is by the wall clock, but never farther than the record's whole
    `throttle_time_ms`. Without that limit a machine whose clock is behind the driver's would make its clients wait
    longer, by the difference of the clocks. A machine whose clock is ahead lets them go earlier, by the difference.
    """
    if record.action == "release":
        return 0
    return now.steady_ms + min(record.throttled_until_ms - now.wall_ms, record.throttle_time_ms)


_Leases = Mapping[tuple[str, str | None], Lease]
"""Throttles with one watch key, by cluster, and of a user also by quota type. It is replaced, never changed."""


class ThrottleState:
    """Until when each client is blocked, from the records of one topic, each once and in the order of the topic.

    Of a target, in a cluster, the last record counts. Its `publish_seq` is not compared: it begins again with a new
    life of the job, whose tables and topics were recreated.

    It fails open: a throttle ends at its own end even if no further record comes, and a client without records is
    not blocked. Any thread may read while one thread applies records.

    Args:
        cluster: Records of other clusters are ignored. None: records of every cluster count, each cluster's on its own,
            and a client is blocked until the last of its throttles ends.
    """

    def __init__(self, cluster: str | None = None) -> None:
        self._cluster = cluster
        self._by_key: dict[WatchKey, _Leases] = {}

    def __len__(self) -> int:
        return sum(map(len, self._by_key.values()))

    def apply(self, record: ThrottleRecord, until_ms: int) -> WatchKey | None:
        """Apply one record; None for one of another cluster, which is ignored. Of a release nothing is kept.

        Args:
            until_ms: Its end, on the clock of the caller.
        """
        if self._cluster is not None and record.cluster != self._cluster:
            return None
        target = record.target
        key, own = target[:3], (record.cluster, target.quota_type)
        others = {each: lease for each, lease in self._by_key.get(key, {}).items() if each != own}
        self._keep(key, others if record.action == "release" else {**others, own: Lease(until_ms, record)})
        return key

    def forget(self) -> list[WatchKey]:
        """Forget all throttles: another topic takes this one's place. Returns their watch keys."""
        forgotten, self._by_key = self._by_key, {}
        return list(forgotten)

    def lease_of(self, client: ClientKey) -> Lease | None:
        """The throttle that holds a client longest; it may have ended already. None if no throttle holds the client.

        They are its own and those of its user that do not except it: the whole cluster's, and with a broker also that
        broker's. It runs for every waiting caller, so it is quick.
        """
        found: Lease | None = None
        for key in watch_keys_of(client):
            for lease in self._by_key.get(key, {}).values():
                is_last = found is None or lease.until_ms > found.until_ms
                if is_last and lease.record.holds(client.user, client.client_id):
                    found = lease
        return found

    def running(self, now_ms: int) -> Iterator[Lease]:
        """The throttles that have not ended, in no order."""
        return (lease for leases in list(self._by_key.values()) for lease in leases.values() if lease.until_ms > now_ms)

    def prune(self, now_ms: int) -> None:
        """Forget the throttles that have ended."""
        for key, leases in list(self._by_key.items()):
            self._keep(key, {each: lease for each, lease in leases.items() if lease.until_ms > now_ms})

    def _keep(self, key: WatchKey, leases: _Leases) -> None:
        if leases:
            self._by_key[key] = leases
        else:
            self._by_key.pop(key, None)


class GateDepleted(PipelineError):
    """The waiting requests of throttled clients use up the gate's memory pool. Other clients still pass."""

    exit_code = 5

    def __init__(self, request_bytes: int, available_bytes: int, pool_bytes: int) -> None:
        self.request_bytes = request_bytes
        self.available_bytes = available_bytes
        self.pool_bytes = pool_bytes
        super().__init__(
            f"the gate's pool of {pool_bytes} bytes has {available_bytes} left, too few for {request_bytes}",
            "answer the client that it is throttled, or give the gate a larger pool_bytes or when_full='wait'",
        )


class RequestSizeRefused(PipelineError, ValueError):
    """A request of a size that the gate never lets in, however much memory is free."""

    exit_code = 5

    def __init__(self, request_bytes: int, max_request_bytes: int) -> None:
        self.request_bytes = request_bytes
        self.max_request_bytes = max_request_bytes
        super().__init__(
            f"the gate lets in requests of 0 to {max_request_bytes} bytes; this one has {request_bytes}",
            "split the request, or give the gate a larger max_request_bytes",
        )


_LONGEST_SLEEP_MS: Final = 3_600_000  # a record may name a throttle that is longer than what a lock can wait


class WaitingCaller(DelayedOperation):
    """A delayed operation that completes when its client's throttle has ended: by a release, or by its end.

    It reads the end again when a record of the client or its user arrives, and when the time-out fires. So a renewal
    that is published before the caller wakes makes it wait on, and an earlier end wakes it earlier.

    Attributes:
        has_memory: It does not wait for memory (any more). Guarded by the lock of the room.
        allocation: Its bytes in the pool; None while it waits for memory, and when it needs none of the pool.
    """

    __slots__ = (
        "_room", "_timer", "_until_ms", "_wake", "allocation", "client", "has_memory", "keys", "size_bytes"
    )  # fmt: skip

    def __init__(
        self,
        client: ClientKey,
        size_bytes: int,
        room: "WaitingRoom",
        timer: SystemTimer,
        wake: Callable[[], None],
    ) -> None:
        """Make a caller without a watch, a time-out or memory. `wake` is called once, from any thread: it is quick."""
        super().__init__(delay_ms=0)
        self.client = client
        self.keys = watch_keys_of(client)
        self.size_bytes = size_bytes
        self.has_memory = False
        self.allocation: Allocation | None = None
        self._room = room
        self._timer = timer
        self._wake = wake
        self._until_ms: int | None = None

    def try_complete(self) -> bool:
        """Complete if the throttle has ended; otherwise make sure that the time-out is at the end of the throttle."""
        until_ms = self._room.blocked_until_ms(self.client)
        self.delay_ms = max(until_ms - self._room.now_ms(), 0) if until_ms else 0
        moved = self._until_ms is not None and until_ms != self._until_ms
        self._until_ms = until_ms
        if self.delay_ms == 0:
            return (self.has_memory or self._room.find_memory(self)) and self.force_complete()
        if moved:
            self._restart_timer()
        return False

    def sleep_seconds(self) -> float:
        """How long it may sleep before `try_again`: until its throttle ends, as known at the last try.

        Mostly a thread of the gate wakes it by then; but a throttle ends even if no such thread lives.
        """
        return min(self.delay_ms or _LONGEST_SLEEP_MS, _LONGEST_SLEEP_MS) / 1000

    def try_again(self) -> bool:
        """Whether it may pass, now or since earlier."""
        return self.is_completed or self.safe_try_complete() or self.is_completed

    def abandon(self) -> None:
        """Wake it, if it waits, and let go of its timer: a thread that is gone may hold the timer's lock."""
        self.holder = None
        self.force_complete()

    def on_complete(self) -> None:
        """Wake the caller."""
        self._wake()

    def run(self) -> None:
        """The time-out: complete, unless the throttle was renewed meanwhile or there is no memory yet."""
        if not self.safe_try_complete() and self.delay_ms > 0:
            self._restart_timer()

    def _restart_timer(self) -> None:
        if not self.is_completed:
            self._timer.add(self)
            if self.is_completed:  # completed between the two lines above, so that its own cancel came too early
                self.cancel()


@dataclass(frozen=True, slots=True)
class Occupancy:
    """The gauges of a waiting room, all read at the same time.

    Attributes:
        delayed_operations: NumDelayedOperations, callers that wait for a time-out.
        waiting: Callers that are not awake yet, including those that wait for memory.
        pool_available_bytes: What is left of it. Below 0 when the last request was larger than what was left.
        pool_used_bytes: In use by callers that wait, and by callers that are awake and have not left yet. Bytes of
            callers that went on after their throttle without finding any in the pool are not part of it.
        pool_depleted_percent: Share of the last minute in which the pool refused, 0 to 100.
        throttles: Those that run: one for each client, and for each user and quota type.
    """

    purgatory_size: int
    delayed_operations: int
    waiting: int
    waiting_for_memory: int
    pool_size_bytes: int
    pool_available_bytes: int
    pool_used_bytes: int
    pool_depleted_percent: float
    throttles: int


# Memory of waiting requests.

WhenFull = Literal["refuse", "wait"]


@dataclass(frozen=True, slots=True)
class GateLimits:
    """The limit of the bytes of throttled requests that wait.

    Attributes:
        pool_bytes: Size of the memory pool that all throttled clients share. As in KIP-72 a request is let in while
            anything is left, so at most pool_bytes + max_request_bytes − 1 are in use.
        when_full: What happens to a throttled caller that finds the pool depleted. refuse: it is refused at once.
            wait: it waits until bytes become free; who came first gets them first. When its own throttle is over, it
            waits only while its own client's requests use pool_bytes or more.
    """

    pool_bytes: int = 67_108_864
    max_request_bytes: int = 1_048_576
    when_full: WhenFull = "refuse"


@dataclass(slots=True)
class _ClientRequests:
    used_bytes: int = 0
    waiting: dict[WaitingCaller, None] = field(default_factory=dict)  # for memory, longest waiting first


class RequestMemory:
    """Gives memory to the requests of throttled clients. No lock: the lock of its owner.

    While a client is throttled, its requests take from one pool (KIP-72) that all throttled clients share. When the
    pool is depleted they wait for it; who came first gets memory first.

    When a client's throttle is over, its requests no longer wait for the bytes of other clients. They wait only while
    the client's own requests use `pool_bytes` or more. So what piled up behind a throttle continues no faster than it
    is worked off, and a client that fills the pool never makes another one wait. What these requests take is counted
    for the client, but not in the pool: the pool bounds the requests of clients that are throttled.
    """

    def __init__(self, limits: GateLimits, clock: MonotonicClock) -> None:
        self.pool = MemoryPool(limits.pool_bytes, limits.max_request_bytes, clock)
        self._intake: MemoryIntake[WaitingCaller] = MemoryIntake(self.pool)
        self._refuses = limits.when_full == "refuse"
        self._by_client: dict[ClientKey, _ClientRequests] = {}

    @property
    def waiting(self) -> int:
        """The number of callers that wait for memory."""
        return len(self._intake.muted)

    def check_size(self, size_bytes: int) -> None:
        """Raise `RequestSizeRefused` for a request below 0 or above `max_request_bytes`."""
        if not 0 <= size_bytes <= self.pool.max_allocation_bytes:
            raise RequestSizeRefused(size_bytes, self.pool.max_allocation_bytes)

    def take(self, caller: WaitingCaller) -> None:
        """Give a new caller memory from the pool, or let it wait for memory; raises `GateDepleted` if it refuses."""
        if caller.size_bytes == 0:
            caller.has_memory = True
            return
        caller.allocation = self._intake.try_allocate(caller, caller.size_bytes)
        if caller.allocation is not None:
            self._count(caller)
        elif self._refuses:
            self._intake.forget(caller)
            raise GateDepleted(caller.size_bytes, self.pool.available_bytes, self.pool.size_bytes)
        else:
            self._of(caller.client).waiting[caller] = None

    def give_back(self, caller: WaitingCaller) -> list[WaitingCaller]:
        """Take the memory of a caller that leaves, if it has any; returns the callers that got memory by that."""
        self._intake.forget(caller)
        mine = self._of(caller.client)
        mine.waiting.pop(caller, None)
        if caller.has_memory:
            mine.used_bytes -= caller.size_bytes
        if caller.allocation is not None:
            self.pool.release(caller.allocation)
            caller.allocation = None
        if not (mine.used_bytes or mine.waiting):
            del self._by_client[caller.client]
        served = self._intake.unmute()
        for other, allocation in served:
            other.allocation = allocation
            self._count(other)
        return [other for other, _ in served]

    def serve_own(self, client: ClientKey) -> list[WaitingCaller]:
        """Give memory to the waiting callers of a client whose throttle is over; returns those that got some."""
        served: list[WaitingCaller] = []
        mine = self._by_client.get(client)
        while mine and mine.waiting and mine.used_bytes < self.pool.size_bytes:
            caller = next(iter(mine.waiting))
            self._intake.forget(caller)
            self._count(caller)
            served.append(caller)
        return served

    def _of(self, client: ClientKey) -> _ClientRequests:
        return self._by_client.setdefault(client, _ClientRequests())

    def _count(self, caller: WaitingCaller) -> None:
        mine = self._of(caller.client)
        mine.waiting.pop(caller, None)
        mine.used_bytes += caller.size_bytes
        caller.has_memory = True


_PRUNE_EVERY_MS: Final = 60_000


class WaitingRoom:
    """Makes callers wait while their client is throttled.

    Any thread may call. One thread advances the clock, and one thread brings the records.

    A caller whose client is not throttled passes at once and is charged nothing, however many others wait. A caller
    whose client is throttled is charged the bytes of its request until it leaves, not only until it wakes. So the
    requests that piled up behind a throttle continue no faster than they are worked off. Who waits for memory, and for
    whose, is the rule of `RequestMemory`.

    Locks: the waiting room's own lock guards the memory. It is never held while a caller completes; a caller that is
    tried may take it.
    """

    def __init__(self, limits: GateLimits, cluster: str | None, clock: Clock) -> None:
        self._limits = limits
        self._clock = clock
        self._state = ThrottleState(cluster)
        self._closed = False
        self._prune_at_ms = 0
        self._begin_empty()

    def _begin_empty(self) -> None:
        self._timer = SystemTimer(self)
        self._purgatory: DelayedOperationPurgatory[WaitingCaller] = DelayedOperationPurgatory(self._timer)
        self._memory = RequestMemory(self._limits, self)
        self._callers: set[WaitingCaller] = set()
        self._lock = Lock()

    def restart(self) -> None:
        """In a child of `fork()`: wake the parent's callers, and begin empty, with new locks and the known throttles.

        A thread that the child has not got may hold any of the old locks, so none of them is taken.
        """
        callers = self._callers
        self._begin_empty()
        for caller in callers:
            caller.abandon()

    def enter(self, client: ClientKey, size_bytes: int, wake: Callable[[], None]) -> WaitingCaller | None:
        """Begin to wait; None when the client is not throttled and may pass at once.

        Args:
            size_bytes: What the request takes in memory while it waits; 0 charges nothing.
            wake: Called once when the caller may pass, from any thread, perhaps before this method returns.

        Returns:
            The waiting caller. It must be given to `leave`, whether it was woken or not.

        Raises:
            GateDepleted, RequestSizeRefused: See `RequestMemory`.
        """
        self._memory.check_size(size_bytes)
        if self.blocked_until_ms(client) <= self.now_ms():
            return None
        caller = WaitingCaller(client, size_bytes, self, self._timer, wake)
        with self._lock:
            if self._closed:
                return None
            self._memory.take(caller)
            self._callers.add(caller)
        self._purgatory.try_complete_else_watch(caller, caller.keys)
        if caller.is_completed:  # it left, or all were woken, while it was put on its keys
            self._purgatory.forget(caller, caller.keys)
        return caller

    def leave(self, caller: WaitingCaller) -> None:
        """Leave: the work is done, or the caller gave up. Its bytes go to those who wait for some. May be repeated."""
        caller.force_complete()
        self._purgatory.forget(caller, caller.keys)
        with self._lock:
            if caller not in self._callers:
                return
            self._callers.remove(caller)
            served = self._memory.give_back(caller)
            if self.blocked_until_ms(caller.client) <= self.now_ms():
                served += self._memory.serve_own(caller.client)
        for each in served:
            each.safe_try_complete()

    def apply(self, records: Sequence[ThrottleRecord], is_new_topic: bool = False) -> None:
        """Apply records of the throttle topic, as the follower hands them over, and wake the callers that may pass."""
        now = self._clock.now()
        keys = dict.fromkeys(self._state.forget() if is_new_topic else ())
        changed = (self._state.apply(record, lease_end_ms(record, now)) for record in records)
        keys |= {key: None for key in changed if key is not None}
        for key in keys:
            self._purgatory.check_and_complete(key)
        if now.steady_ms >= self._prune_at_ms:
            self._prune_at_ms = now.steady_ms + _PRUNE_EVERY_MS
            self._state.prune(now.steady_ms)

    def close(self) -> None:
        """Wake all callers; whoever comes from now on passes at once. May be repeated."""
        with self._lock:
            self._closed = True
            callers = list(self._callers)
        for caller in callers:
            caller.force_complete()

    def advance_clock(self, timeout_ms: int) -> bool:
        """Wake the callers whose throttle has ended; wait up to timeout_ms for one. Only one thread at a time."""
        return self._purgatory.advance_clock(timeout_ms)

    def wake(self) -> None:
        """Make a waiting `advance_clock` return soon."""
        self._purgatory.wake()

    def lease(self, client: ClientKey) -> Lease | None:
        """The running throttle that holds a client longest, by the steady clock; None if no throttle holds it."""
        lease = self._state.lease_of(client)
        return None if self._closed or lease is None or lease.until_ms <= self.now_ms() else lease

    def leases(self) -> list[Lease]:
        """All running throttles, in no order."""
        return [] if self._closed else list(self._state.running(self.now_ms()))

    def blocked_until_ms(self, client: ClientKey) -> int:
        """End of the client's throttle on the timer's clock, exclusive; 0 when the client is not throttled."""
        lease = None if self._closed else self._state.lease_of(client)
        return 0 if lease is None else lease.until_ms

    def now_ms(self) -> int:
        """The present steady time."""
        return self._clock.now().steady_ms

    monotonic_ms = now_ms  # as the purgatory has it

    def find_memory(self, caller: WaitingCaller) -> bool:
        """Whether there is memory for a caller whose throttle is over. If not, the caller tries later."""
        with self._lock:
            self._memory.serve_own(caller.client)  # in their order; each of them tries for itself, at the same event
            return caller.has_memory

    def occupancy(self) -> Occupancy:
        """The gauges."""
        with self._lock:
            pool = self._memory.pool
            return Occupancy(
                purgatory_size=self._purgatory.watched,
                delayed_operations=self._purgatory.num_delayed,
                waiting=sum(not caller.is_completed for caller in self._callers),
                waiting_for_memory=self._memory.waiting,
                pool_size_bytes=pool.size_bytes,
                pool_available_bytes=pool.available_bytes,
                pool_used_bytes=pool.used_bytes,
                pool_depleted_percent=pool.depleted_percent,
                throttles=len(self.leases()),
            )
