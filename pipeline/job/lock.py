"""One driver per job and one per set of tables: lock files that are held while the process lives.

One lies in the job's run folder. Another lies next to the tables, where they are on a local disk: a second job with
another run folder would otherwise take the tables over and end the first. A driver that starts from elsewhere is not
stopped by a lock but fenced: by the epoch in every table commit and by the transactional id.
"""

from contextlib import ExitStack
from pathlib import Path
from typing import Final, Self

from pipeline.errors import Conflict
from pipeline.process import LockHeld, ProcessLock, holder_of
from pipeline.tables.address import local_folder

_TABLES_LOCK: Final = ".kquota-job.lock"


def lock_file(run_dir: Path, job: str) -> Path:
    """The lock file of a job in its run folder."""
    return run_dir / f"{job}.lock"


def tables_lock_file(tables_root: str) -> Path | None:
    """The lock file next to the tables; None where they are in no local folder that exists."""
    folder = local_folder(tables_root)
    return None if folder is None else folder / _TABLES_LOCK


def job_process(run_dir: Path, job: str, tables_root: str) -> str | None:
    """The process of this machine that is the job, as text; None if none is. Does not wait."""
    process = holder_of(lock_file(run_dir, job))
    if process is None and (neighbour := tables_lock_file(tables_root)) is not None:
        process = holder_of(neighbour)
    return process


class JobLock:
    """Held from `__enter__` to `__exit__`; the operating system lets go of it when the process dies, however it dies.

    Of the tables only a local folder that exists is locked. To enter raises Conflict if another process holds one.
    """

    def __init__(self, run_dir: Path, job: str, tables_root: str | None = None) -> None:
        self._job = job
        self._run_dir = run_dir
        self._paths = [lock_file(run_dir, job)]
        if tables_root is not None and (neighbour := tables_lock_file(tables_root)) is not None:
            self._paths.append(neighbour)
        self._held = ExitStack()

    def __enter__(self) -> Self:
        self._run_dir.mkdir(parents=True, exist_ok=True)
        with ExitStack() as held:
            for path in self._paths:
                try:
                    held.enter_context(ProcessLock(path))
                except LockHeld as exc:
                    message = f"another driver runs job {self._job!r} or writes its tables"
                    message += f" ({path} is held by process {exc.holder})"
                    fix = "stop the other one, or start this one with another --job, --run-dir and --tables"
                    raise Conflict(message, fix) from exc
            self._held = held.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._held.close()
