"""Where throttled callers wait: Kafka's purgatory for the time, KIP-72's memory pool for the bytes. No threads."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from threading import Lock
from typing import Final

from pipeline.clock import Clock
from pipeline.gate.limits import GateLimits
from pipeline.gate.occupancy import Occupancy
from pipeline.gate.request_memory import RequestMemory
from pipeline.gate.throttle_state import Lease, ThrottleState, lease_end_ms
from pipeline.gate.waiting_caller import WaitingCaller
from purgatory.delayed_operation import DelayedOperationPurgatory
from purgatory.timer import SystemTimer
from schemas.names import ClientKey
from schemas.throttle_record import ThrottleRecord

_PRUNE_EVERY_MS: Final = 60_000


class _SteadyTime:
    """The clock's steady time in the form that the purgatory asks for."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def monotonic_ms(self) -> int:
        return self._clock.now().steady_ms


class WaitingRoom:
    """Makes callers wait while their client is throttled.

    Any thread may call. One thread advances the clock, and one thread brings the records.

    A caller whose client is not throttled passes at once and is charged nothing, however many others wait. A caller
    whose client is throttled is charged the bytes of its request until it leaves, not only until it wakes. So the
    requests that piled up behind a throttle go on no faster than they are worked off. Who waits for memory, and for
    whose, is the rule of `RequestMemory`.

    Locks: the waiting room's own lock guards the memory. It is never held while a caller completes; a caller that is
    tried may take it.

    Args:
        limits: How many bytes may wait.
        cluster: See `ThrottleState`.
        clock: Throttles are timed on its steady time.
        wake_together: Makes a `with` block for work that may wake many callers. Whoever wakes them may wait until the
            end of the block and then wake all of them at once.
    """

    def __init__(
        self,
        limits: GateLimits,
        cluster: str | None,
        clock: Clock,
        wake_together: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self._clock = clock
        self._wake_together = wake_together
        self._state = ThrottleState(cluster)
        steady_time = _SteadyTime(clock)
        self._timer = SystemTimer(steady_time)
        self._purgatory: DelayedOperationPurgatory[WaitingCaller] = DelayedOperationPurgatory(self._timer)
        self._memory = RequestMemory(limits, steady_time)
        self._callers: set[WaitingCaller] = set()
        self._lock = Lock()
        self._closed = False
        self._prune_at_ms = 0

    def enter(self, client: ClientKey, size_bytes: int, wake: Callable[[], None]) -> WaitingCaller | None:
        """Begin to wait; None when the client is not throttled and may go on at once.

        Args:
            client: Whose request it is.
            size_bytes: What the request takes in memory while it waits; 0 charges nothing.
            wake: Called once when the caller may go on, from any thread, perhaps before this method returns.

        Returns:
            The waiting caller. It must be given to `leave`, whether it was woken or not.

        Raises:
            GateDepleted: The client is throttled, the pool has nothing left and `when_full` is refuse.
            RequestSizeRefused: size_bytes is below 0 or above `max_request_bytes`.
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
        """Leave: the work is done, or the caller gave up. May be repeated.

        Its bytes go to those who wait for memory.
        """
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
        """Apply records of the throttle topic and wake the callers that may go on now.

        Args:
            records: Each once; those of one client in the order of the topic.
            is_new_topic: They are the first ones of a topic that was made anew: all earlier ones are forgotten.
        """
        now = self._clock.now()
        clients = dict.fromkeys(self._state.forget() if is_new_topic else ())
        changed = [record for record in records if self._state.apply(record, lease_end_ms(record, now))]
        clients |= dict.fromkeys(ClientKey(record.broker_id, record.user, record.client_id) for record in changed)
        with self._wake_together():
            for client in clients:
                self._purgatory.check_and_complete(client)
        if now.steady_ms >= self._prune_at_ms:
            self._prune_at_ms = now.steady_ms + _PRUNE_EVERY_MS
            self._state.prune(now.steady_ms)

    def close(self) -> None:
        """Wake all callers; whoever comes from now on passes at once. May be repeated."""
        with self._lock:
            self._closed = True
            callers = list(self._callers)
        with self._wake_together():
            for caller in callers:
                caller.force_complete()

    def advance_clock(self, timeout_ms: int) -> bool:
        """Wake the callers whose throttle has ended; wait up to timeout_ms for one. Only one thread at a time."""
        with self._wake_together():
            return self._purgatory.advance_clock(timeout_ms)

    def wake(self) -> None:
        """Make a waiting `advance_clock` return soon."""
        self._purgatory.wake()

    def lease(self, client: ClientKey) -> Lease | None:
        """The client's running throttle, with its end on the steady clock; None when it is not throttled."""
        lease = self._state.lease_of(client)
        return None if self._closed or lease is None or lease.until_ms <= self.now_ms() else lease

    def leases(self) -> list[Lease]:
        """All running throttles, in no order."""
        return [] if self._closed else list(self._state.running(self.now_ms()))

    def blocked_until_ms(self, client: ClientKey) -> int:
        """See `pipeline.gate.waiting_caller.Gatekeeper`."""
        lease = None if self._closed else self._state.lease_of(client)
        return 0 if lease is None else lease.until_ms

    def now_ms(self) -> int:
        """The present steady time."""
        return self._clock.now().steady_ms

    def find_memory(self, caller: WaitingCaller) -> bool:
        """See `pipeline.gate.waiting_caller.Gatekeeper`."""
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
                throttled_clients=len(self.leases()),
            )
