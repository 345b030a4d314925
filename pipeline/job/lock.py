"""One driver a job: a lock file in its run folder, held while the process lives.

It keeps a second driver on the same folder from starting. A driver that starts from elsewhere is not stopped by it but
fenced: by the epoch in every table commit and by the transactional id.
"""

import os
from pathlib import Path
from types import TracebackType
from typing import Self

from filelock import FileLock, Timeout

from pipeline.errors import PipelineError


class JobIsRunning(PipelineError):
    """Another process holds the job's lock."""

    exit_code = 4

    def __init__(self, job: str, path: Path, holder: str) -> None:
        self.job = job
        self.path = path
        super().__init__(
            f"'job' must name one running driver; got a second one for {job!r} ({path} is held by process {holder})",
            "stop the other one, or start this one with another --job and folder",
        )


class JobLock:
    """Held from `__enter__` to `__exit__`; the operating system lets go of it when the process dies, however it dies.

    Raises:
        JobIsRunning: On entering, if another process holds it.
    """

    def __init__(self, run_dir: Path, job: str) -> None:
        self._job = job
        self._path = run_dir / f"{job}.lock"
        self._lock = FileLock(self._path)

    def __enter__(self) -> Self:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        pid_file = self._path.with_suffix(".pid")
        try:
            self._lock.acquire(timeout=0)
        except Timeout as exc:
            holder = pid_file.read_text().strip() if pid_file.exists() else "unknown"
            raise JobIsRunning(self._job, self._path, holder) from exc
        pid_file.write_text(f"{os.getpid()}\n")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.release()
