"""The timers under test, with one interface: insert, cancel and expire batches, each in the way that suits it best."""

import heapq
from collections.abc import Callable, Iterable
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from purgatory.batch_wheel import BatchTimingWheel
from purgatory.timer import SystemTimer
from purgatory.timing_wheel import TimerTask

START_MS: Final = 1_795_000_000_000

Int64s = npt.NDArray[np.int64]


class Structure(Protocol):
    """A timer. `prepare` is not measured: it turns an array into what the timer takes."""

    def prepare(self, values: Int64s) -> Any:
        """The expirations in the form that `insert` takes."""
        ...

    def insert(self, expirations: Any) -> Any:
        """Insert a batch. Returns what `cancel` needs."""
        ...

    def cancel(self, entries: Any) -> None:
        """Cancel a batch of pending entries."""
        ...

    def expire(self, now_ms: int) -> None:
        """Hand out what is due."""
        ...

    def __len__(self) -> int:
        """The number of pending entries."""
        ...


class Batches:
    """The batch wheel, with array calls."""

    def __init__(self) -> None:
        self._wheel = BatchTimingWheel(START_MS)

    def prepare(self, values: Int64s) -> Int64s:
        """See `Structure`."""
        return values

    def insert(self, expirations: Int64s) -> Int64s:
        """See `Structure`."""
        return self._wheel.schedule_many(expirations)

    def cancel(self, entries: Iterable[int]) -> None:
        """See `Structure`."""
        self._wheel.cancel_many(np.asarray(entries))

    def expire(self, now_ms: int) -> None:
        """See `Structure`."""
        self._wheel.advance(now_ms)

    def __len__(self) -> int:
        """See `Structure`."""
        return len(self._wheel)


class Scalars(Batches):
    """The batch wheel, with one call per entry."""

    def prepare(self, values: Int64s) -> Any:
        """See `Structure`."""
        return values.tolist()

    def insert(self, expirations: Any) -> Any:
        """See `Structure`."""
        schedule = self._wheel.schedule
        return [schedule(expiration_ms) for expiration_ms in expirations]

    def cancel(self, entries: Iterable[int]) -> None:
        """See `Structure`."""
        cancel = self._wheel.cancel
        for handle in entries:
            cancel(handle)


class _Task(TimerTask):
    __slots__ = ()

    def run(self) -> None:
        pass


class Objects:
    """`SystemTimer` over Kafka's wheel, with a task object per entry."""

    def __init__(self) -> None:
        self.now_ms = START_MS
        self._timer = SystemTimer(self)

    def monotonic_ms(self) -> int:
        """The timer's clock. `expire` sets it."""
        return self.now_ms

    def prepare(self, values: Int64s) -> list[int]:
        """See `Structure`."""
        delays: list[int] = (values - self.now_ms).tolist()
        return delays

    def insert(self, expirations: list[int]) -> list[TimerTask]:
        """See `Structure`."""
        tasks: list[TimerTask] = [_Task(delay_ms) for delay_ms in expirations]
        for task in tasks:
            self._timer.add(task)
        return tasks

    def cancel(self, entries: list[TimerTask]) -> None:
        """See `Structure`."""
        for task in entries:
            task.cancel()

    def expire(self, now_ms: int) -> None:
        """See `Structure`."""
        self.now_ms = now_ms
        while self._timer.advance_clock(0):
            pass

    def __len__(self) -> int:
        """See `Structure`."""
        return self._timer.size()


class Heap:
    """heapq of (expiration, submission), and a dictionary of the pending submissions. Cancelling removes one there."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int]] = []
        self._pending: dict[int, None] = {}
        self._submissions = 0

    def prepare(self, values: Int64s) -> list[int]:
        """See `Structure`."""
        expirations: list[int] = values.tolist()
        return expirations

    def insert(self, expirations: list[int]) -> list[int]:
        """See `Structure`."""
        first = self._submissions
        for submission, expiration_ms in enumerate(expirations, start=first):
            self._pending[submission] = None
            heapq.heappush(self._heap, (expiration_ms, submission))
        self._submissions += len(expirations)
        return list(range(first, self._submissions))

    def cancel(self, entries: list[int]) -> None:
        """See `Structure`."""
        for submission in entries:
            del self._pending[submission]

    def expire(self, now_ms: int) -> None:
        """See `Structure`."""
        while self._heap and self._heap[0][0] <= now_ms:
            self._pending.pop(heapq.heappop(self._heap)[1], None)

    def __len__(self) -> int:
        """See `Structure`."""
        return len(self._pending)


STRUCTURES: Final[dict[str, Callable[[], Structure]]] = {
    "batch wheel": Batches,
    "batch wheel, scalar calls": Scalars,
    "wheel of objects": Objects,
    "heapq": Heap,
}
