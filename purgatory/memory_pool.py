"""A pool of bytes that bounds how much is taken in (KIP-72). It refuses instead of blocking.

Sources that were refused are muted, and are served in the order in which they were refused. Kafka's selector un-mutes
all sources at once when memory comes back and lets them race, so an unlucky one can lose every time. Here the source
that has waited longest is served first, and later ones cannot overtake it.
"""

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

from purgatory.errors import AlreadyMutedError, InvalidArgumentError
from purgatory.timer import MonotonicClock


@dataclass(frozen=True, eq=False, slots=True)
class Allocation:
    """Bytes that one pool handed out. Compared by identity."""

    size_bytes: int


class MemoryPool:
    """Counts the bytes in use; has no memory itself. No lock inside: use it from one thread, or under your own lock.

    A pool that is not strict (the broker's kind) hands out bytes as long as at least one is left, so that small
    requests cannot starve a large one. At most size + max − 1 bytes are then outstanding. A strict pool hands out only
    what it has.

    The pool is *depleted* from the first refusal (not from the moment the last byte is taken) until the next success or
    release. Two things differ from Kafka's pool: a second release, or one of another pool's allocation, is refused and
    changes nothing (Kafka's adds the bytes again); and the depleted time counts while it lasts, not only afterwards.
    """

    def __init__(
        self,
        size_bytes: int,
        max_allocation_bytes: int,
        clock: MonotonicClock,
        *,
        strict: bool = False,
        depleted_window_ms: int = 60_000,
    ) -> None:
        """Make a pool.

        Args:
            size_bytes: at least 1.
            max_allocation_bytes: the largest single allocation, from 1 to size_bytes.
            depleted_window_ms: how far back `depleted_percent` looks; at least 1.

        Raises:
            InvalidArgumentError: one of them is out of its range.
        """
        for name, value in (("size_bytes", size_bytes), ("depleted_window_ms", depleted_window_ms)):
            if value < 1:
                message = f"{name} is {value}; it can be 1 or more"
                raise InvalidArgumentError(message)
        if not 1 <= max_allocation_bytes <= size_bytes:
            can_be = f"it can be from 1 to the pool's size, {size_bytes}"
            message = f"max_allocation_bytes is {max_allocation_bytes}; {can_be}"
            raise InvalidArgumentError(message)
        self.size_bytes = size_bytes
        self.max_allocation_bytes = max_allocation_bytes
        self.strict = strict
        self.available_bytes = size_bytes
        self._clock = clock
        self._window_ms = depleted_window_ms
        self._made_ms = clock.monotonic_ms()
        self._outstanding: set[Allocation] = set()
        self._depleted_since_ms: int | None = None
        self._depleted_total_ms = 0
        self._depleted_spans_ms: deque[tuple[int, int]] = deque()  # (start, end) of those that end inside the window

    def try_allocate(self, size_bytes: int) -> Allocation | None:
        """Hand out bytes; None when there is not enough. Never waits.

        Raises:
            InvalidArgumentError: size_bytes is below 1 or above max_allocation_bytes.
        """
        self.check_size(size_bytes)
        if self.available_bytes < (size_bytes if self.strict else 1):
            if self._depleted_since_ms is None:
                self._depleted_since_ms = self._clock.monotonic_ms()
            return None
        allocation = Allocation(size_bytes)
        self._outstanding.add(allocation)
        self.available_bytes -= size_bytes
        self._end_depleted_span()
        return allocation

    def check_size(self, size_bytes: int) -> None:
        """Refuse a size that the pool could never hand out with `InvalidArgumentError`."""
        if not 1 <= size_bytes <= self.max_allocation_bytes:
            can_be = f"it can be from 1 to {self.max_allocation_bytes}"
            message = f"an allocation of {size_bytes} bytes is impossible; {can_be}"
            raise InvalidArgumentError(message)

    def release(self, allocation: Allocation) -> None:
        """Take bytes back.

        Raises:
            InvalidArgumentError: it was released before, or another pool handed it out. Nothing changed.
        """
        if allocation not in self._outstanding:
            message = f"{allocation!r} is not outstanding in this pool: released before, or handed out by another pool"
            raise InvalidArgumentError(message)
        self._outstanding.remove(allocation)
        self.available_bytes += allocation.size_bytes
        self._end_depleted_span()

    def _end_depleted_span(self) -> None:
        if self._depleted_since_ms is None:
            return
        now_ms = self._clock.monotonic_ms()
        self._depleted_total_ms += now_ms - self._depleted_since_ms
        self._depleted_spans_ms.append((self._depleted_since_ms, now_ms))
        self._depleted_since_ms = None
        while self._depleted_spans_ms[0][1] < now_ms - self._window_ms:
            self._depleted_spans_ms.popleft()

    @property
    def used_bytes(self) -> int:
        """Gauge MemoryPoolUsed: outstanding bytes. Can be more than the size if the pool is not strict."""
        return self.size_bytes - self.available_bytes

    @property
    def is_out_of_memory(self) -> bool:
        """True if nothing is left. A strict pool can refuse even when this is False."""
        return self.available_bytes <= 0

    @property
    def depleted_total_ms(self) -> int:
        """Gauge MemoryPoolDepletedTimeTotal: how long the pool was depleted in all."""
        running_ms = 0 if self._depleted_since_ms is None else self._clock.monotonic_ms() - self._depleted_since_ms
        return self._depleted_total_ms + running_ms

    @property
    def depleted_percent(self) -> float:
        """Gauge MemoryPoolAvgDepletedPercent: the depleted share of the window, from 0 to 100.

        For a pool that is younger than the window it is the share of the pool's life. Kafka's gauge of the same name is
        a fraction from 0 to 1.
        """
        now_ms = self._clock.monotonic_ms()
        from_ms = max(now_ms - self._window_ms, self._made_ms)
        running_ms = [] if self._depleted_since_ms is None else [(self._depleted_since_ms, now_ms)]
        spans_ms = [*self._depleted_spans_ms, *running_ms]
        depleted_ms = sum(max(0, end_ms - max(start_ms, from_ms)) for start_ms, end_ms in spans_ms)
        return 100.0 * depleted_ms / max(now_ms - from_ms, 1)


Source = TypeVar("Source", bound=Hashable)


class MemoryIntake(Generic[Source]):
    """Sources that want memory from a pool. No lock inside: use it from one thread, or under a lock of your own."""

    def __init__(self, pool: MemoryPool) -> None:
        self._pool = pool
        self._muted: dict[Source, int] = {}  # the bytes each one waits for; the one that has waited longest is first

    def try_allocate(self, source: Source, size_bytes: int) -> Allocation | None:
        """Allocate bytes for a source, or mute it: then it must not read until `unmute` names it.

        A source is muted when the pool refuses, and also while any other source is muted, even if the pool has room.

        Returns:
            The allocation; None if the source is muted now.

        Raises:
            AlreadyMutedError: the source is already muted.
            InvalidArgumentError: the size is impossible, see `MemoryPool.check_size`. The source is not muted.
        """
        if source in self._muted:
            message = f"{source!r} is muted already, and asks for memory"
            raise AlreadyMutedError(message)
        self._pool.check_size(size_bytes)
        allocation = None if self._muted else self._pool.try_allocate(size_bytes)
        if allocation is None:
            self._muted[source] = size_bytes
        return allocation

    def unmute(self) -> list[tuple[Source, Allocation]]:
        """Allocate to muted sources what they were refused before, as far as the pool allows; they may read again.

        The one that has waited longest comes first. Call it after each release.
        """
        served = []
        while self._muted:
            source = next(iter(self._muted))
            allocation = self._pool.try_allocate(self._muted[source])
            if allocation is None:
                break
            del self._muted[source]
            served.append((source, allocation))
        return served

    def forget(self, source: Source) -> bool:
        """A source went away. Returns True if it was muted."""
        return self._muted.pop(source, None) is not None

    @property
    def muted(self) -> tuple[Source, ...]:
        """The muted sources, the one that has waited longest first."""
        return tuple(self._muted)
