"""Who gets memory next: sources that were refused are muted, and are served in the order in which they were refused.

Kafka's selector un-mutes all sources at once when memory comes back and lets them race, so an unlucky one can lose
every time. Here the source that has waited longest is served first, and later ones cannot overtake it.
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
        source: the source.
        allocation: the bytes that it was refused before. They are allocated to it now.
    """

    source: Source
    allocation: Allocation


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
            InvalidSizeError: the size is impossible, see `MemoryPool.check_size`. The source is not muted.
        """
        if source in self._muted:
            raise AlreadyMutedError(source)
        self._pool.check_size(size_bytes)
        allocation = None if self._muted else self._pool.try_allocate(size_bytes)
        if allocation is None:
            self._muted[source] = size_bytes
        return allocation

    def unmute(self) -> list[Unmuted[Source]]:
        """Serve muted sources in order, as far as the pool allows. Call it after each release.

        Returns:
            The sources that may read again, the one that waited longest first.
        """
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
        """A source went away. Returns True if it was muted."""
        return self._muted.pop(source, None) is not None

    @property
    def muted(self) -> tuple[Source, ...]:
        """The muted sources, the one that has waited longest first."""
        return tuple(self._muted)
