"""The folder where Spark's JVM keeps its temporary files: copies of the jars, shuffled blocks, unpacked libraries.

The JVM removes them when it ends, but not when it is killed: each kill −9 would leave 22 MB for ever.
"""

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Final
from uuid import uuid4

from filelock import FileLock, Timeout

_PREFIX: Final = "kquota-spark-"
_LOCK: Final = ".lock"


@cache
def scratch_folder() -> Path:
    """The scratch folder of this process: made at the first call, removed when the process ends.

    The first call also removes the folders that killed processes have left.

    Returns:
        A folder below the system's folder for temporary files (`TMPDIR`).

    Raises:
        OSError: The folder can not be made.
    """
    parent = Path(tempfile.gettempdir())
    remove_left_behind(parent)
    folder = parent / f"{_PREFIX}{uuid4().hex}"
    # Locked before it is made: a folder without a lock counts as left behind.
    lock = FileLock(folder.with_suffix(_LOCK))
    lock.acquire()
    folder.mkdir(mode=0o700)
    atexit.register(_remove, folder, lock)
    return folder


def remove_left_behind(parent: Path) -> int:
    """Remove the scratch folders of processes that have ended in any way; returns how many were removed.

    The operating system has released the locks of those processes. A folder that can not be removed, for example one
    of another user, is left alone.
    """
    removed = 0
    for path in parent.glob(f"{_PREFIX}*{_LOCK}"):
        lock = FileLock(path)
        try:
            lock.acquire(timeout=0)
        except (Timeout, OSError):
            continue
        _remove(path.with_suffix(""), lock)
        removed += 1
    return removed


def _remove(folder: Path, lock: FileLock) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    if not folder.exists():
        Path(lock.lock_file).unlink(missing_ok=True)
    lock.release()
