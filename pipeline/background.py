"""A thread that takes steps until it is stopped, and says so when a step fails."""

import logging
import threading
from collections.abc import Callable
from threading import Event, Thread

log = logging.getLogger(__name__)


def steps_left() -> bool:
    """Whether a step is still under way: one that took longer than its `close` waited for.

    The process must then end at once, not by way of the interpreter's end: that would crash a thread that comes back
    from a library's native code.
    """
    return any(isinstance(thread, _Stepping) for thread in threading.enumerate())


class _Stepping(Thread):
    """A thread of a `Background`."""


class Background:
    """Runs `step` again and again on a thread of its own.

    Args:
        name: Of the thread.
        step: One step; returns for how many seconds to rest before the next.
        failed: Called once, on that thread, with what a step raised; the thread ends then.
        first_after_seconds: How long to rest before the first step.
    """

    def __init__(
        self,
        name: str,
        step: Callable[[], float],
        failed: Callable[[BaseException], None],
        first_after_seconds: float = 0.0,
    ) -> None:
        self._step = step
        self._first_after_seconds = first_after_seconds
        self._failed = failed
        self._stopping = Event()
        self._thread = _Stepping(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin. Once only."""
        self._thread.start()

    def close(self, timeout_seconds: float = 10) -> None:
        """Stop after the step under way; returns when the thread has ended or the time-out has passed."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(timeout_seconds)

    def _run(self) -> None:
        self._stopping.wait(self._first_after_seconds)
        while not self._stopping.is_set():
            try:
                rest_seconds = self._step()
            except Exception as exc:
                log.debug("step of %s failed", self._thread.name, exc_info=True)
                self._failed(exc)
                return
            self._stopping.wait(rest_seconds)
