"""The load of the published purgatory benchmark: Poisson arrivals, log-normal latencies.

The 0.8 design
--------------
The request purgatory of Kafka 0.8, as the benchmark's baseline: watch lists and one heap of all requests.

A satisfied request stays in the heap and in the lists of all its keys until it is found there, or until a purge. The
rule is that of 0.8.2, tested once per turn of the reaper, which is after every request that expired: the lists have
1 000 entries or more: scan them; the heap has 1 000 or more: scan it.

This is re-built from a description of the rule, with locks where Kafka had `synchronized`. Scanning the heap costs one
rebuild here; in Kafka it was quadratic.

One by one
----------
The published benchmark object by object: one loop that enqueues, completes and expires, on the real clock.

In batches
----------
The published benchmark in batches of one millisecond, on the batch purgatory: one thread, the real clock.

The requests that arrive within a millisecond are one batch. When the run is late, batches are not joined to larger
ones. Completion is as in the published benchmark: a second queue, here a second wheel, says when the latency of a
request is over, and then the request is completed. `by_key` works without that queue: in each millisecond there is an
event on one of the three keys in turn, and every request that is watched on it is checked.
"""

import heapq
import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from pipeline.jvm.jars import broker_classpath, fetch
from pipeline.jvm.java import find_jdk
from purgatory.batch_purgatory import BatchPurgatory, Bools
from purgatory.batch_wheel import BatchTimingWheel, slots_of
from purgatory.delayed_operation import DelayedOperation, DelayedOperationPurgatory
from purgatory.timer import SystemMonotonicClock, SystemTimer

TIMEOUT_MS: Final = 200
KEYS: Final = (17, 42, 96)
"""Three keys of a hundred, drawn once: every request is watched on the same three."""

_P75_IN_SIGMAS: Final = 0.674490

Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Case:
    """One distribution of latencies."""

    median_ms: int  # half of the requests can complete within this time
    p75_ms: int  # three quarters of them can

    def __str__(self) -> str:
        return f"{self.median_ms}/{self.p75_ms} ms"

    @property
    def sigma(self) -> float:
        return math.log(self.p75_ms / self.median_ms) / _P75_IN_SIGMAS

    @property
    def expired_share(self) -> float:
        """The share of the requests whose latency is longer than the time-out."""
        return 0.5 * math.erfc(math.log(TIMEOUT_MS / self.median_ms) / self.sigma / math.sqrt(2))


CASES: Final = (Case(20, 60), Case(200, 400))


@dataclass(frozen=True, slots=True)
class Load:
    """Requests in the order of their arrival."""

    arrival_ms: npt.NDArray[np.float64]  # float64[n], since the start; all 0 in a load that is not paced
    latency_ms: Int64s  # int64[n], whole milliseconds; the fraction is carried over to the next request

    @property
    def requests(self) -> int:
        return self.latency_ms.size


def draw_load(case: Case, requests: int, rate_per_second: float, seed: int = 1) -> Load:
    """Draw the requests of one run. With an infinite rate the load is not paced."""
    random = np.random.default_rng(seed)
    exact_ms = random.lognormal(math.log(case.median_ms), case.sigma, requests)
    latency_ms = np.diff(np.floor(np.cumsum(exact_ms)), prepend=0.0).astype(np.int64)
    gaps_ms = random.exponential(1000.0 / rate_per_second, requests) if math.isfinite(rate_per_second) else None
    return Load(np.zeros(requests) if gaps_ms is None else np.cumsum(gaps_ms), latency_ms)


@dataclass(frozen=True, slots=True)
class Run:
    """The result of one run."""

    target_per_second: float  # the rate of arrivals that was asked for; infinite if the run was not paced
    achieved_per_second: float  # requests divided by the time until the last of them had arrived
    cpu_us: float  # processor time of the whole process per request, until all are complete, in microseconds
    requests: int  # how many there were; fewer than asked for if the time was up
    expired: int  # how many of them timed out

    def kept_up(self, case: Case) -> bool:
        """True if about as many timed out as must. With fewer, expiry is late; with more, completion is late."""
        return abs(self.expired / self.requests - case.expired_share) <= case.expired_share / 4


def run_java(source: str, arguments: Sequence[str], options: Sequence[str] = ()) -> list[list[str]]:
    """Run a source file to its end. Returns the words of each line of its stdout; none, and says so, without a JDK.

    `CalledProcessError` if it failed, with the reason on its stderr.
    """
    jdk = find_jdk()
    if jdk is None:
        print("no JDK (javac): the rows of the JVM are left out", file=sys.stderr)
        return []
    fetch()
    class_path, program = os.pathsep.join(map(str, broker_classpath())), Path(__file__).with_name(source)
    command = [str(jdk.executable), *options, "-cp", class_path, str(program), *arguments]
    answer = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return [line.split() for line in answer.stdout.splitlines()]


PURGE_THRESHOLD: Final = 1_000
REQUESTS_A_TURN: Final = 100
"""After so many requests completions and expiry get their turn, and after so many expiries the arrivals again."""


class OldRequest:
    """A request, with a flag that lets exactly one call satisfy it."""

    __slots__ = ("completes_at_ms", "delay_ms", "lock", "satisfied")

    def __init__(self, delay_ms: int, completes_at_ms: int) -> None:
        self.delay_ms = delay_ms
        self.completes_at_ms = completes_at_ms
        self.lock = threading.Lock()
        self.satisfied = threading.Lock()  # taken once and never released: a compare-and-set

    def satisfy(self) -> bool:
        """Satisfy the request. Returns True to the one call that did it."""
        return self.satisfied.acquire(blocking=False)


class _WatchList:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.requests: list[OldRequest] = []

    def add(self, request: OldRequest) -> None:
        with self.lock:
            self.requests.append(request)

    def purge(self) -> None:
        with self.lock:
            self.requests = [request for request in self.requests if not request.satisfied.locked()]


class OldPurgatory:
    """The purgatory of 0.8.2. The caller passes the time.

    Attributes:
        expired: requests that timed out.
    """

    def __init__(self, purge_threshold: int = PURGE_THRESHOLD) -> None:
        self.expired = 0
        self._purge_threshold = purge_threshold
        self._lists: dict[int, _WatchList] = {}
        self._heap: list[tuple[int, int, OldRequest]] = []
        self._heap_lock = threading.Lock()
        self._watched = 0

    def watch(self, request: OldRequest, keys: Iterable[int], now_ms: int) -> bool:
        """Satisfy a request now, or watch it on every key. Returns True if this call satisfied it."""
        if self._check(request, now_ms):
            return True
        for key in keys:
            watchers = self._lists.get(key)
            if watchers is None:
                watchers = self._lists.setdefault(key, _WatchList())
            watchers.add(request)
        if self._check(request, now_ms):
            return True
        with self._heap_lock:
            self._watched += 1
            heapq.heappush(self._heap, (now_ms + request.delay_ms, self._watched, request))
        return False

    def _check(self, request: OldRequest, now_ms: int) -> bool:
        with request.lock:
            return now_ms >= request.completes_at_ms and request.satisfy()

    def advance(self, now_ms: int, most_turns: int = REQUESTS_A_TURN) -> None:
        """Run the reaper: one turn for each request that is due and not satisfied. The rest is for the next call."""
        for _ in range(most_turns):
            request = self._poll(now_ms)
            if request is None:
                return
            with request.lock:
                self.expired += 1
            self.purge()

    def purge(self) -> None:
        """The end of a turn of the reaper: a purge of what has become too long."""
        if self.watched >= self._purge_threshold:
            for watchers in self._lists.values():
                watchers.purge()
        if self.delayed >= self._purge_threshold:
            with self._heap_lock:
                self._heap = [entry for entry in self._heap if not entry[2].satisfied.locked()]
                heapq.heapify(self._heap)

    @property
    def watched(self) -> int:
        return sum(len(watchers.requests) for watchers in self._lists.values())

    @property
    def delayed(self) -> int:
        return len(self._heap)

    def _poll(self, now_ms: int) -> OldRequest | None:
        while True:
            with self._heap_lock:
                if not self._heap or self._heap[0][0] > now_ms:
                    return None
                request = heapq.heappop(self._heap)[2]
            if request.satisfy():
                return request


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
    """`DelayedOperationPurgatory` over the timing wheel.

    `enqueue` lets a request wait, and returns None if it could complete at once; `complete` does nothing for a request
    that has timed out.
    """

    def __init__(self) -> None:
        self.now_ms = 0
        self.expired = 0
        timer = SystemTimer(SystemMonotonicClock())
        self._purgatory: DelayedOperationPurgatory[_Operation] = DelayedOperationPurgatory(timer)

    def enqueue(self, completes_at_ms: int, now_ms: int) -> _Operation | None:
        self.now_ms = now_ms
        operation = _Operation(completes_at_ms, self)
        return None if self._purgatory.try_complete_else_watch(operation, KEYS) else operation

    def complete(self, request: _Operation) -> None:
        request.force_complete()

    def advance(self, _now_ms: int) -> None:
        self._purgatory.advance_clock(0)


class OldDesign(OldPurgatory):
    """The same of the purgatory of Kafka 0.8."""

    def enqueue(self, completes_at_ms: int, now_ms: int) -> OldRequest | None:
        request = OldRequest(TIMEOUT_MS, completes_at_ms)
        return None if self.watch(request, KEYS, now_ms) else request

    def complete(self, request: OldRequest) -> None:
        request.satisfy()


Design = NewDesign | OldDesign


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
            request = design.enqueue(completes_at_ms, clock.monotonic_ms())  # once per request, as in 0.8
            if request is not None and latencies_ms[enqueued] < TIMEOUT_MS:
                heapq.heappush(completions, (completes_at_ms, enqueued, request))
            enqueued += 1
            last_seconds = time.perf_counter() - started
        while completions and completions[0][0] <= now_ms:
            design.complete(heapq.heappop(completions)[2])
        design.advance(clock.monotonic_ms())
        if last_seconds > limit_seconds:
            requests = enqueued
        if enqueued < requests and arrivals_ms[enqueued] > now_ms - start_ms + 1:
            time.sleep(0.0005)
    cpu_seconds = time.process_time() - cpu_started
    time.sleep((TIMEOUT_MS + 1) / 1000)
    design.advance(clock.monotonic_ms())
    return Run(target_per_second, enqueued / last_seconds, cpu_seconds / enqueued * 1e6, enqueued, design.expired)


class _Column:
    """One number per slot of a wheel or purgatory that grows."""

    def __init__(self) -> None:
        self.values = np.zeros(0, dtype=np.int64)

    def set(self, handles: Int64s, values: Int64s, capacity: int) -> None:
        if self.values.size < capacity:
            self.values = np.concatenate([self.values, np.zeros(capacity - self.values.size, dtype=np.int64)])
        self.values[slots_of(handles)] = values


class _Batches:
    def __init__(self, *, by_key: bool) -> None:
        self.purgatory = BatchPurgatory()
        self.expired = 0
        self._by_key = by_key
        self._turn = 0
        self._latency_over = BatchTimingWheel()
        self._of_slot = _Column()  # by key: when a request can complete; else the request of a completion

    def enqueue(self, latency_ms: Int64s, now_ms: int) -> None:
        completes_at_ms = latency_ms + now_ms
        waits = completes_at_ms > now_ms
        if not waits.all():
            completes_at_ms = completes_at_ms.compress(waits)
        keys = np.broadcast_to(np.array(KEYS), (completes_at_ms.size, len(KEYS)))
        handles = self.purgatory.watch_many(np.full(completes_at_ms.size, now_ms + TIMEOUT_MS), keys)
        if self._by_key:
            self._of_slot.set(handles, completes_at_ms, self.purgatory.capacity)
            return
        in_time = completes_at_ms < now_ms + TIMEOUT_MS
        completions = self._latency_over.schedule_many(completes_at_ms.compress(in_time))
        self._of_slot.set(completions, handles.compress(in_time), self._latency_over.capacity)

    def complete(self, now_ms: int) -> None:
        if not self._by_key:
            completions, _ = self._latency_over.advance(now_ms)
            self.purgatory.complete_many(self._of_slot.values[slots_of(completions)])
            return

        def can_complete(handles: Int64s) -> Bools:
            can: Bools = self._of_slot.values[slots_of(handles)] <= now_ms
            return can

        self._turn += 1
        self.purgatory.check_and_complete(KEYS[self._turn % len(KEYS)], can_complete)

    def advance(self, now_ms: int) -> None:
        handles, _ = self.purgatory.advance(now_ms)
        self.expired += handles.size


def run_in_batches(load: Load, target_per_second: float, limit_seconds: float, *, by_key: bool) -> Run:
    """One paced run. Arrivals stop when the time is up; the rate is then that of the requests that had arrived."""
    batches = _Batches(by_key=by_key)
    last_ms = int(load.arrival_ms[-1]) + 1
    ends = np.searchsorted(load.arrival_ms, np.arange(1, last_ms + 1)).tolist()
    cpu_started, started = time.process_time(), time.perf_counter()
    enqueued, now_ms = 0, 0
    for batch_ms, end in enumerate(ends, start=1):
        while (elapsed_ms := (time.perf_counter() - started) * 1000) < batch_ms:
            time.sleep((batch_ms - elapsed_ms) / 1000)
        now_ms = int(elapsed_ms)
        if end > enqueued:
            batches.enqueue(load.latency_ms[enqueued:end], now_ms)
        enqueued = end
        batches.complete(now_ms)
        batches.advance(now_ms)
        if elapsed_ms > limit_seconds * 1000:
            break
    seconds = time.perf_counter() - started
    cpu_seconds = time.process_time() - cpu_started
    while batches.purgatory.num_delayed:
        now_ms += 1
        batches.complete(now_ms)
        batches.advance(now_ms)
    return Run(target_per_second, enqueued / seconds, cpu_seconds / enqueued * 1e6, enqueued, batches.expired)
