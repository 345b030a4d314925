"""An operation that waits for an event or for its time-out, whichever comes first, and completes exactly once."""

import threading
from collections.abc import Callable

from purgatory.timer_task_list import TimerTask


class DelayedOperation(TimerTask):
    """A task that can complete before its time (Kafka's `DelayedOperation`).

    A subclass says when it can complete (`try_complete`), what completing does (`on_complete`), and what else happens
    on a time-out (`on_expiration`). Many threads may try to complete an operation; exactly one succeeds: a thread that
    brings an event, or the thread that advances the timer. On a time-out `on_complete` runs first, then
    `on_expiration`.

    Locks: `try_complete` runs under the operation's own lock; completing takes no lock. Do not hold a lock that an
    `on_complete` may need while you call `check_and_complete`.
    """

    __slots__ = ("_check_lock", "_claim")

    def __init__(self, delay_ms: int) -> None:
        """Make an operation that is not completed.

        Args:
            delay_ms: its time-out, counted from the moment it is added to a timer.
        """
        super().__init__(delay_ms)
        self._check_lock = threading.RLock()
        # Taken once, by the thread that completes the operation, and never released: a compare-and-set.
        self._claim = threading.Lock()

    def try_complete(self) -> bool:
        """Check whether the operation can complete. If it can, return `force_complete()`, else False.

        Called under the operation's lock.
        """
        raise NotImplementedError

    def on_complete(self) -> None:
        """What completing does. Called once, by the thread that completed the operation."""
        raise NotImplementedError

    def on_expiration(self) -> None:
        """What a time-out does in addition. Called after `on_complete`, and only if the time-out completed it."""
        raise NotImplementedError

    @property
    def is_completed(self) -> bool:
        """True once a thread has completed it. Its `on_complete` may still be running."""
        return self._claim.locked()

    def force_complete(self) -> bool:
        """Complete now, without asking `try_complete`. Returns True to the one call that completed it."""
        if not self._claim.acquire(blocking=False):
            return False
        self.cancel()
        self.on_complete()
        return True

    def safe_try_complete(self) -> bool:
        """`try_complete` under the operation's lock."""
        with self._check_lock:
            return self.try_complete()

    def safe_try_complete_or_else(self, otherwise: Callable[[], None]) -> bool:
        """Under the lock: `try_complete`; if it fails, run `otherwise`, then try once more.

        The second try is for an event that arrives after the first try and before `otherwise` has done its work (for
        example, put the operation on a watch list). Without it nobody would notice that event.

        Returns:
            True if one of the two tries completed the operation.
        """
        with self._check_lock:
            if self.try_complete():
                return True
            otherwise()
            return self.try_complete()

    def run(self) -> None:
        """The time-out: complete the operation, and if this call completed it, run `on_expiration`."""
        if self.force_complete():
            self.on_expiration()
