"""Who may take from the memory pool next: refused sources are muted and come back in the order they were refused.

Kafka's selector un-mutes all sources at once after a dry spell and lets them race; an unlucky one can lose every time.
Here the one that waits longest is served first, and nobody who comes later overtakes it.
"""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

from purgatory.errors import AlreadyMutedError
from purgatory.memory_pool import Allocation, MemoryPool

Source = TypeVar("Source", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Unmuted(Generic[Source]):
    """A source that may read again.

    Attributes:
        source: which.
        allocation: the bytes it was refused before, now its own.
    """

    source: Source
    allocation: Allocation


class MemoryIntake(Generic[Source]):
    """Sources in front of a memory pool. No lock: one thread, or the caller's lock."""

    def __init__(self, pool: MemoryPool) -> None:
        self._pool = pool
        self._muted: dict[Source, int] = {}  # bytes each waits for, longest waiting first

    def try_allocate(self, source: Source, size_bytes: int) -> Allocation | None:
        """Bytes for a source; None mutes it: it must not read until `unmute` names it.

        Refused when the pool refuses, and while anybody else is muted, even if there would be room for this one.

        Raises:
            AlreadyMutedError: the source is muted.
            InvalidSizeError: as the pool says; the source is not muted.
        """
        if source in self._muted:
            raise AlreadyMutedError(source)
        self._pool.check_size(size_bytes)
        allocation = None if self._muted else self._pool.try_allocate(size_bytes)
        if allocation is None:
            self._muted[source] = size_bytes
        return allocation

    def unmute(self) -> list[Unmuted[Source]]:
        """Serve muted sources, longest waiting first, as far as the pool allows. Call it after a release."""
        served = []
        while self._muted:
            source = next(iter(self._muted))
            allocation = self._pool.try_allocate(self._muted[source])
            if allocation is None:
                break
            del self._muted[source]
            served.append(Unmuted(source, allocation))
        return served

    def forget(self, source: Source) -> bool:
        """A source went away; True when it was muted."""
        return self._muted.pop(source, None) is not None

    @property
    def muted(self) -> tuple[Source, ...]:
        """Muted sources, longest waiting first."""
        return tuple(self._muted)
