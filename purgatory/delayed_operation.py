"""Something that waits for an event or a time-out, whichever comes first, and completes exactly once."""

import threading
from collections.abc import Callable

from purgatory.timer_task_list import TimerTask


class DelayedOperation(TimerTask):
    """A task that may complete before its time (Kafka's `DelayedOperation`).

    Subclasses say when it can complete (`try_complete`), what completing does (`on_complete`) and what expiring does
    beyond that (`on_expiration`). Of all threads that try, one completes it: by an event, or by its expiry on the
    thread that advances the timer. On expiry `on_complete` runs first, then `on_expiration`.

    Locks: checks run under the operation's own lock, completion takes none. Call `check_and_complete` without holding
    an exclusive lock that an `on_complete` may want.
    """

    __slots__ = ("_check_lock", "_claim")

    def __init__(self, delay_ms: int) -> None:
        super().__init__(delay_ms)
        self._check_lock = threading.RLock()
        self._claim = threading.Lock()  # taken once, by the completer, and never given back: a compare-and-set

    def try_complete(self) -> bool:
        """Look whether the operation can complete; if so, return `force_complete()`. Called under its lock."""
        raise NotImplementedError

    def on_complete(self) -> None:
        """What completing does. Called once, by the thread that completed it."""
        raise NotImplementedError

    def on_expiration(self) -> None:
        """What expiring does beyond completing. Called after `on_complete`, only when the time-out completed it."""
        raise NotImplementedError

    @property
    def is_completed(self) -> bool:
        """Somebody completed it; its `on_complete` may still be running."""
        return self._claim.locked()

    def force_complete(self) -> bool:
        """Complete now, whatever `try_complete` would say; True for the one call that did it."""
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
        """Under the lock: `try_complete`; if that is not enough, run `otherwise` and try once more.

        The second try closes the race of an event between the first try and what `otherwise` sets up.
        """
        with self._check_lock:
            if self.try_complete():
                return True
            otherwise()
            return self.try_complete()

    def run(self) -> None:
        """Expire: complete, and if that was not done already say that it expired."""
        if self.force_complete():
            self.on_expiration()
