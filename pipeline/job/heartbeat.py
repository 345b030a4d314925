"""Tells a job that waits for usage from one that hangs: both write no micro-batch.

The job notes in a file when its query was last seen to wait between two triggers. A query that waits has asked the
usage topic and found nothing new. One that hangs in a batch, or in a call to the brokers, is not seen to wait. The file
lies beside the tables where they are on a local disk, else in the job's run folder.
"""

import logging
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

from pipeline.activity import JobSigns
from pipeline.job.lock import job_process, tables_lock_file

log = logging.getLogger(__name__)

BEAT_EVERY_MS: Final = 1_000


class Heartbeat:
    """Notes instants at which the query waits. For one thread.

    Args:
        run_dir: The job's run folder.
        job: The job's name.
        tables_root: Where its tables are, or will be.
    """

    def __init__(self, run_dir: Path, job: str, tables_root: str) -> None:
        self._place = partial(_file, run_dir, job, tables_root)
        self._last_ms = 0
        self._has_failed = False

    def forget(self) -> None:
        """Begin anew: what an earlier life of the query noted says nothing about this one."""
        with suppress(OSError):
            self._place().unlink(missing_ok=True)

    def is_due(self, now_ms: int) -> bool:
        """Whether the last one was noted long enough ago, or the clock was set back."""
        return not 0 <= now_ms - self._last_ms < BEAT_EVERY_MS

    def beat(self, now_ms: int) -> None:
        """Note an instant of the wall clock. A disk that takes nothing is told once, and ends nothing."""
        self._last_ms = now_ms
        path = self._place()
        try:
            new = path.with_name(f"{path.name}.new")
            new.write_text(f"{now_ms}\n", encoding="ascii")
            new.replace(path)
        except OSError as exc:
            if not self._has_failed:
                log.warning("%s can not be written (%s): nobody can tell an idle job from one that hangs",
                            path, exc.strerror)  # fmt: skip
            self._has_failed = True


def last_beat_ms(run_dir: Path, job: str, tables_root: str) -> int | None:
    """When the job was last seen to wait, by its wall clock; None if that is not known here."""
    try:
        return int(_file(run_dir, job, tables_root).read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None


def signs_of(run_dir: Path, job: str, tables_root: str) -> JobSigns:
    """What this machine knows of the job that has this run folder, name and tables."""
    place = run_dir, job, tables_root
    return JobSigns(partial(job_process, *place), partial(last_beat_ms, *place))


def _file(run_dir: Path, job: str, tables_root: str) -> Path:
    beside = tables_lock_file(tables_root)
    return run_dir / f"{job}.heartbeat" if beside is None else beside.with_suffix(".heartbeat")
