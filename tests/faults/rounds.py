"""One round: load, a job that dies at a failpoint or at random moments, a restart, and a verdict."""

import random
import signal
import time
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pipeline.demo.broker import EmbeddedBroker
from pipeline.failpoints import FAILPOINTS
from tests.faults.rig import BROKER, Rig, rig
from tests.faults.stepped_clock import COMPILER, SteppedClock, stepped_clock
from tests.faults.verdict import Verdict
from tests.object_store import ObjectStore

NTH: Final = {
    **{"outbox.appended": 3, "transaction.sent": 3, "transaction.committed": 3, "check.appended": 3},
    **{"decisions.appended": 2, "batches.appended": 2},
}
"""How often a place is passed before the job dies there; the others are passed with every micro-batch."""
_NTH_BATCH: Final = 4
_LEFT_BEHIND: Final = "outbox.appended:3"
"""Where a job dies before another one dies in its start: it leaves records to publish."""
_GOES_ON_SECONDS: Final = 3.0
_BATCHES_AFTER_STEPS: Final = 2
"""The last of them has only usage of after the steps, also on a machine that is slow."""
STEPS: Final = ((20, -3_600), (-20, 3_600), (3_600, -20), (-3_600, 20))
"""By how many seconds the clocks are set while the job runs, and while it is down. In all, they are not set."""
AT_LEAST: Final = {
    **{"messages": 100, "batches": 3, "usage": 50, "dead_letters": 3, "clamped_events": 1},
    **{"decisions": 5, "holds": 5, "snapshots": 2, "buckets": 2, "full_buckets": 1},
    **{"begins": 3, "renewals": 3, "checks": 5, "releases": 3, "publish_seq": 10, "topic": 10, "pairs": 10},
}
"""What the verifier must have compared of a round."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the verifier says of a round, and the slowest recovery.

    That is the time from the start after a kill, or from the error, to the end of the first micro-batch, including the
    start of the JVM.
    """

    point: str
    recovery_seconds: float
    verdict: Verdict


def play_apart(point: str, place: Path, seed: int, steps: tuple[int, int]) -> Outcome:
    """One round on a broker of its own: one whose clock was set back by an hour may not reach its controller again."""
    place.mkdir(parents=True)
    with (
        stepped_clock(place) if COMPILER else nullcontext() as clock,
        EmbeddedBroker(place / "broker", options=BROKER) as broker,
    ):
        return play(point, place, broker.bootstrap_servers, seed, clock=clock, steps=steps)


def play(
    point: str,
    folder: Path,
    bootstrap_servers: str,
    seed: int,
    in_process: bool = False,
    clock: SteppedClock | None = None,
    steps: tuple[int, int] = (0, 0),
) -> Outcome:
    """Run one round with one failpoint.

    Args:
        in_process: Raise an error at the failpoint instead of a kill; then the job restarts inside its process. Not
            possible for the failpoints of the start.
        clock: The wall clock of all processes; None = the machine's.
        steps: One of `STEPS`.

    Raises:
        AssertionError: The job did not die there, or was not drained afterwards.
    """
    name = f"{point.replace('.', '-').replace('_', '-')}-{seed}"
    folder.mkdir(parents=True, exist_ok=True)
    with rig(name, folder, bootstrap_servers) as rigged:
        rigged.clock = clock
        rigged.begin_load(seed)
        with rigged.team_edited(seed):
            nth = NTH.get(point, _NTH_BATCH)
            if in_process:
                recovery_seconds = _fail(rigged, f"{point}:{nth}", steps)
            else:
                is_in_start = point.startswith("start.")
                _die(rigged, _LEFT_BEHIND if is_in_start else f"{point}:{nth}", steps[0])
                rigged.step_clock(steps[1])
                if is_in_start:
                    _die(rigged, point)
                recovery_seconds = rigged.start()
            time.sleep(_GOES_ON_SECONDS)
            for _ in range(_BATCHES_AFTER_STEPS if any(steps) else 0):
                rigged.job.wait_for_line("batch_id=", len(rigged.job.log))
        rigged.end_load()
        rigged.drain()
        rigged.job.stop()
        return Outcome(point, recovery_seconds, rigged.verdict({**AT_LEAST, "epochs": int(-3_600 in steps)}))


def _fail(rigged: Rig, failpoint: str, steps: tuple[int, int]) -> float:
    """Let the job fail and restart inside its process. Returns the seconds from the error to the end of a batch."""
    job, since = rigged.job, len(rigged.job.log)
    rigged.start(f"{failpoint}:raise", wait=False)
    if steps[0]:
        job.wait_for_line("batch_id=", since)
        rigged.step_clock(steps[0])
    job.wait_for_line("Starting again in", since)
    rigged.step_clock(steps[1])
    began, since = time.monotonic(), len(job.log)
    job.wait_for_line("batch_id=", since)
    return time.monotonic() - began


def _die(rigged: Rig, failpoint: str, step_seconds: int = 0) -> None:
    """Let the job kill itself there; before, the clocks are set after its first batch."""
    assert failpoint.partition(":")[0] in FAILPOINTS, failpoint
    rigged.start(failpoint, wait=bool(step_seconds))
    rigged.step_clock(step_seconds)
    code = rigged.await_death()
    assert code == -signal.SIGKILL, f"the job ended with {code}:\n" + "\n".join(rigged.job.log[-40:])


_KILLS: Final = 2
_LIFE_SECONDS: Final = (6.0, 14.0)
_STORED_AT_LEAST: Final = {
    **{"messages": 100, "batches": 10, "usage": 50, "dead_letters": 3},
    **{"decisions": 5, "renewals": 3, "releases": 3, "publish_seq": 10, "topic": 10},
}


def play_stored(
    folder: Path, store: ObjectStore, bootstrap_servers: str, seed: int, is_checkpoint_stored: bool
) -> Outcome:
    """A round with the tables in a store, and perhaps the checkpoint; the job is killed at random moments."""
    draw, name = random.Random(seed), f"stored-{seed}"
    overrides = {**store.environment, "KQUOTA_TABLES__ROOT": store.address(f"{name}/tables")}
    if is_checkpoint_stored:
        overrides["KQUOTA_STREAM__CHECKPOINT"] = store.address(f"{name}/checkpoint")
    with rig(name, folder, bootstrap_servers, **overrides) as rigged:
        rigged.aws_environment = store.aws_environment
        rigged.begin_load(seed)
        with rigged.team_edited(seed):
            recoveries = [rigged.start()]
            for _ in range(_KILLS):
                time.sleep(draw.uniform(*_LIFE_SECONDS))
                rigged.job.kill()
                recoveries.append(rigged.start())
            time.sleep(_LIFE_SECONDS[0])
        rigged.end_load()
        rigged.drain()
        rigged.job.stop()
        return Outcome("stored", max(recoveries[1:]), rigged.verdict(_STORED_AT_LEAST))
