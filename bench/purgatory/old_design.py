"""The request purgatory of Kafka 0.8, as the benchmark's baseline: watch lists and one heap of all requests.

A satisfied request stays in the heap and in the lists of all its keys until it is found there, or until a purge. There
are two rules for a purge. They are tested once per turn of the reaper, which is after every request that expired:

    0.8.1   10 000 requests were watched since the last purge: scan the heap and all lists. The lists are array lists,
            and removing an entry moves all entries behind it.
    0.8.2   the lists have 1 000 entries or more: scan them. The heap has 1 000 or more: scan it. Linked lists.

This is re-built from a description of the rules, with locks where Kafka had `synchronized`. Scanning the heap costs one
rebuild here; in Kafka it was quadratic.
"""

import heapq
import threading
from collections.abc import Iterable

PURGE_INTERVAL = 10_000
PURGE_THRESHOLD = 1_000


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

    def purge_one_by_one(self) -> None:
        with self.lock:
            index = 0
            while index < len(self.requests):
                if self.requests[index].satisfied.locked():
                    del self.requests[index]
                else:
                    index += 1

    def purge(self) -> None:
        with self.lock:
            self.requests = [request for request in self.requests if not request.satisfied.locked()]


class OldPurgatory:
    """The purgatory of 0.8.1 or 0.8.2. The caller passes the time.

    Attributes:
        expired: requests that timed out.
    """

    def __init__(self, version: str, purge_threshold: int = PURGE_THRESHOLD) -> None:
        self.expired = 0
        self._purge_threshold = purge_threshold
        self._array_lists = version == "0.8.1"
        self._lists: dict[int, _WatchList] = {}
        self._heap: list[tuple[int, int, OldRequest]] = []
        self._heap_lock = threading.Lock()
        self._watched = 0
        self._watched_at_purge = 0

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

    def advance(self, now_ms: int, most_turns: int) -> None:
        """Run the reaper: one turn for each request that is due and not satisfied. The rest is for the next call."""
        for _ in range(most_turns):
            request = self._poll(now_ms)
            if request is None:
                return
            with request.lock:
                self.expired += 1
            self.purge()

    def purge(self) -> None:
        """The end of a turn of the reaper: a purge, if the rule of the version demands one."""
        if self._array_lists:
            self._purge_by_interval()
        else:
            self._purge_by_threshold()

    @property
    def watched(self) -> int:
        """The entries of all lists."""
        return sum(len(watchers.requests) for watchers in self._lists.values())

    @property
    def delayed(self) -> int:
        """The entries of the heap, satisfied ones included."""
        return len(self._heap)

    def _poll(self, now_ms: int) -> OldRequest | None:
        while True:
            with self._heap_lock:
                if not self._heap or self._heap[0][0] > now_ms:
                    return None
                request = heapq.heappop(self._heap)[2]
            if request.satisfy():
                return request

    def _purge_by_interval(self) -> None:
        if self._watched - self._watched_at_purge < PURGE_INTERVAL:
            return
        self._watched_at_purge = self._watched
        self._purge_heap()
        for watchers in self._lists.values():
            watchers.purge_one_by_one()

    def _purge_by_threshold(self) -> None:
        if self.watched >= self._purge_threshold:
            for watchers in self._lists.values():
                watchers.purge()
        if self.delayed >= self._purge_threshold:
            self._purge_heap()

    def _purge_heap(self) -> None:
        with self._heap_lock:
            self._heap = [entry for entry in self._heap if not entry[2].satisfied.locked()]
            heapq.heapify(self._heap)
