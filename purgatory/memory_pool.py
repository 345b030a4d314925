"""Memory-bounded intake (KIP-72): a pool of bytes that refuses instead of blocking."""

from collections import deque
from dataclasses import dataclass

from purgatory.errors import InvalidSizeError, NotAllocatedError
from purgatory.monotonic_clock import MonotonicClock

_LOW_MEMORY_FRACTION = 0.1


@dataclass(frozen=True, eq=False, slots=True)
class Allocation:
    """Bytes handed out by one pool; compared by identity.

    Attributes:
        size_bytes: how many.
    """

    size_bytes: int


class MemoryPool:
    """Counts bytes in use; holds no memory itself. No lock: one thread, or the caller's lock.

    A non-strict pool (the broker's) hands out whenever anything is left, so that small requests never starve a large
    one: outstanding bytes stay at or below size + max − 1. A strict pool hands out only what it has.

    A dry spell begins with the first refusal (not when the last byte goes) and ends with the next success or release.
    Unlike Kafka's pool, a double or foreign release is refused and changes nothing (Kafka's adds the bytes once
    more), and a dry spell counts while it lasts, not only once it is over.
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
            size_bytes: more than 0.
            max_allocation_bytes: the largest single allocation; more than 0, at most size_bytes.
            clock: for the dry spells.
            strict: hand out only what is there.
            depleted_window_ms: span that `depleted_percent` looks back over; more than 0.

        Raises:
            InvalidSizeError: one of them is out of range.
        """
        for name, value in (("size_bytes", size_bytes), ("depleted_window_ms", depleted_window_ms)):
            if value < 1:
                raise InvalidSizeError(name=name, value=value, reason="be more than 0")
        if not 1 <= max_allocation_bytes <= size_bytes:
            reason = f"be from 1 to the pool's size of {size_bytes} bytes"
            raise InvalidSizeError(name="max_allocation_bytes", value=max_allocation_bytes, reason=reason)
        self.size_bytes = size_bytes
        self.max_allocation_bytes = max_allocation_bytes
        self.strict = strict
        self.available_bytes = size_bytes
        self._clock = clock
        self._window_ms = depleted_window_ms
        self._made_ms = clock.monotonic_ms()
        self._outstanding: set[Allocation] = set()
        self._dry_since_ms: int | None = None
        self._dry_total_ms = 0
        self._dry_spells_ms: deque[tuple[int, int]] = deque()  # (start, end) of those that end inside the window

    def try_allocate(self, size_bytes: int) -> Allocation | None:
        """Hand out bytes, or None when there is not enough; never waits.

        Raises:
            InvalidSizeError: size_bytes is below 1 or above max_allocation_bytes.
        """
        self.check_size(size_bytes)
        if self.available_bytes < (size_bytes if self.strict else 1):
            if self._dry_since_ms is None:
                self._dry_since_ms = self._clock.monotonic_ms()
            return None
        allocation = Allocation(size_bytes)
        self._outstanding.add(allocation)
        self.available_bytes -= size_bytes
        self._end_dry_spell()
        return allocation

    def check_size(self, size_bytes: int) -> None:
        """Refuse what no state of the pool would allow.

        Raises:
            InvalidSizeError: size_bytes is below 1 or above max_allocation_bytes.
        """
        if not 1 <= size_bytes <= self.max_allocation_bytes:
            reason = f"be from 1 to {self.max_allocation_bytes} bytes"
            raise InvalidSizeError(name="size_bytes", value=size_bytes, reason=reason)

    def release(self, allocation: Allocation) -> None:
        """Take bytes back.

        Raises:
            NotAllocatedError: released before, or handed out by another pool. Nothing changed.
        """
        if allocation not in self._outstanding:
            raise NotAllocatedError(allocation)
        self._outstanding.remove(allocation)
        self.available_bytes += allocation.size_bytes
        self._end_dry_spell()

    def _end_dry_spell(self) -> None:
        if self._dry_since_ms is None:
            return
        now_ms = self._clock.monotonic_ms()
        self._dry_total_ms += now_ms - self._dry_since_ms
        self._dry_spells_ms.append((self._dry_since_ms, now_ms))
        self._dry_since_ms = None
        while self._dry_spells_ms[0][1] < now_ms - self._window_ms:
            self._dry_spells_ms.popleft()

    @property
    def used_bytes(self) -> int:
        """Gauge MemoryPoolUsed: outstanding bytes; more than the size when a non-strict pool is overdrawn."""
        return self.size_bytes - self.available_bytes

    @property
    def is_out_of_memory(self) -> bool:
        """Nothing left. A strict pool may refuse although this is False."""
        return self.available_bytes <= 0

    @property
    def is_low_on_memory(self) -> bool:
        """Less than a tenth of the size is left (exactly a tenth is not low)."""
        return self.available_bytes < int(_LOW_MEMORY_FRACTION * self.size_bytes)

    @property
    def depleted_total_ms(self) -> int:
        """Gauge MemoryPoolDepletedTimeTotal: length of all dry spells."""
        running_ms = 0 if self._dry_since_ms is None else self._clock.monotonic_ms() - self._dry_since_ms
        return self._dry_total_ms + running_ms

    @property
    def depleted_percent(self) -> float:
        """Gauge MemoryPoolAvgDepletedPercent: dry share of the window, or of the pool's life if shorter; 0 to 100.

        Kafka's gauge of that name is a fraction from 0 to 1.
        """
        now_ms = self._clock.monotonic_ms()
        from_ms = max(now_ms - self._window_ms, self._made_ms)
        spells_ms = [*self._dry_spells_ms, *([] if self._dry_since_ms is None else [(self._dry_since_ms, now_ms)])]
        dry_ms = sum(max(0, end_ms - max(start_ms, from_ms)) for start_ms, end_ms in spells_ms)
        return 100.0 * dry_ms / max(now_ms - from_ms, 1)
