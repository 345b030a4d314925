"""Kafka's hierarchical timing wheel, rule by rule: no thread, no lock, no clock.

A wheel of n buckets and tick u covers u · n ms from its clock. What is due later goes to its overflow wheel, whose tick
is that interval and which has n buckets again. Every bucket that holds something is once in a queue, ordered by
the beginning of its time; when that comes, its entries are added again and so sink to a finer wheel or are due.

    tick 1, 10 buckets, clock 0:   9 -> level 1, bucket 9      88 -> level 2, bucket 8 (80 to 89)
                                   222 -> level 3, bucket 2 (200 to 299)

Kept as Kafka has it, because the vectors of its own tests name the buckets: with u > 1 an entry is due at the
*beginning* of its tick, up to u − 1 ms early, and entries of one millisecond may overtake one another.
`purgatory.timer.SystemTimer` mends both.
"""

import heapq

from purgatory.errors import InvalidTimeError
from purgatory.timer_task_list import TaskCounter, TimerTaskEntry, TimerTaskList


class BucketQueue:
    """Buckets by expiration (Kafka's `DelayQueue`); of equal ones the first offered comes first."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, TimerTaskList]] = []
        self._offers = 0

    def offer(self, bucket: TimerTaskList) -> None:
        """Put a bucket in. Its expiration must not change until it is polled."""
        heapq.heappush(self._heap, (bucket.expiration_ms, self._offers, bucket))
        self._offers += 1

    def poll(self, now_ms: int) -> TimerTaskList | None:
        """Take the first bucket that is due at now (inclusive), if any. It may be empty: its tasks were cancelled."""
        if not self._heap or self._heap[0][0] > now_ms:
            return None
        return heapq.heappop(self._heap)[2]

    @property
    def first_expiration_ms(self) -> int | None:
        """When the first bucket is due; None when no bucket waits."""
        return self._heap[0][0] if self._heap else None

    @property
    def expirations_ms(self) -> list[int]:
        """All expirations, ascending."""
        return sorted(item[0] for item in self._heap)

    @property
    def offers(self) -> int:
        """How many buckets were ever offered."""
        return self._offers


class TimingWheel:
    """One level; the next coarser one is made when something needs it and stays.

    Attributes:
        tick_ms: span of one bucket.
        wheel_size: number of buckets.
        interval_ms: span of the wheel, tick_ms · wheel_size.
        level: 1 for the finest.
        clock_ms: the wheel's clock, a multiple of its tick.
        overflow: the next coarser wheel, if there is one.
    """

    def __init__(
        self,
        tick_ms: int,
        wheel_size: int,
        start_ms: int,
        counter: TaskCounter,
        queue: BucketQueue,
        level: int = 1,
    ) -> None:
        for name, value, least in (("tick_ms", tick_ms, 1), ("wheel_size", wheel_size, 2), ("start_ms", start_ms, 0)):
            if value < least:
                raise InvalidTimeError(name=name, value=value, reason=f"be at least {least}")
        self.tick_ms = tick_ms
        self.wheel_size = wheel_size
        self.interval_ms = tick_ms * wheel_size
        self.level = level
        self.clock_ms = start_ms - start_ms % tick_ms
        self.overflow: TimingWheel | None = None
        self._counter = counter
        self._queue = queue
        self.buckets = [TimerTaskList(counter) for _ in range(wheel_size)]

    def add(self, entry: TimerTaskEntry) -> bool:
        """Put an entry into its bucket; False when it is cancelled, or due: expiration < clock + tick."""
        expiration_ms = entry.expiration_ms
        if entry.is_cancelled or expiration_ms < self.clock_ms + self.tick_ms:
            return False
        wheel = self
        while expiration_ms >= wheel.clock_ms + wheel.interval_ms:
            wheel = wheel.overflow or wheel._make_overflow()
        tick = expiration_ms // wheel.tick_ms
        bucket = wheel.buckets[tick % wheel.wheel_size]
        bucket.add(entry)
        if bucket.set_expiration(tick * wheel.tick_ms):
            self._queue.offer(bucket)
        return True

    def _make_overflow(self) -> "TimingWheel":
        self.overflow = TimingWheel(
            self.interval_ms, self.wheel_size, self.clock_ms, self._counter, self._queue, self.level + 1
        )
        return self.overflow

    def advance_clock(self, now_ms: int) -> None:
        """Move the clock to the tick that now is in, on every level. Touches no bucket; never goes back."""
        if now_ms >= self.clock_ms + self.tick_ms:
            self.clock_ms = now_ms - now_ms % self.tick_ms
            if self.overflow is not None:
                self.overflow.advance_clock(self.clock_ms)

    @property
    def levels(self) -> list["TimingWheel"]:
        """This wheel and the coarser ones that exist, finest first."""
        return [self, *(self.overflow.levels if self.overflow is not None else [])]
