"""Wakes asyncio tasks from other threads, many with one call.

`call_soon_threadsafe` writes to a pipe each time, and each write gives other threads the interpreter. Forty tasks of
one client are therefore woken by one call, not by forty; and two thousand of all clients, which are let go together,
by one call at the end: a loop that began with the first ones would only fight with the waker for the interpreter.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Lock, local


class _Gathering(local):
    """What a thread has put off until the end of its block; None outside of one."""

    loops: list[asyncio.AbstractEventLoop] | None = None


class LoopWaker:
    """Futures to be resolved, by their loop. Any thread may call `wake`."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._woken: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
        self._gathering = _Gathering()

    def __len__(self) -> int:
        """Loops with futures on their way to them."""
        return len(self._woken)

    def wake(self, future: asyncio.Future[None]) -> None:
        """Resolve a future on its own loop, soon. One that is done stays as it is; so does one of a closed loop."""
        loop = future.get_loop()
        with self._lock:
            woken = self._woken.get(loop)
            if woken is not None:
                woken.append(future)
                return
            self._woken[loop] = [future]
        if self._gathering.loops is None:
            self._call(loop)
        else:
            self._gathering.loops.append(loop)

    @contextmanager
    def together(self) -> Iterator[None]:
        """What this thread wakes inside the block is resolved after its end. Not to be nested."""
        gathered: list[asyncio.AbstractEventLoop] = []
        self._gathering.loops = gathered
        try:
            yield
        finally:
            self._gathering.loops = None
            for loop in gathered:
                self._call(loop)

    def _call(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            loop.call_soon_threadsafe(self._resolve, loop)
        except RuntimeError:  # closed: nobody waits there any more
            with self._lock, suppress(KeyError):
                del self._woken[loop]

    def _resolve(self, loop: asyncio.AbstractEventLoop) -> None:
        with self._lock:
            woken = self._woken.pop(loop, [])
        for future in woken:
            if not future.done():
                future.set_result(None)
