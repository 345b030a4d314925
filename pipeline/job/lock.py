"""One driver per job and one per set of tables: lock files that are held while the process lives.

One lies in the job's run folder. Another lies beside the tables, where they are on a local disk: a second job with
another run folder would otherwise take the tables over and end the first. A driver that starts from elsewhere is not
stopped by a lock but fenced: by the epoch in every table commit and by the transactional id.
"""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from filelock import FileLock, Timeout

from pipeline.errors import PipelineError
from pipeline.tables.address import is_local

_TABLES_LOCK: Final = ".kquota-job.lock"


class JobIsRunning(PipelineError):
    """Another process holds the job's lock."""

    exit_code = 4

    def __init__(self, job: str, path: Path, holder: str) -> None:
        self.job = job
        self.path = path
        super().__init__(
            f"'job' must be the only driver of its run folder and tables; got a second one for {job!r} "
            f"({path} is held by process {holder})",
            "stop the other one, or start this one with another --job, --run-dir and --tables",
        )


class JobLock:
    """Held from `__enter__` to `__exit__`; the operating system lets go of it when the process dies, however it dies.

    Args:
        run_dir: The job's run folder; made if it is missing.
        job: The job's name.
        tables_root: Where its tables are. Only a local folder that exists is locked.

    Raises:
        JobIsRunning: On entering, if another process holds one of the two.
    """

    def __init__(self, run_dir: Path, job: str, tables_root: str | None = None) -> None:
        self._job = job
        self._run_dir = run_dir
        self._paths = [run_dir / f"{job}.lock"]
        if tables_root is not None and is_local(tables_root) and Path(tables_root).is_dir():
            self._paths.append(Path(tables_root) / _TABLES_LOCK)
        self._held = ExitStack()

    def __enter__(self) -> Self:
        self._run_dir.mkdir(parents=True, exist_ok=True)
        with ExitStack() as held:
            for path in self._paths:
                held.enter_context(self._locked(path))
            self._held = held.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._held.close()

    @contextmanager
    def _locked(self, path: Path) -> Iterator[None]:
        lock, pid_file = FileLock(path), path.with_suffix(".pid")
        try:
            lock.acquire(timeout=0)
        except Timeout as exc:
            holder = pid_file.read_text().strip() if pid_file.exists() else "unknown"
            raise JobIsRunning(self._job, path, holder) from exc
        try:
            pid_file.write_text(f"{os.getpid()}\n")
            yield
        finally:
            lock.release()
