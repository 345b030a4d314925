"""How a job recovers from a stall: it is stopped for some seconds, while its usage piles up on the topic."""

import os
import signal
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

STALL_SECONDS: Final = 5.0
_BATCHES_AFTER: Final = 12
_PATIENCE_SECONDS: Final = 60.0
_AS_USUAL: Final = 1.5


@dataclass(frozen=True, slots=True)
class BatchAge:
    """A micro-batch, as the job's log tells it.

    Attributes:
        events: How many it had.
        age_ms: From its newest event to its end.
    """

    events: int
    age_ms: int


def stall(pids: Sequence[int], batches: Sequence[BatchAge]) -> str:
    """Stop the job for `STALL_SECONDS` and say after how many micro-batches it is as quick as before.

    The first one is the one that was under way when the job was stopped, or the one with all that has piled up.

    Args:
        pids: All processes of the job.
        batches: Grows with each micro-batch.
    """
    usual_ms = statistics.median(batch.age_ms for batch in batches)
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(STALL_SECONDS)
    before = len(batches)
    for pid in pids:
        os.kill(pid, signal.SIGCONT)
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while len(batches) < before + _BATCHES_AFTER and time.monotonic() < deadline:
        time.sleep(0.1)
    after = batches[before:]
    needed = next((place for place, batch in enumerate(after, 1) if batch.age_ms <= _AS_USUAL * usual_ms), None)
    told = ", ".join(f"{batch.events} events {batch.age_ms} ms" for batch in after[:5])
    return (
        f"stall of {STALL_SECONDS:g} s: caught up with micro-batch {needed or 'none'} after it "
        f"(age at most {_AS_USUAL:g} x the usual {usual_ms:.0f} ms); {told}"
    )
