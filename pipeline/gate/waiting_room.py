"""Where throttled callers wait: Kafka's purgatory for the time, KIP-72's memory pool for the bytes. No threads."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from threading import Lock
from typing import Final, Literal

from pipeline.clock import Clock
from pipeline.gate.errors import GateDepleted, RequestSizeRefused
from pipeline.gate.throttle_state import Lease, ThrottleState, lease_end_ms
from pipeline.gate.waiting_caller import Hold
from purgatory.delayed_operation_purgatory import DelayedOperationPurgatory
from purgatory.memory_intake import MemoryIntake
from purgatory.memory_pool import MemoryPool
from purgatory.timer import SystemTimer
from schemas.client_key import ClientKey
from schemas.throttle_record import ThrottleRecord

WhenFull = Literal["refuse", "wait"]

_PRUNE_EVERY: Final = 10_000


@dataclass(frozen=True, slots=True)
class GateLimits:
    """How much may wait.

    Attributes:
        pool_bytes: Size of the memory pool. As in KIP-72 a request is let in while anything is left, so at most
            pool_bytes + max_request_bytes − 1 are held.
        max_request_bytes: The largest single request.
        when_full: refuse: a throttled caller that finds the pool depleted is refused at once; wait: it waits for
            room, first come, first served.
    """

    pool_bytes: int = 67_108_864
    max_request_bytes: int = 1_048_576
    when_full: WhenFull = "refuse"


@dataclass(frozen=True, slots=True)
class Occupancy:
    """The gauges of a waiting room, read at one time.

    Attributes:
        purgatory_size: PurgatorySize, entries of the watch lists.
        delayed_operations: NumDelayedOperations, callers that wait for a time-out.
        waiting: Callers that are not awake yet, those that wait for room among them.
        waiting_for_room: Callers that wait for bytes.
        pool_size_bytes: Of the memory pool.
        pool_available_bytes: What is left of it; below 0 when the last one in took more than that.
        pool_used_bytes: Held by callers that wait, and by those that were let go and have not left yet.
        pool_depleted_percent: Share of the last minute in which the pool refused, 0 to 100.
        throttled_clients: Throttles that run now.
    """

    purgatory_size: int
    delayed_operations: int
    waiting: int
    waiting_for_room: int
    pool_size_bytes: int
    pool_available_bytes: int
    pool_used_bytes: int
    pool_depleted_percent: float
    throttled_clients: int


class _Steady:
    """The steady clock as the purgatory wants it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def monotonic_ms(self) -> int:
        return self._clock.now().steady_ms


class WaitingRoom:
    """Callers in front of their throttles. Any thread may call; one advances the clock, one brings the records.

    A caller whose client is not throttled passes and is charged nothing: however many others are held, it never
    pays for them. One that is throttled is charged the bytes of its request until it leaves, not only until it
    wakes: what piled up behind a throttle goes on no faster than it is worked off.

    Locks: the room's own lock guards pool and intake and is never held while a hold completes.

    Args:
        room: How much may wait.
        cluster: See `ThrottleState`.
        clock: Throttles are timed on its steady time.
        together: Makes a block around what may let many callers go; what they are woken by may wait until its end.
    """

    def __init__(
        self,
        room: GateLimits,
        cluster: str | None,
        clock: Clock,
        together: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self._clock = clock
        self._together = together
        self._state = ThrottleState(cluster)
        self._timer = SystemTimer(_Steady(clock))
        self._purgatory: DelayedOperationPurgatory[Hold] = DelayedOperationPurgatory(self._timer)
        self._pool = MemoryPool(room.pool_bytes, room.max_request_bytes, _Steady(clock))
        self._intake: MemoryIntake[Hold] = MemoryIntake(self._pool)
        self._when_full = room.when_full
        self._holds: set[Hold] = set()
        self._lock = Lock()
        self._closed = False
        self._prune_in = _PRUNE_EVERY

    def enter(self, client: ClientKey, size_bytes: int, wake: Callable[[], None]) -> Hold | None:
        """Come in; None when the client is not throttled and nothing has to be waited for.

        Args:
            client: Who.
            size_bytes: What the request takes in memory while it waits; 0 charges nothing.
            wake: Called once, from any thread and perhaps before this returns, when the caller may go on.

        Returns:
            A hold; whoever gets one must give it to `leave`, awake or not.

        Raises:
            GateDepleted: The client is throttled, the pool has nothing left and `when_full` is refuse.
            RequestSizeRefused: size_bytes is below 0 or above `max_request_bytes`.
        """
        if not 0 <= size_bytes <= self._pool.max_allocation_bytes:
            raise RequestSizeRefused(size_bytes, self._pool.max_allocation_bytes)
        if self.blocked_until_ms(client) <= self.now_ms():
            return None
        hold = Hold(client, self, self._timer, wake)
        with self._lock:
            if self._closed:
                return None
            is_in = size_bytes == 0 or self._charge(hold, size_bytes)
            self._holds.add(hold)
        if is_in:
            self._watch(hold)
        return hold

    def leave(self, hold: Hold) -> None:
        """Go: the work is done, or the caller gave up. Its bytes go to who waits for room. Harmless when repeated."""
        hold.force_complete()
        self._purgatory.forget(hold, hold.keys)
        with self._lock:
            self._holds.discard(hold)
            if hold.charge is None:
                self._intake.forget(hold)
            else:
                self._pool.release(hold.charge)
                hold.charge = None
            served = self._intake.unmute()
            for unmuted in served:
                unmuted.source.charge = unmuted.allocation
        for unmuted in served:
            self._watch(unmuted.source)

    def take(self, records: Sequence[ThrottleRecord]) -> None:
        """Take in records of the throttle topic, those of one client in their order, and wake whom they let go."""
        now = self._clock.now()
        changed = [record for record in records if self._state.apply(record, lease_end_ms(record, now))]
        clients = dict.fromkeys(ClientKey(record.broker_id, record.user, record.client_id) for record in changed)
        with self._together():
            for client in clients:
                self._purgatory.check_and_complete(client)
        self._prune_in -= len(records)
        if self._prune_in <= 0:
            self._prune_in = _PRUNE_EVERY
            self._state.prune(now.steady_ms)

    def close(self) -> None:
        """Let everybody go, and everybody who comes from now on. Harmless when repeated."""
        with self._lock:
            self._closed = True
            holds = list(self._holds)
        with self._together():
            for hold in holds:
                hold.force_complete()

    def advance_clock(self, timeout_ms: int) -> bool:
        """Let those go whose throttle has ended, waiting up to timeout_ms for one. One thread at a time."""
        with self._together():
            return self._purgatory.advance_clock(timeout_ms)

    def wake(self) -> None:
        """Make a waiting `advance_clock` return soon."""
        self._purgatory.wake()

    def lease(self, client: ClientKey) -> Lease | None:
        """The client's running throttle, its end on the steady clock; None when nothing blocks it."""
        lease = self._state.lease_of(client)
        return None if self._closed or lease is None or lease.until_ms <= self.now_ms() else lease

    def leases(self) -> list[Lease]:
        """All running throttles, in no order."""
        return [] if self._closed else list(self._state.running(self.now_ms()))

    def blocked_until_ms(self, client: ClientKey) -> int:
        """See `pipeline.gate.waiting_caller.Blocking`."""
        lease = None if self._closed else self._state.lease_of(client)
        return 0 if lease is None else lease.until_ms

    def now_ms(self) -> int:
        """Steady time."""
        return self._clock.now().steady_ms

    def occupancy(self) -> Occupancy:
        """The gauges."""
        with self._lock:
            return Occupancy(
                purgatory_size=self._purgatory.watched,
                delayed_operations=self._purgatory.num_delayed,
                waiting=sum(not hold.is_completed for hold in self._holds),
                waiting_for_room=len(self._intake.muted),
                pool_size_bytes=self._pool.size_bytes,
                pool_available_bytes=self._pool.available_bytes,
                pool_used_bytes=self._pool.used_bytes,
                pool_depleted_percent=self._pool.depleted_percent,
                throttled_clients=len(self.leases()),
            )

    def _charge(self, hold: Hold, size_bytes: int) -> bool:
        """Take bytes for a hold, under the lock; False when it has to wait for them."""
        if self._when_full == "wait":
            hold.charge = self._intake.try_allocate(hold, size_bytes)
        else:
            hold.charge = self._pool.try_allocate(size_bytes)
            if hold.charge is None:
                raise GateDepleted(size_bytes, self._pool.available_bytes, self._pool.size_bytes)
        return hold.charge is not None

    def _watch(self, hold: Hold) -> None:
        self._purgatory.try_complete_else_watch(hold, hold.keys)
        if hold.is_completed:  # it left, or all were let go, while it was put on its keys
            self._purgatory.forget(hold, hold.keys)
