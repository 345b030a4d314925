"""One sync per set of tables: a lock file beside them, where they are on a local disk.

A sync that starts from elsewhere is not stopped by it but fences the first one: by the epoch in the table.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from pipeline.process_lock import LockHeld, ProcessLock, holder_of
from pipeline.sync.errors import SyncIsRunning
from pipeline.tables.address import local_folder

_LOCK: Final = ".kquota-sync.lock"


@contextmanager
def sync_lock(tables_root: str) -> Iterator[None]:
    """Hold the lock; the operating system lets go of it when the process dies, however it dies.

    Raises:
        SyncIsRunning: Another process holds it.
    """
    path = _lock_file(tables_root)
    if path is None:
        yield
        return
    try:
        lock = ProcessLock(path).__enter__()
    except LockHeld as exc:
        raise SyncIsRunning(path, exc.holder) from exc
    with lock:
        yield


def running_sync(tables_root: str) -> str | None:
    """The process of this machine that holds the lock, as text; None if nobody does."""
    path = _lock_file(tables_root)
    return None if path is None else holder_of(path)


def _lock_file(tables_root: str) -> Path | None:
    folder = local_folder(tables_root)
    return None if folder is None else folder / _LOCK
