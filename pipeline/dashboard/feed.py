"""Looks at the tables again and again, in one thread, and wakes whoever waits for the next state."""

import asyncio
import json
import logging
from collections.abc import Callable
from threading import Event, Lock, Thread
from typing import Any, Final, Protocol

from pipeline.allocator import return_freed_memory
from pipeline.clock import wall_ms
from pipeline.dashboard.state import State

log = logging.getLogger(__name__)

LOOK_EVERY_SECONDS: Final = 1.0
_LOOKS_PER_TIDYING: Final = 60


class Reader(Protocol):
    """What is followed; see `TablesReader.look`."""

    def look(self, now_ms: int) -> State:
        """The state at an instant; raises nothing."""
        ...


class Feed:
    """The newest state. `start` it, and `close` it at the end.

    Args:
        reader: Called from the feed's own thread alone.
        now: The wall clock.
    """

    def __init__(self, reader: Reader, now: Callable[[], int] = wall_ms) -> None:
        self._reader = reader
        self._now = now
        self._state: State | None = None
        self._texts: dict[bool, bytes] = {}
        self._lock = Lock()
        self._waiting: set[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = set()
        self._looks = 0
        self._over = Event()
        self._first = Event()
        self._thread = Thread(target=self._follow, name="dashboard-feed", daemon=True)

    @property
    def state(self) -> State | None:
        """The newest state; None before the first look is done."""
        return self._state

    @property
    def is_over(self) -> bool:
        """Whether it was closed."""
        return self._over.is_set()

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def end(self) -> None:
        """Ask it to end; the streams end, too. From any thread or signal handler."""
        self._over.set()

    def close(self) -> None:
        """End, and wait until it has; whoever waits is woken."""
        self.end()
        self._wake()
        if self._thread.ident is not None:
            self._thread.join()

    def wait_first(self, seconds: float) -> bool:
        """Wait until there is a state; False if it takes longer."""
        return self._first.wait(seconds)

    def text(self, whole: bool) -> bytes:
        """The newest state as JSON: the view Now, or only what every view needs. b"" before the first look."""
        state = self._state
        if state is None:
            return b""
        with self._lock:
            if whole not in self._texts:
                self._texts[whole] = encoded(state.summary() if whole else state.head())
            return self._texts[whole]

    async def next_state(self, seconds: float) -> None:
        """Return at the next look's end, or after some seconds."""
        one = (asyncio.get_running_loop(), asyncio.Event())
        with self._lock:
            self._waiting.add(one)
        try:
            async with asyncio.timeout(seconds):
                await one[1].wait()
        except TimeoutError:
            pass
        finally:
            with self._lock:
                self._waiting.discard(one)

    def _follow(self) -> None:
        while not self._over.is_set():
            try:
                state = self._reader.look(self._now())
            except Exception:
                log.exception("the dashboard could not look at the tables; it tries again")
            else:
                with self._lock:
                    self._state = state
                    self._texts = {}
                self._first.set()
                self._wake()
                self._tidy()
            self._over.wait(LOOK_EVERY_SECONDS)

    def _tidy(self) -> None:
        """After the first look, which reads the most, and then once a minute."""
        if self._looks % _LOOKS_PER_TIDYING == 0:
            return_freed_memory()
        self._looks += 1

    def _wake(self) -> None:
        with self._lock:
            waiting = list(self._waiting)
        for loop, event in waiting:
            if not loop.is_closed():
                loop.call_soon_threadsafe(event.set)


def encoded(document: Any) -> bytes:
    """A document as JSON in UTF-8. A number that JSON does not have is an error."""
    return json.dumps(document, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=str).encode()
