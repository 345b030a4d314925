"""Wait for several futures together, with a time limit (Kafka's `DelayedFuture`)."""

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
    """Completes when all its futures are done. Those that are not done at the time-out fail with `TimeoutError`.

    Attributes:
        futures: what it waits for, in the order given.
    """

    def __init__(self, timeout_ms: int, futures: Sequence[Future[Result]], respond: Callable[[], object]) -> None:
        """Make one that is not waiting yet.

        Args:
            timeout_ms: the longest wait.
            futures: some or all may be done already. An empty sequence completes at once.
            respond: called once, when all futures are done.
        """
        super().__init__(timeout_ms)
        self.futures = tuple(futures)
        self._respond = respond

    def try_complete(self) -> bool:
        """Complete if all futures are done."""
        return all(future.done() for future in self.futures) and self.force_complete()

    def on_complete(self) -> None:
        """Let every future that is not done fail, then respond."""
        for future in self.futures:
            if not future.done():
                with suppress(InvalidStateError):  # it was done between the two lines above
                    future.set_exception(TimeoutError(f"not done within {self.delay_ms} ms"))
        self._respond()

    def on_expiration(self) -> None:
        """Nothing. The futures already failed in `on_complete`, so that the response sees it."""


class DelayedFuturePurgatory(Generic[Result]):
    """Where delayed futures wait.

    Unlike Kafka's it has no executor. The thread that finishes the last future responds.
    """

    def __init__(self, timer: Timer) -> None:
        """Make an empty one.

        Args:
            timer: for the time-outs. Somebody must advance it, through `purgatory`.
        """
        self.purgatory: DelayedOperationPurgatory[DelayedFuture[Result]] = DelayedOperationPurgatory(timer)
        self._keys = count()

    def try_complete_else_watch(
        self, timeout_ms: int, futures: Sequence[Future[Result]], respond: Callable[[], object]
    ) -> DelayedFuture[Result]:
        """Respond now if all futures are done; otherwise when they are, or when the time is up.

        Args:
            timeout_ms: the longest wait.
            futures: those that are not done in time get a `TimeoutError`. Nobody may finish them afterwards.
            respond: called once: on this thread, on the one that finishes the last future, or on the timer's.

        Returns:
            The operation that waits; it may be completed already.
        """
        delayed = DelayedFuture(timeout_ms, futures, respond)
        key = next(self._keys)
        if not self.purgatory.try_complete_else_watch(delayed, [key]):
            for future in delayed.futures:
                future.add_done_callback(lambda _: self.purgatory.check_and_complete(key))
        return delayed
