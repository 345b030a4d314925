"""Tasks, their entries, and the bucket they wait in: a doubly linked list (Kafka's `TimerTaskList`).

No lock: the owner of the wheel serialises all calls, as `purgatory.timer.SystemTimer` does. This also closes a gap that
Kafka's source documents: there, a cancel can miss an entry that another thread is moving from one list to the next.
"""

from collections.abc import Callable, Iterator
from typing import Protocol

NOT_QUEUED_MS = -1
"""The expiration of a bucket that is in no queue."""


class TaskHolder(Protocol):
    """The timer that holds a task. The task tells it about a cancel."""

    def cancel(self, task: "TimerTask") -> None:
        """Take the task out. Does nothing if it is not waiting."""
        ...


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
    """One stay of a task in a wheel. Making an entry takes the task out of the entry it had before.

    Attributes:
        task: what waits.
        expiration_ms: when it is due.
        submission: its place in the order of submission.
        bucket: where it waits; None when it is in no bucket.
        next: the entry behind it in the bucket.
        previous: the entry in front of it in the bucket.
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
    """A bucket: entries in the order in which they were added. Adding and removing one takes O(1).

    Attributes:
        expiration_ms: when the bucket is due; NOT_QUEUED_MS when it is in no queue.
    """

    def __init__(self, counter: TaskCounter) -> None:
        self._counter = counter
        self._first: TimerTaskEntry | None = None
        self._last: TimerTaskEntry | None = None
        self.expiration_ms = NOT_QUEUED_MS

    def set_expiration(self, expiration_ms: int) -> bool:
        """Set when the bucket is due. Returns True if that is a change, and the bucket must be put into the queue."""
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

    def get_delay_ms(self, now_ms: int) -> int:
        """The time until the bucket is due, at least 0."""
        return max(self.expiration_ms - now_ms, 0)

    def __iter__(self) -> Iterator[TimerTaskEntry]:
        entry = self._first
        while entry is not None:
            following = entry.next  # read before the yield: the visitor may remove the entry
            if not entry.is_cancelled:
                yield entry
            entry = following
