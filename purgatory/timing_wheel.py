"""Kafka's hierarchical timing wheel, rule by rule: no thread, no lock, no clock.

**The problem.** A timer must hold very many delayed tasks, most of which are cancelled before they are due. A heap
needs O(log n) steps to insert a task and cannot remove one from the middle cheaply. A timing wheel does both in O(1),
because it gives up the exact order of what is still far away.

**One wheel.** A wheel is a ring of n buckets. With a tick of u ms each bucket stands for u ms, so the wheel covers u ·
n ms, its *interval*, counted from its clock. A task that is due at x goes into bucket (x / u, rounded down) mod n. When
the clock has moved past a bucket, the bucket is free, and its place in the ring stands for a later time.

**Wheels on wheels.** What is due later than one interval goes to an overflow wheel. It has n buckets as well, and its
tick is the interval of the wheel below. Overflow wheels are made when they are first needed and stay. With u = 1 ms and
n = 20 the ticks of six levels are 1, 20 and 400 ms, 8 s, 160 s and 53 min; the last one covers 17.8 h.

Each bucket has an *expiration*: the beginning of the time it stands for. A bucket that receives a task is put into a
queue ordered by expiration, once, however many tasks follow. When the expiration of a coarse bucket comes, its tasks
are added again. Seen from the new clock they belong to a finer wheel, or they are due. So a task sinks from level to
level and runs in its own tick.

The clock does not tick. It jumps to the expiration of each bucket that is polled. Between two buckets nothing happens,
and an empty timer costs nothing. An outdated clock does no harm: what is added far from it goes to a high level, whose
bucket is due at once, and a few polls bring it down.

**Costs.** With m levels (m grows with the logarithm of the longest delay, to the base n):

* add: O(m), for finding the level. No task moves.
* cancel: O(1): unlink it from the doubly linked list of its bucket. The bucket stays in the queue, even when empty.
* expire: each task is added again at most m − 1 times in its life.
* the queue holds buckets, not tasks: at most n · m of them, O(log(n · m)) for each offer and poll.

**A worked example.** Ten buckets, a tick of 1 ms, clock at 0. Level 1 covers 10 ms, level 2 covers 100 ms, level 3
covers 1000 ms. `L3·2@200` is bucket 2 of level 3, whose expiration is 200. A task that is due at 222 is too late for
levels 1 and 2. On level 3 it is in bucket 222 / 100 = 2.

>>> from purgatory.walkthrough import Walkthrough
>>> walk = Walkthrough(tick_ms=1, wheel_size=10)
>>> walk.add(222)
'L3·2@200'

At 200 the bucket is polled and all three clocks move to 200. Now 222 is 22 ms away: level 2, bucket 22 mod 10 = 2.
At 220 it is 2 ms away: level 1, bucket 222 mod 10 = 2. At 222 it runs.

>>> walk.poll()
Step(polled_ms=200, clocks_ms=[200, 200, 200], fired_ms=[], moved=[(222, 'L3·2@200', 'L2·2@220')], queue_ms=[220])
>>> walk.poll()
Step(polled_ms=220, clocks_ms=[220, 220, 200], fired_ms=[], moved=[(222, 'L2·2@220', 'L1·2@222')], queue_ms=[222])
>>> walk.poll()
Step(polled_ms=222, clocks_ms=[222, 220, 200], fired_ms=[222], moved=[], queue_ms=[])

The clock of level 3 stays at 200, because 222 is still in its bucket from 200 to 299. The same with six tasks. Three of
them share a bucket on level 3, so four buckets wait in the queue:

>>> walk = Walkthrough(tick_ms=1, wheel_size=10)
>>> [walk.add(expiration_ms) for expiration_ms in (9, 88, 222, 520, 521, 522)]
['L1·9@9', 'L2·8@80', 'L3·2@200', 'L3·5@500', 'L3·5@500', 'L3·5@500']
>>> walk.queue.expirations_ms
[9, 80, 200, 500]
>>> while (step := walk.poll()) is not None:
...     print(f"at {step.polled_ms:>3}: {len(step.moved)} move, {step.fired_ms} run, {step.queue_ms} wait")
at   9: 0 move, [9] run, [80, 200, 500] wait
at  80: 1 move, [] run, [88, 200, 500] wait
at  88: 0 move, [88] run, [200, 500] wait
at 200: 1 move, [] run, [220, 500] wait
at 220: 1 move, [] run, [222, 500] wait
at 222: 0 move, [222] run, [500] wait
at 500: 3 move, [] run, [520] wait
at 520: 2 move, [520] run, [521, 522] wait
at 521: 0 move, [521] run, [522] wait
at 522: 0 move, [522] run, [] wait

520 runs straight from level 2: its expiration is the beginning of the bucket it is in. Try other times with
`python -m purgatory.walkthrough 9 88 222 520 521 522`.

**Kept as in Kafka.** Two properties are kept because the vectors of Kafka's own tests depend on them. With u > 1 a task
is due at the *beginning* of its tick, up to u − 1 ms early. And tasks of one millisecond can overtake each other: one
that waits on level 2 is added behind one that went to level 1 directly. `purgatory.timer.SystemTimer` corrects both.

**Thread rule.** Nothing here is safe for several threads, and only one thread may ever move the clock. The owner of the
wheel serialises all calls; `purgatory.timer.SystemTimer` does it with one lock. This also closes a gap that Kafka's
source documents: there, a cancel can miss an entry that another thread is moving from one list to the next.
"""

import heapq
from collections.abc import Callable, Iterator
from typing import Protocol

from purgatory.errors import InvalidArgumentError

NOT_QUEUED_MS = -1  # the expiration of a bucket that is in no queue


class TaskHolder(Protocol):
    """The timer that holds a task."""

    def cancel(self, task: "TimerTask") -> None:
        """Take the task out. Does nothing if it is not waiting."""


class TimerTask:
    """Something that runs when a delay has passed. Subclasses override `run`.

    A task waits in at most one timer. Adding it again while it waits moves it. Adding it after `cancel` works.

    Attributes:
        delay_ms: counted from the moment it is added; zero or a negative number means at once.
        entry: where it waits; None before it is added and after `cancel`.
        holder: the timer it was last added to.
    """

    __slots__ = ("delay_ms", "entry", "holder")

    def __init__(self, delay_ms: int) -> None:
        self.delay_ms = delay_ms
        self.entry: TimerTaskEntry | None = None
        self.holder: TaskHolder | None = None

    def run(self) -> None:
        """The work. Called once, after the delay, by the thread that advances the timer."""
        raise NotImplementedError

    def cancel(self) -> None:
        """Take the task out of its timer. A second call changes nothing. A run that has begun is not stopped."""
        if self.holder is not None:
            self.holder.cancel(self)

    @property
    def is_cancelled(self) -> bool:
        """True for a task that was cancelled or never added; False for one that has run (as in Kafka)."""
        return self.entry is None


class TimerTaskEntry:
    """One stay of a task in a wheel, or in none (`bucket` is None). Making it takes the task out of the entry before.

    `submission` is its place in the order of submission.
    """

    __slots__ = ("bucket", "expiration_ms", "next", "previous", "submission", "task")

    def __init__(self, task: TimerTask, expiration_ms: int, submission: int = 0) -> None:
        if task.entry is not None:
            task.entry.remove()
        task.entry = self
        self.task = task
        self.expiration_ms = expiration_ms
        self.submission = submission
        self.bucket: TimerTaskList | None = None
        self.next: TimerTaskEntry | None = None
        self.previous: TimerTaskEntry | None = None

    @property
    def is_cancelled(self) -> bool:
        """True once the task has left this entry."""
        return self.task.entry is not self

    def remove(self) -> None:
        """Leave the bucket; does nothing if it is in none."""
        if self.bucket is not None:
            self.bucket.remove(self)


class TaskCounter:
    """The number of entries in all buckets that share the counter."""

    def __init__(self) -> None:
        self.value = 0


class TimerTaskList:
    """A bucket (Kafka's `TimerTaskList`): a doubly linked list of entries in the order in which they were added."""

    def __init__(self, counter: TaskCounter) -> None:
        self._counter = counter
        self._first: TimerTaskEntry | None = None
        self._last: TimerTaskEntry | None = None
        self.expiration_ms = NOT_QUEUED_MS

    def set_expiration(self, expiration_ms: int) -> bool:
        """Set when the bucket is due. Returns True if it must be put into the queue for that."""
        changed = self.expiration_ms != expiration_ms
        self.expiration_ms = expiration_ms
        return changed

    def add(self, entry: TimerTaskEntry) -> None:
        """Append an entry. If it is in another bucket, it leaves that one first."""
        entry.remove()
        entry.bucket, entry.previous = self, self._last
        if self._last is None:
            self._first = entry
        else:
            self._last.next = entry
        self._last = entry
        self._counter.value += 1

    def remove(self, entry: TimerTaskEntry) -> None:
        """Unlink an entry. Does nothing if it is in another bucket or in none."""
        if entry.bucket is not self:
            return
        if entry.previous is None:
            self._first = entry.next
        else:
            entry.previous.next = entry.next
        if entry.next is None:
            self._last = entry.previous
        else:
            entry.next.previous = entry.previous
        entry.bucket = entry.next = entry.previous = None
        self._counter.value -= 1

    def flush(self, take: Callable[[TimerTaskEntry], object]) -> None:
        """Empty the bucket from the front and pass every entry to `take`. Afterwards the bucket is in no queue."""
        while self._first is not None:
            entry = self._first
            self.remove(entry)
            take(entry)
        self.expiration_ms = NOT_QUEUED_MS

    def __iter__(self) -> Iterator[TimerTaskEntry]:
        entry = self._first
        while entry is not None:
            following = entry.next  # read before the yield: the visitor may remove the entry
            if not entry.is_cancelled:
                yield entry
            entry = following


class BucketQueue:
    """Buckets in the order of their expirations (Kafka's `DelayQueue`). Equal ones come out in the order of offering.

    A bucket is in it at most once: its expiration changes only after it was polled and emptied. `offers` counts how
    often one was offered.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, TimerTaskList]] = []
        self.offers = 0

    def offer(self, bucket: TimerTaskList) -> None:
        """Put a bucket in: O(log of the queue). Its expiration must not change until it is polled."""
        heapq.heappush(self._heap, (bucket.expiration_ms, self.offers, bucket))
        self.offers += 1

    def poll(self, now_ms: int) -> TimerTaskList | None:
        """Take the first bucket, which may be empty, if its expiration is at or before now; else None."""
        if not self._heap or self._heap[0][0] > now_ms:
            return None
        return heapq.heappop(self._heap)[2]

    @property
    def first_expiration_ms(self) -> int | None:
        """Expiration of the first bucket; None when the queue is empty."""
        return self._heap[0][0] if self._heap else None

    @property
    def expirations_ms(self) -> list[int]:
        """The expirations of all buckets in the queue, ascending."""
        return sorted(item[0] for item in self._heap)


class TimingWheel:
    """One level of the hierarchy. The next coarser level is made when something needs it, and stays.

    See the module's docstring for the algorithm and a worked example.

    Args:
        tick_ms: the span of one bucket, at least 1.
        wheel_size: the number of buckets, at least 2.
        start_ms: where the clock stands, at least 0.
        counter: counts the entries of all levels; shared by them.
        queue: holds the buckets of all levels that have something in them; shared by them.
        level: 1 for the finest.

    Attributes:
        interval_ms: the span of the whole wheel, tick_ms · wheel_size.
        clock_ms: the wheel's clock, rounded down to a multiple of its tick.
        overflow: the next coarser wheel; None until it is needed.
        buckets: number b holds the ticks t with t mod wheel_size = b.

    Raises:
        InvalidArgumentError: tick_ms, wheel_size or start_ms is too small.
    """

    def __init__(
        self, tick_ms: int, wheel_size: int, start_ms: int, counter: TaskCounter, queue: BucketQueue, level: int = 1
    ) -> None:
        for name, value, least in (("tick_ms", tick_ms, 1), ("wheel_size", wheel_size, 2), ("start_ms", start_ms, 0)):
            if value < least:
                message = f"{name} is {value}; it can be {least} or more"
                raise InvalidArgumentError(message)
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
        """Put an entry into the bucket it belongs to, on the finest level that reaches its expiration.

        Returns False for one that was not taken: cancelled, or due (before clock + tick), and then the caller runs it.
        """
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
        shared = self._counter, self._queue
        self.overflow = TimingWheel(self.interval_ms, self.wheel_size, self.clock_ms, *shared, self.level + 1)
        return self.overflow

    def advance_clock(self, now_ms: int) -> None:
        """Move the clock of every level to the tick that contains now. It never goes back.

        No bucket is touched: the caller empties the buckets that are due and adds their entries again.
        """
        if now_ms >= self.clock_ms + self.tick_ms:
            self.clock_ms = now_ms - now_ms % self.tick_ms
            if self.overflow is not None:
                self.overflow.advance_clock(self.clock_ms)

    @property
    def levels(self) -> list["TimingWheel"]:
        """This wheel and all coarser ones that exist, finest first."""
        return [self, *(self.overflow.levels if self.overflow is not None else [])]
