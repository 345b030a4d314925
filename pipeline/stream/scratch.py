"""Where Spark's JVM keeps its temporary files: copies of the jars, shuffled blocks, libraries it unpacks.

It removes them when it ends, but not when it is killed: each kill −9 would leave 22 MB for ever.
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
    """The folder of this process, made at the first call and gone with the process. Those of killed ones are removed.

    Returns:
        A folder below the system's one for temporary files (`TMPDIR`).

    Raises:
        OSError: It can not be made.
    """
    parent = Path(tempfile.gettempdir())
    remove_left_behind(parent)
    folder = parent / f"{_PREFIX}{uuid4().hex}"
    # Locked before it is made: one without a lock is one that was left behind.
    lock = FileLock(folder.with_suffix(_LOCK))
    lock.acquire()
    folder.mkdir(mode=0o700)
    atexit.register(_remove, folder, lock)
    return folder


def remove_left_behind(parent: Path) -> int:
    """Remove the scratch folders whose process is gone, however it went; returns how many.

    The operating system has let go of their locks. What can not be removed, another user's for example, is left.
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
