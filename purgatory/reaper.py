"""The thread of a timer: it advances the timer's clock until it is closed. The structures themselves have no thread."""

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Protocol, Self

_POLL_MS = 200


class Advanced(Protocol):
    """What a reaper drives: a timer or a purgatory."""

    def advance_clock(self, timeout_ms: int) -> bool:
        """Run what is due; if nothing is, wait up to timeout_ms for it."""
        ...

    def wake(self) -> None:
        """Make an `advance_clock` that is waiting return soon."""
        ...


class Reaper:
    """Calls `advance_clock` in a loop, on a thread of its own, from `start` to `close`.

    It passes 200 ms. That is a time-out, not a period: when something becomes due it wakes at once.
    """

    def __init__(self, advanced: Advanced, name: str, on_error: Callable[[Exception], None]) -> None:
        """Make a reaper that is not running yet.

        Args:
            advanced: what to drive. Nobody else may advance it while the reaper runs.
            name: the name of the thread.
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

    @property
    def is_running(self) -> bool:
        """True while the thread is alive."""
        return self._thread.is_alive()

    def _loop(self) -> None:
        while not self._closing.is_set():
            try:
                self._advanced.advance_clock(_POLL_MS)
            except Exception as failure:  # a task that fails must not stop the others
                self._on_error(failure)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
