"""The published purgatory benchmark: its load, and the designs under it.

Requests arrive as a Poisson process, their latencies are log-normal, and each is watched on the same three keys. One
loop on the real clock enqueues, completes and expires: object by object, or in batches of one millisecond.
"""

import heapq
import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from pipeline.jvm.jars import broker_classpath, fetch
from pipeline.jvm.java import find_jdk
from purgatory.batch_wheel import BatchTimingWheel, slots_of
from purgatory.delayed_operation import DelayedOperation, DelayedOperationPurgatory
from purgatory.timer import SystemMonotonicClock, SystemTimer

TIMEOUT_MS: Final = 200
KEYS: Final = (17, 42, 96)
"""Three keys of a hundred, drawn once."""
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

    arrival_ms: npt.NDArray[np.float64]  # since the start; all 0 in a load that is not paced
    latency_ms: Int64s  # whole milliseconds; the fraction is carried over to the next request


def draw_load(case: Case, requests: int, rate_per_second: float) -> Load:
    """Draw the requests of one run. With an infinite rate the load is not paced."""
    random = np.random.default_rng(1)
    exact_ms = random.lognormal(math.log(case.median_ms), case.sigma, requests)
    latency_ms = np.diff(np.floor(np.cumsum(exact_ms)), prepend=0.0).astype(np.int64)
    return Load(np.cumsum(random.exponential(1000.0 / rate_per_second, requests)), latency_ms)


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
    """Run a source file to its end. Returns the words of each line of its stdout; none, and says so, without a JDK."""
    jdk = find_jdk()
    if jdk is None:
        print("no JDK (javac): the rows of the JVM are left out", file=sys.stderr)
        return []
    fetch()
    class_path, program = os.pathsep.join(map(str, broker_classpath())), Path(__file__).with_name(source)
    command = [str(jdk.executable), *options, "-cp", class_path, str(program), *arguments]
    answer = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return [line.split() for line in answer.stdout.splitlines()]


_PURGE_THRESHOLD: Final = 1_000
"""The 0.8.2 design looks through its watch lists after that many requests."""
_PURGE_SLACK: Final = 1 << 16
"""Watch lists in batches are purged when they have that many entries more than twice what was kept last."""
REQUESTS_A_TURN: Final = 100
"""After that many requests completions and expiry get their turn, and after that many expiries the arrivals again."""


class OldRequest:
    """A request, with a flag that lets exactly one call satisfy it."""

    __slots__ = ("completes_at_ms", "lock", "satisfied")

    def __init__(self, completes_at_ms: int) -> None:
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


class OldDesign:
    """The request purgatory of Kafka 0.8: watch lists and one heap of all requests. The caller passes the time.

    A satisfied request stays in the heap and in the lists of all its keys until it is found there, or until a purge.
    The rule is that of 0.8.2, tested after each request that expired: if the lists have 1 000 entries or more, scan
    them; if the heap has 1 000 or more, scan it. Re-built from a description of the rule, with locks where Kafka had
    `synchronized`; scanning the heap costs one rebuild here, and was quadratic in Kafka.

    Attributes:
        expired: requests that timed out.
    """

    def __init__(self) -> None:
        self.expired = 0
        self._lists: dict[int, _WatchList] = {}
        self._heap: list[tuple[int, int, OldRequest]] = []
        self._heap_lock = threading.Lock()
        self._watched = 0

    def enqueue(self, completes_at_ms: int, now_ms: int) -> OldRequest | None:
        """Satisfy a request now, or watch it on every key. Returns it if it waits."""
        request = OldRequest(completes_at_ms)
        if self._check(request, now_ms):
            return None
        for key in KEYS:
            watchers = self._lists.get(key)
            if watchers is None:
                watchers = self._lists.setdefault(key, _WatchList())
            watchers.add(request)
        if self._check(request, now_ms):
            return None
        with self._heap_lock:
            self._watched += 1
            heapq.heappush(self._heap, (now_ms + TIMEOUT_MS, self._watched, request))
        return request

    def complete(self, request: OldRequest) -> None:
        request.satisfy()

    def _check(self, request: OldRequest, now_ms: int) -> bool:
        with request.lock:
            return now_ms >= request.completes_at_ms and request.satisfy()

    def advance(self, now_ms: int) -> None:
        """Run the reaper: a turn for each request that is due and not satisfied. What is left is for the next call."""
        for _ in range(REQUESTS_A_TURN):
            request = self._poll(now_ms)
            if request is None:
                return
            with request.lock:
                self.expired += 1
            self._purge()

    def _purge(self) -> None:
        """The end of a turn of the reaper: a purge of what has become too long."""
        if sum(len(watchers.requests) for watchers in self._lists.values()) >= _PURGE_THRESHOLD:
            for watchers in self._lists.values():
                watchers.purge()
        if len(self._heap) >= _PURGE_THRESHOLD:
            with self._heap_lock:
                self._heap = [entry for entry in self._heap if not entry[2].satisfied.locked()]
                heapq.heapify(self._heap)

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


def run_one_by_one(design: NewDesign | OldDesign, load: Load, target_per_second: float, limit_seconds: float) -> Run:
    """One run. Arrivals stop when the time is up; the rate is then that of the requests that had arrived."""
    clock = SystemMonotonicClock()
    arrivals_ms, latencies_ms = load.arrival_ms.tolist(), load.latency_ms.tolist()
    completions: list[tuple[int, int, Any]] = []
    cpu_started, started = time.process_time(), time.perf_counter()
    enqueued, last_seconds, requests = 0, 0.0, len(latencies_ms)
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


class _WatchLists:
    """Handles of the batch wheel by key. As in Kafka, what is complete leaves the lists when they are purged."""

    def __init__(self, wheel: BatchTimingWheel) -> None:
        self._wheel = wheel
        self._chunks: dict[int, list[Int64s]] = {key: [] for key in KEYS}
        self._size = self._kept = 0

    def watch(self, handles: Int64s) -> None:
        """Append handles to the list of each key."""
        for chunks in self._chunks.values():
            chunks.append(handles)
        self._size += handles.size * len(self._chunks)
        if self._size > 2 * self._kept + _PURGE_SLACK:
            self._purge()

    def _purge(self) -> None:
        self._size = 0
        for key, chunks in self._chunks.items():
            entries = np.concatenate(chunks)
            self._chunks[key] = [entries.compress(self._wheel.are_pending(entries))]
            self._size += self._chunks[key][0].size
        self._kept = self._size


class _Batches:
    """Batches over the batch wheel, in one thread: a request waits for its time-out, and is on the lists of its keys.

    A second wheel says when the latency of a request is over, and then it is completed.
    """

    def __init__(self, requests: int) -> None:
        self.timeouts, self.expired = BatchTimingWheel(), 0
        self._lists = _WatchLists(self.timeouts)
        self._latency_over = BatchTimingWheel()
        self._request_of = np.zeros(2 * requests + 4_096, dtype=np.int64)  # by the slot of its completion

    def enqueue(self, latency_ms: Int64s, now_ms: int) -> None:
        latency_ms = latency_ms[latency_ms > 0]  # the others complete at once
        requests = self.timeouts.schedule_many(np.full(latency_ms.size, now_ms + TIMEOUT_MS))
        self._lists.watch(requests)
        in_time = latency_ms < TIMEOUT_MS
        completions = self._latency_over.schedule_many(now_ms + latency_ms[in_time])
        self._request_of[slots_of(completions)] = requests[in_time]

    def advance(self, now_ms: int) -> None:
        completions, _ = self._latency_over.advance(now_ms)
        self.timeouts.withdraw_many(self._request_of[slots_of(completions)])
        self.expired += self.timeouts.advance(now_ms)[0].size


def run_in_batches(load: Load, target_per_second: float, limit_seconds: float) -> Run:
    """One paced run. What arrives within a millisecond is one batch; when it is late, batches are not joined."""
    batches = _Batches(load.latency_ms.size)
    last_ms = int(load.arrival_ms[-1]) + 1
    ends = np.searchsorted(load.arrival_ms, np.arange(1, last_ms + 1)).tolist()
    cpu_started, started = time.process_time(), time.perf_counter()
    enqueued, now_ms = 0, 0
    for batch_ms, end in enumerate(ends, start=1):
        while (elapsed_ms := (time.perf_counter() - started) * 1000) < batch_ms:
            time.sleep((batch_ms - elapsed_ms) / 1000)
        now_ms = int(elapsed_ms)
        batches.enqueue(load.latency_ms[enqueued:end], now_ms)
        enqueued = end
        batches.advance(now_ms)
        if elapsed_ms > limit_seconds * 1000:
            break
    seconds = time.perf_counter() - started
    cpu_seconds = time.process_time() - cpu_started
    while len(batches.timeouts):
        now_ms += 1
        batches.advance(now_ms)
    return Run(target_per_second, enqueued / seconds, cpu_seconds / enqueued * 1e6, enqueued, batches.expired)
