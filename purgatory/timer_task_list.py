"""Tasks, their entries, and the bucket they wait in: a doubly linked list with a root (Kafka's `TimerTaskList`).

No lock: whoever owns the wheel serialises all calls (`purgatory.timer.SystemTimer` does). That closes Kafka's
documented hole of an entry in flight between two lists that a concurrent cancel does not see.
"""

from collections.abc import Callable, Iterator
from typing import Protocol

NOT_QUEUED_MS = -1


class TaskHolder(Protocol):
    """What a task tells that it is cancelled: the timer that holds it."""

    def cancel(self, task: "TimerTask") -> None:
        """Take the task out; no-op when it is not waiting."""
        ...


class TimerTask:
    """Something to run once a delay has passed. Subclasses override `run`.

    A task waits in at most one timer. Adding it again while it waits moves it; adding it after `cancel` works.

    Attributes:
        delay_ms: counted from the moment it is added; zero or negative means at once.
        entry: where it waits; None before it is added and after `cancel`.
        holder: the timer it was last added to.
    """

    __slots__ = ("delay_ms", "entry", "holder")

    def __init__(self, delay_ms: int) -> None:
        self.delay_ms = delay_ms
        self.entry: TimerTaskEntry | None = None
        self.holder: TaskHolder | None = None

    def run(self) -> None:
        """Called once, after the delay, by the thread that advances the timer."""
        raise NotImplementedError

    def cancel(self) -> None:
        """Take the task out of its timer. Repeating it changes nothing; a run that has begun is not stopped."""
        if self.holder is not None:
            self.holder.cancel(self)

    @property
    def is_cancelled(self) -> bool:
        """No entry: cancelled, or never added. A task that has fired is not cancelled (Kafka's meaning)."""
        return self.entry is None


class TimerTaskEntry:
    """One stay of a task in a wheel. Making it takes the task out of where it waited before."""

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
        """The task has left this entry."""
        return self.task.entry is not self

    def remove(self) -> None:
        """Leave the bucket, if in one."""
        if self.bucket is not None:
            self.bucket.remove(self)


class TaskCounter:
    """How many entries wait in the buckets that share it."""

    def __init__(self) -> None:
        self.value = 0


class TimerTaskList:
    """A bucket: entries in the order they were put in.

    Attributes:
        expiration_ms: when the bucket is due; NOT_QUEUED_MS when it is in no queue.
    """

    def __init__(self, counter: TaskCounter) -> None:
        self._counter = counter
        self._first: TimerTaskEntry | None = None
        self._last: TimerTaskEntry | None = None
        self.expiration_ms = NOT_QUEUED_MS

    def set_expiration(self, expiration_ms: int) -> bool:
        """Set when the bucket is due; True when that changed."""
        changed = self.expiration_ms != expiration_ms
        self.expiration_ms = expiration_ms
        return changed

    def add(self, entry: TimerTaskEntry) -> None:
        """Append an entry, out of any other bucket."""
        entry.remove()
        entry.bucket, entry.previous = self, self._last
        if self._last is None:
            self._first = entry
        else:
            self._last.next = entry
        self._last = entry
        self._counter.value += 1

    def remove(self, entry: TimerTaskEntry) -> None:
        """Unlink an entry; no-op when it is in another bucket or in none."""
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
        """Empty the bucket from the front, handing every entry over; afterwards it is in no queue."""
        while self._first is not None:
            entry = self._first
            self.remove(entry)
            take(entry)
        self.expiration_ms = NOT_QUEUED_MS

    def get_delay_ms(self, now_ms: int) -> int:
        """Time until the bucket is due, not below zero."""
        return max(self.expiration_ms - now_ms, 0)

    def __iter__(self) -> Iterator[TimerTaskEntry]:
        entry = self._first
        while entry is not None:
            following = entry.next  # read first: the visitor may remove the entry
            if not entry.is_cancelled:
                yield entry
            entry = following
