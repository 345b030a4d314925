"""The published benchmark object by object: one loop that enqueues, completes and expires, on the real clock."""

import heapq
import time
from typing import Any, Final, Protocol

from bench.purgatory.load import KEYS, TIMEOUT_MS, Load, Run
from bench.purgatory.old_design import OldPurgatory, OldRequest
from purgatory.delayed_operation import DelayedOperation, DelayedOperationPurgatory
from purgatory.timer import SystemMonotonicClock, SystemTimer

REQUESTS_A_TURN: Final = 100
"""After so many requests completions and expiry get their turn, and after so many expiries the arrivals again."""


class Design(Protocol):
    """A purgatory under test."""

    def enqueue(self, completes_at_ms: int) -> Any:
        """Let a request wait. Returns None if it could complete at once."""
        ...

    def complete(self, request: Any) -> None:
        """Complete a request, whatever it waits for. Does nothing if it has timed out."""
        ...

    def advance(self) -> None:
        """Expire what is due."""
        ...

    @property
    def expired(self) -> int:
        """The number of requests that timed out."""
        ...


class _Operation(DelayedOperation):
    __slots__ = ("completes_at_ms", "design")

    def __init__(self, completes_at_ms: int, design: "NewDesign") -> None:
        super().__init__(TIMEOUT_MS)
        self.completes_at_ms = completes_at_ms
        self.design = design

    def try_complete(self) -> bool:
        return self.design.now_ms >= self.completes_at_ms and self.force_complete()

    def on_complete(self) -> None:
        pass

    def on_expiration(self) -> None:
        self.design.expired += 1


class NewDesign:
    """`DelayedOperationPurgatory` over the timing wheel."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.expired = 0
        self._clock = SystemMonotonicClock()
        self._purgatory: DelayedOperationPurgatory[_Operation] = DelayedOperationPurgatory(SystemTimer(self._clock))

    def enqueue(self, completes_at_ms: int) -> _Operation | None:
        """See `Design`. Its checks read the clock once per request, like those of the 0.8 design."""
        self.now_ms = self._clock.monotonic_ms()
        operation = _Operation(completes_at_ms, self)
        return None if self._purgatory.try_complete_else_watch(operation, KEYS) else operation

    def complete(self, request: _Operation) -> None:
        """See `Design`."""
        request.force_complete()

    def advance(self) -> None:
        """See `Design`."""
        self._purgatory.advance_clock(0)


class OldDesign:
    """The purgatory of Kafka 0.8."""

    def __init__(self, version: str) -> None:
        self._clock = SystemMonotonicClock()
        self._purgatory = OldPurgatory(version)

    @property
    def expired(self) -> int:
        """See `Design`."""
        return self._purgatory.expired

    def enqueue(self, completes_at_ms: int) -> OldRequest | None:
        """See `Design`."""
        request = OldRequest(TIMEOUT_MS, completes_at_ms)
        return None if self._purgatory.watch(request, KEYS, self._clock.monotonic_ms()) else request

    def complete(self, request: OldRequest) -> None:
        """See `Design`."""
        request.satisfy()

    def advance(self) -> None:
        """See `Design`."""
        self._purgatory.advance(self._clock.monotonic_ms(), REQUESTS_A_TURN)


def run_one_by_one(design: Design, load: Load, target_per_second: float, limit_seconds: float) -> Run:
    """One run. Arrivals stop when the time is up; the rate is then that of the requests that had arrived."""
    clock = SystemMonotonicClock()
    arrivals_ms, latencies_ms = load.arrival_ms.tolist(), load.latency_ms.tolist()
    completions: list[tuple[int, int, Any]] = []
    cpu_started, started = time.process_time(), time.perf_counter()
    enqueued, last_seconds, requests = 0, 0.0, load.requests
    start_ms = clock.monotonic_ms()
    while enqueued < requests or completions:
        now_ms = clock.monotonic_ms()
        turn = min(enqueued + REQUESTS_A_TURN, requests)
        while enqueued < turn and arrivals_ms[enqueued] <= now_ms - start_ms:
            completes_at_ms = now_ms + latencies_ms[enqueued]
            request = design.enqueue(completes_at_ms)
            if request is not None and latencies_ms[enqueued] < TIMEOUT_MS:
                heapq.heappush(completions, (completes_at_ms, enqueued, request))
            enqueued += 1
            last_seconds = time.perf_counter() - started
        while completions and completions[0][0] <= now_ms:
            design.complete(heapq.heappop(completions)[2])
        design.advance()
        if last_seconds > limit_seconds:
            requests = enqueued
        if enqueued < requests and arrivals_ms[enqueued] > now_ms - start_ms + 1:
            time.sleep(0.0005)
    cpu_seconds = time.process_time() - cpu_started
    time.sleep((TIMEOUT_MS + 1) / 1000)
    design.advance()
    return Run(target_per_second, enqueued / last_seconds, cpu_seconds / enqueued * 1e6, enqueued, design.expired)
