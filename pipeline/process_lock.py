"""A lock file that one process holds while it lives, and beside it a file that says which process it is."""

import fcntl
import os
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:
    from filelock import BaseFileLock

# `holder_of` holds a lock for a moment. A process that starts just then must not be refused for it.
_PATIENCE_SECONDS: Final = 0.2


class LockHeld(Exception):
    """Another process holds the lock.

    Attributes:
        path: The lock file.
        holder: Its process id as text, "unknown" if it has not written it.
    """

    def __init__(self, path: Path, holder: str) -> None:
        self.path = path
        self.holder = holder
        super().__init__(f"{path} is held by process {holder}")


class ProcessLock:
    """Held from `__enter__` to `__exit__`; the operating system lets go of it when the process dies, however it dies.

    Args:
        path: The lock file, in a folder that exists. `<its stem>.pid` beside it gets the process id.

    Raises:
        LockHeld: On entering, if another process holds it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock: BaseFileLock

    def __enter__(self) -> Self:
        # Here, not at the top: `kquota status` only asks who holds it.
        from filelock import FileLock, Timeout  # noqa: PLC0415

        self._lock = FileLock(self._path)
        try:
            self._lock.acquire(timeout=_PATIENCE_SECONDS)
        except Timeout as exc:
            raise LockHeld(self._path, _written_by_holder(self._path)) from exc
        try:
            _pid_file(self._path).write_text(f"{os.getpid()}\n")
        except OSError:
            self._lock.release()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.release()


def holder_of(path: Path) -> str | None:
    """The process that holds a lock now, as text; None if nobody does. Only reads, and waits for nobody."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        # Shared: two that look at the same time do not see each other.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _written_by_holder(path)
    finally:
        os.close(descriptor)
    return None


def _pid_file(path: Path) -> Path:
    return path.with_suffix(".pid")


def _written_by_holder(path: Path) -> str:
    try:
        return _pid_file(path).read_text().strip() or "unknown"
    except FileNotFoundError:
        return "unknown"
