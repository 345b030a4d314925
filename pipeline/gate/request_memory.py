"""What requests at the gate take in memory, and who waits for memory."""

from dataclasses import dataclass, field

from pipeline.gate.errors import GateDepleted, RequestSizeRefused
from pipeline.gate.limits import GateLimits
from pipeline.gate.waiting_caller import WaitingCaller
from purgatory.memory_pool import MemoryIntake, MemoryPool
from purgatory.timer import MonotonicClock
from schemas.names import ClientKey


@dataclass(slots=True)
class _ClientRequests:
    used_bytes: int = 0
    waiting: dict[WaitingCaller, None] = field(default_factory=dict)  # for memory, longest waiting first


class RequestMemory:
    """Gives memory to the requests of throttled clients. No lock: the lock of its owner.

    While a client is throttled, its requests take from one pool (KIP-72) that all throttled clients share. When the
    pool is depleted they wait for it; who came first gets memory first.

    When a client's throttle is over, its requests no longer wait for the bytes of other clients. They wait only while
    the client's own requests use `pool_bytes` or more. So what piled up behind a throttle goes on no faster than it is
    worked off, and a client that fills the pool never makes another one wait. What these requests take is counted for
    the client, but not in the pool: the pool bounds the requests of clients that are throttled.

    Args:
        limits: Sizes, and what happens when the pool is depleted.
        clock: For the share of the time in which the pool is depleted.
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
        """Check the size of a request; 0 is allowed.

        Raises:
            RequestSizeRefused: It is below 0 or above `max_request_bytes`.
        """
        if not 0 <= size_bytes <= self.pool.max_allocation_bytes:
            raise RequestSizeRefused(size_bytes, self.pool.max_allocation_bytes)

    def take(self, caller: WaitingCaller) -> None:
        """Give a new caller memory from the pool, or let it wait for memory (`has_memory` False).

        Raises:
            GateDepleted: The pool has nothing left and `when_full` is refuse.
        """
        if caller.size_bytes == 0:
            caller.has_memory = True
        elif self._refuses:
            caller.allocation = self.pool.try_allocate(caller.size_bytes)
            if caller.allocation is None:
                raise GateDepleted(caller.size_bytes, self.pool.available_bytes, self.pool.size_bytes)
            self._count(caller)
        else:
            caller.allocation = self._intake.try_allocate(caller, caller.size_bytes)
            if caller.allocation is None:
                self._of(caller.client).waiting[caller] = None
            else:
                self._count(caller)

    def give_back(self, caller: WaitingCaller) -> list[WaitingCaller]:
        """Take the memory of a caller that leaves; returns the callers that got memory from the pool by that.

        Call it once per caller, whether the caller has memory or waits for it.
        """
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
        for unmuted in served:
            unmuted.source.allocation = unmuted.allocation
            self._count(unmuted.source)
        return [unmuted.source for unmuted in served]

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
