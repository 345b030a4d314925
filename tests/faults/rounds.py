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
        recovery_seconds: From the start after the kill to the first micro-batch done, JVM and all.
        verdict: The verifier's JSON.
    """

    point: str
    recovery_seconds: float
    verdict: dict[str, Any]


def play(point: str, folder: Path, bootstrap_servers: str, seed: int) -> Outcome:
    """One round with one failpoint.

    Raises:
        AssertionError: The job did not die there, or did not come to rest afterwards.
    """
    name = f"{point.replace('.', '-').replace('_', '-')}-{seed}"
    folder.mkdir(parents=True, exist_ok=True)
    with rig(name, folder, bootstrap_servers) as rigged:
        rigged.begin_load(seed)
        if point.startswith("start."):
            _die(rigged, _LEFT_BEHIND)
            _die(rigged, point)
        else:
            _die(rigged, f"{point}:{NTH.get(point, _NTH_BATCH)}")
        recovery_seconds = rigged.start()
        time.sleep(_GOES_ON_SECONDS)
        rigged.end_load()
        rigged.drain()
        rigged.job.stop()
        return Outcome(point, recovery_seconds, rigged.verdict())


def _die(rigged: Rig, failpoint: str) -> None:
    assert failpoint.partition(":")[0] in FAILPOINTS, failpoint
    rigged.start(failpoint, wait=False)
    code = rigged.await_death()
    assert code == -signal.SIGKILL, f"the job ended with {code}:\n" + "\n".join(rigged.job.log[-40:])
