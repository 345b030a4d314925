"""Calls a function on SIGTERM and Ctrl-C, so that the running command can stop in an orderly way."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from types import FrameType
from typing import Final

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def call_on_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` on the first SIGINT or SIGTERM; the second one has its former effect (Ctrl-C: ends at once)."""
    former = {kind: signal.getsignal(kind) for kind in _SIGNALS}

    def first(_kind: int, _frame: FrameType | None) -> None:
        for kind, handler in former.items():
            signal.signal(kind, handler)
        stop()

    for kind in _SIGNALS:
        signal.signal(kind, first)
    try:
        yield
    finally:
        for kind, handler in former.items():
            signal.signal(kind, handler)


@contextmanager
def wait_until_stopped() -> Iterator[Callable[[float], bool]]:
    """Give a function that waits some seconds, and returns True at once when the command is to stop.

    It ends at the first SIGINT or SIGTERM; see `call_on_signals`.
    """
    # Not an Event: a signal handler that sets one may wait for the lock that its own thread holds.
    told: SimpleQueue[None] = SimpleQueue()

    def wait(seconds: float) -> bool:
        try:
            told.get(timeout=seconds)
        except Empty:
            return False
        return True

    with call_on_signals(lambda: told.put(None)):
        yield wait
