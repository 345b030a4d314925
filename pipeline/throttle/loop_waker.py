"""Wakes asyncio tasks from other threads, many with one call.

`call_soon_threadsafe` writes to a pipe each time, and each write gives other threads the interpreter. Forty tasks of
one client are therefore woken by one call, not by forty.
"""

import asyncio
from contextlib import suppress
from threading import Lock


class LoopWaker:
    """Futures to be resolved, by their loop. Any thread may call `wake`."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._woken: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}

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
