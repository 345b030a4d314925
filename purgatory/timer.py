"""The timer: a timing wheel, a lock around it, and the order in which due tasks run.

Three things differ from Kafka's `SystemTimer`, on purpose:

- No task runs early. Expirations are rounded up to the tick before they enter the wheel. (Kafka rounds down: with a
  tick of 5 ms a task that is due at 99 runs at 95.)
- Tasks of one millisecond run first in, first out: due tasks run in the order of (expiration, submission).
- The thread that calls `advance_clock` runs the tasks, after it has released the lock. There is no executor, whose
  queue could make tasks late without a trace. A task with a delay of zero or less runs at the next
  `advance_clock`, never inside `add`.

The structures read no clock and have no thread. `SystemMonotonicClock` gives the time, and a `Reaper` is the thread
that advances a timer until it is closed.
"""

import threading
import time
from collections.abc import Callable
from typing import Protocol, Self

from purgatory.timing_wheel import BucketQueue, TaskCounter, TimerTask, TimerTaskEntry, TimingWheel


class MonotonicClock(Protocol):
    """A clock of whole milliseconds, rounded down, never negative, that never goes back and has no time of day."""

    def monotonic_ms(self) -> int:
        """Milliseconds from a fixed but unspecified instant until now."""


class SystemMonotonicClock:
    """The operating system's monotonic clock."""

    def monotonic_ms(self) -> int:
        """Milliseconds from a fixed but unspecified instant of this machine until now."""
        return time.monotonic_ns() // 1_000_000


class _Nothing(TimerTask):
    def run(self) -> None:
        pass


class SystemTimer:
    """Runs tasks when their delay has passed: Kafka's wheel with a lock.

    Any thread may call any method; only one at a time may call `advance_clock`.
    """

    def __init__(self, clock: MonotonicClock, tick_ms: int = 1, wheel_size: int = 20) -> None:
        """Make an empty timer.

        Args:
            tick_ms: of the finest wheel, at least 1. A larger tick makes tasks up to tick_ms − 1 late.
            wheel_size: buckets per level, at least 2.

        Raises:
            InvalidArgumentError: tick_ms or wheel_size is too small.
        """
        self._clock = clock
        self._tick_ms = tick_ms
        self._counter = TaskCounter()
        self._queue = BucketQueue()
        self._wheel = TimingWheel(tick_ms, wheel_size, clock.monotonic_ms(), self._counter, self._queue)
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._due: list[TimerTaskEntry] = []
        self._submissions = 0

    def add(self, task: TimerTask) -> None:
        """Start the task's delay now. A task that is already waiting is moved."""
        with self._lock:
            expiration_ms = max(self._clock.monotonic_ms() + task.delay_ms, 0)
            expiration_ms += -expiration_ms % self._tick_ms
            entry = TimerTaskEntry(task, expiration_ms, self._submissions)
            task.holder = self
            self._submissions += 1
            first_ms = self._queue.first_expiration_ms
            if not self._wheel.add(entry):
                self._due.append(entry)
                self._changed.notify_all()
            elif self._queue.first_expiration_ms != first_ms:
                self._changed.notify_all()

    def cancel(self, task: TimerTask) -> None:
        """Take a task out. Does nothing if it is not waiting."""
        if task.entry is None:  # common: a task is cancelled when it completes, and again when it is forgotten
            return
        with self._lock:
            if task.entry is not None:
                task.entry.remove()
                task.entry = None

    def advance_clock(self, timeout_ms: int) -> bool:
        """Run what is due; if nothing is, wait up to timeout_ms of real time for it.

        Returns False if nothing became due.

        Raises:
            ExceptionGroup: what the tasks raised. All due tasks have run.
        """
        with self._changed:
            if not self._wait_until_due(timeout_ms):
                return False
            due = self._collect_due()
        failures: list[Exception] = []
        for entry in due:
            if entry.is_cancelled:
                continue
            try:
                entry.task.run()
            except Exception as failure:  # the failure of one task must not stop the others
                failures.append(failure)
        if failures:
            msg = f"{len(failures)} of {len(due)} due tasks failed"
            raise ExceptionGroup(msg, failures)
        return True

    def _wait_until_due(self, timeout_ms: int) -> bool:
        now_ms = self._clock.monotonic_ms()
        give_up_ms = now_ms + timeout_ms
        while not self._due:
            first_ms = self._queue.first_expiration_ms
            if first_ms is not None and first_ms <= now_ms:
                return True
            if now_ms >= give_up_ms:
                return False
            wake_ms = give_up_ms if first_ms is None else min(first_ms, give_up_ms)
            self._changed.wait((wake_ms - now_ms) / 1000)
            now_ms = self._clock.monotonic_ms()
        return True

    def _collect_due(self) -> list[TimerTaskEntry]:
        def add_again(entry: TimerTaskEntry) -> None:
            if not self._wheel.add(entry) and not entry.is_cancelled:
                self._due.append(entry)

        now_ms = self._clock.monotonic_ms()
        while (bucket := self._queue.poll(now_ms)) is not None:
            self._wheel.advance_clock(bucket.expiration_ms)
            bucket.flush(add_again)
        due, self._due = self._due, []
        due.sort(key=lambda entry: (entry.expiration_ms, entry.submission))
        return due

    def wake(self) -> None:
        """Make an `advance_clock` that is waiting return soon."""
        self.add(_Nothing(delay_ms=0))

    def size(self) -> int:
        """The number of tasks that wait in buckets, or are due and not yet taken by `advance_clock`."""
        with self._lock:
            return self._counter.value + sum(not entry.is_cancelled for entry in self._due)


_POLL_MS = 200


class Advanced(Protocol):
    """What a reaper drives: a timer or a purgatory. See `SystemTimer`."""

    def advance_clock(self, timeout_ms: int) -> bool:
        """Run what is due; if nothing is, wait up to timeout_ms for it."""

    def wake(self) -> None:
        """Make an `advance_clock` that is waiting return soon."""


class Reaper:
    """Calls `advance_clock(200)` in a loop on a thread of its own, from `start` to `close`."""

    def __init__(self, advanced: Advanced, name: str, on_error: Callable[[Exception], None]) -> None:
        """Make a reaper that is not running yet.

        Args:
            advanced: what to drive. No other thread may advance it while the reaper runs.
            on_error: gets what tasks raised. The loop goes on.
        """
        self._advanced = advanced
        self._on_error = on_error
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._loop, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """Stop the thread and wait for its end. Waiting tasks stay where they are. A second call does nothing."""
        self._closing.set()
        self._advanced.wake()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()

    def _loop(self) -> None:
        while not self._closing.is_set():
            try:
                self._advanced.advance_clock(_POLL_MS)
            except Exception as failure:  # a task that fails must not stop the others
                self._on_error(failure)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
