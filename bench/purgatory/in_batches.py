"""The published benchmark in batches of one millisecond, on the batch purgatory: one thread, the real clock.

The requests that arrive within a millisecond are one batch. When the run is late, batches are not joined to larger
ones. Completion is as in the published benchmark: a second queue, here a second wheel, says when the latency of a
request is over, and then the request is completed. `by_key` works without that queue: in each millisecond there is an
event on one of the three keys in turn, and every request that is watched on it is checked.
"""

import time

import numpy as np

from bench.purgatory.load import KEYS, TIMEOUT_MS, Int64s, Load, Run
from purgatory.batch_purgatory import BatchPurgatory, Bools
from purgatory.batch_wheel import BatchTimingWheel, slots_of


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
        self._completes_at_ms = _Column()
        self._turn = 0
        self._latency_over = BatchTimingWheel()
        self._request = _Column()

    def enqueue(self, latency_ms: Int64s, now_ms: int) -> None:
        completes_at_ms = latency_ms + now_ms
        waits = completes_at_ms > now_ms
        if not waits.all():
            completes_at_ms = completes_at_ms.compress(waits)
        keys = np.broadcast_to(np.array(KEYS), (completes_at_ms.size, len(KEYS)))
        handles = self.purgatory.watch_many(np.full(completes_at_ms.size, now_ms + TIMEOUT_MS), keys)
        if self._by_key:
            self._completes_at_ms.set(handles, completes_at_ms, self.purgatory.capacity)
            return
        in_time = completes_at_ms < now_ms + TIMEOUT_MS
        completions = self._latency_over.schedule_many(completes_at_ms.compress(in_time))
        self._request.set(completions, handles.compress(in_time), self._latency_over.capacity)

    def complete(self, now_ms: int) -> None:
        if not self._by_key:
            completions, _ = self._latency_over.advance(now_ms)
            self.purgatory.complete_many(self._request.values[slots_of(completions)])
            return

        def can_complete(handles: Int64s) -> Bools:
            can: Bools = self._completes_at_ms.values[slots_of(handles)] <= now_ms
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
