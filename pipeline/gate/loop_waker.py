"""Wakes asyncio tasks from other threads, many with one call.

`call_soon_threadsafe` writes to a pipe each time, and each write gives other threads the interpreter. So forty tasks
of one client are woken by one call, not by forty. And two thousand tasks of many clients that may go on together are
woken by one call at the end: a loop that started with the first tasks would compete with the waker for the
interpreter.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Lock, local


class _Gathering(local):
    """The loops that a thread will call at the end of its `together` block; None outside of a block."""

    loops: list[asyncio.AbstractEventLoop] | None = None


class LoopWaker:
    """Resolves futures on their own loops. Any thread may call `wake`."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._woken: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
        self._gathering = _Gathering()

    def __len__(self) -> int:
        """The number of loops that have futures not yet resolved."""
        return len(self._woken)

    def wake(self, future: asyncio.Future[None]) -> None:
        """Resolve a future on its own loop, soon. A future that is done, or whose loop is closed, stays as it is."""
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
        """Futures that this thread wakes inside the block are resolved after its end. Blocks must not be nested."""
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
        except RuntimeError:  # the loop is closed, so nobody waits there any more
            with self._lock, suppress(KeyError):
                del self._woken[loop]

    def _resolve(self, loop: asyncio.AbstractEventLoop) -> None:
        with self._lock:
            woken = self._woken.pop(loop, [])
        for future in woken:
            if not future.done():
                future.set_result(None)
