"""One sync for a set of tables: its lock.

The lock lies next to the tables, where they are on a local disk. A sync that starts from elsewhere is not stopped by it
but fences the first one: by the epoch in the table.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from pipeline.errors import Conflict
from pipeline.process import LockHeld, ProcessLock, holder_of
from pipeline.tables.address import local_folder

_LOCK: Final = ".kquota-sync.lock"


@contextmanager
def sync_lock(tables_root: str) -> Iterator[None]:
    """Hold the lock. Raises `Conflict` if another process holds it."""
    path = _lock_file(tables_root)
    if path is None:
        yield
        return
    try:
        lock = ProcessLock(path).__enter__()
    except LockHeld as exc:
        message = f"another sync of these tables runs ({path} is held by process {exc.holder})"
        fix = f"stop the other one (kill {exc.holder}), or start this one with another --tables"
        raise Conflict(message, fix) from exc
    with lock:
        yield


def running_sync(tables_root: str) -> str | None:
    """The process of this machine that holds the lock, as text; None if none does."""
    path = _lock_file(tables_root)
    return None if path is None else holder_of(path)


def _lock_file(tables_root: str) -> Path | None:
    folder = local_folder(tables_root)
    return None if folder is None else folder / _LOCK
