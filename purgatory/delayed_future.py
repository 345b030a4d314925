"""Several futures awaited together, for so long and no longer (Kafka's `DelayedFuture`)."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from itertools import count
from typing import Generic, TypeVar

from purgatory.delayed_operation import DelayedOperation
from purgatory.delayed_operation_purgatory import DelayedOperationPurgatory
from purgatory.timer import Timer

Result = TypeVar("Result")


class DelayedFuture(DelayedOperation, Generic[Result]):
    """Completes when all its futures are done. Those that are not when its time is up fail with `TimeoutError`.

    Attributes:
        futures: what is awaited, in the order given.
    """

    def __init__(self, timeout_ms: int, futures: Sequence[Future[Result]], respond: Callable[[], object]) -> None:
        """Make one that does not wait yet.

        Args:
            timeout_ms: how long to wait.
            futures: may be done already; an empty sequence completes at once.
            respond: called once, when all futures are done.
        """
        super().__init__(timeout_ms)
        self.futures = tuple(futures)
        self._respond = respond

    def try_complete(self) -> bool:
        """Complete if all futures are done."""
        return all(future.done() for future in self.futures) and self.force_complete()

    def on_complete(self) -> None:
        """Fail what is not done, then respond."""
        for future in self.futures:
            if not future.done():
                with suppress(InvalidStateError):  # done between the two lines
                    future.set_exception(TimeoutError(f"not done within {self.delay_ms} ms"))
        self._respond()

    def on_expiration(self) -> None:
        """Nothing: failing the futures is part of completing, so that the response sees them failed."""


class DelayedFuturePurgatory(Generic[Result]):
    """Where delayed futures wait.

    Unlike Kafka's it has no executor: the thread that finishes the last future responds.
    """

    def __init__(self, timer: Timer) -> None:
        """Make an empty one.

        Args:
            timer: for the time-outs; somebody advances it through `purgatory`.
        """
        self.purgatory: DelayedOperationPurgatory[DelayedFuture[Result]] = DelayedOperationPurgatory(timer)
        self._keys = count()

    def try_complete_else_watch(
        self, timeout_ms: int, futures: Sequence[Future[Result]], respond: Callable[[], object]
    ) -> DelayedFuture[Result]:
        """Respond at once if all futures are done, else when they are, or when the time is up.

        Args:
            timeout_ms: how long to wait.
            futures: the ones not done then get a `TimeoutError`; nobody may finish them afterwards.
            respond: called once; on this thread, on the one that finishes the last future, or on the timer's.
        """
        delayed = DelayedFuture(timeout_ms, futures, respond)
        key = next(self._keys)
        if not self.purgatory.try_complete_else_watch(delayed, [key]):
            for future in delayed.futures:
                future.add_done_callback(lambda _: self.purgatory.check_and_complete(key))
        return delayed
