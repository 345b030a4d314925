"""One round: load, a job that dies at a failpoint, a job that goes on, a verdict."""

import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pipeline.failpoints import FAILPOINTS
from tests.faults.rig import Rig, rig

NTH: Final = {"outbox.appended": 2, "transaction.sent": 2, "transaction.committed": 2, "look.appended": 2}
"""How often a place is passed before the job dies there; the others are passed with every micro-batch."""
_NTH_BATCH: Final = 3
_LEFT_BEHIND: Final = "outbox.appended:2"
"""Where a job dies before another one dies in its start: it leaves records to publish."""
_GOES_ON_SECONDS: Final = 3.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one round.

    Attributes:
        point: The failpoint.
        recovery_seconds: From the start after the kill, or the error, to the first micro-batch done, JVM and all.
        verdict: The verifier's JSON.
    """

    point: str
    recovery_seconds: float
    verdict: dict[str, Any]


def play(point: str, folder: Path, bootstrap_servers: str, seed: int, in_process: bool = False) -> Outcome:
    """One round with one failpoint.

    Args:
        point: Its name.
        folder: For tables, checkpoint and ledger.
        bootstrap_servers: Of a broker that others may share.
        seed: Of the load.
        in_process: An error at the failpoint, after which the job restarts in its process, in place of a kill. Not for
            those of the start.

    Raises:
        AssertionError: The job did not die there, or did not come to rest afterwards.
    """
    name = f"{point.replace('.', '-').replace('_', '-')}-{seed}"
    folder.mkdir(parents=True, exist_ok=True)
    with rig(name, folder, bootstrap_servers) as rigged:
        rigged.begin_load(seed)
        nth = NTH.get(point, _NTH_BATCH)
        if in_process:
            recovery_seconds = _fail(rigged, f"{point}:{nth}")
        else:
            if point.startswith("start."):
                _die(rigged, _LEFT_BEHIND)
            _die(rigged, point if point.startswith("start.") else f"{point}:{nth}")
            recovery_seconds = rigged.start()
        time.sleep(_GOES_ON_SECONDS)
        rigged.end_load()
        rigged.drain()
        rigged.job.stop()
        return Outcome(point, recovery_seconds, rigged.verdict())


def _fail(rigged: Rig, failpoint: str) -> float:
    """The job meets an error and restarts in its process; seconds from the error to the next batch done."""
    job, since = rigged.job, len(rigged.job.log)
    rigged.start(f"{failpoint}:raise", wait=False)
    job.wait_for_line("Starting again in", since)
    began, since = time.monotonic(), len(job.log)
    job.wait_for_line("batch_id=", since)
    return time.monotonic() - began


def _die(rigged: Rig, failpoint: str) -> None:
    assert failpoint.partition(":")[0] in FAILPOINTS, failpoint
    rigged.start(failpoint, wait=False)
    code = rigged.await_death()
    assert code == -signal.SIGKILL, f"the job ended with {code}:\n" + "\n".join(rigged.job.log[-40:])
