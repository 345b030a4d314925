"""What a job does that writes no micro-batch: it waits for usage, or it hangs."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

FRESH_MS: Final = 3_000
"""A job that was seen to wait so lately still waits, as far as anybody can say."""

LATE_AFTER_MS: Final = 15_000
"""A job that was not seen to wait for longer hangs: no batch takes so long that does not."""

Activity = Literal["working", "idle", "hung", "unknown", "down"]


def activity_of(is_up: bool, batch_age_ms: int | None, beat_age_ms: int | None, stalled_after_ms: int) -> Activity:
    """What the job does.

    Args:
        is_up: A process of this machine holds its lock.
        batch_age_ms: How old the newest micro-batch is; None without one.
        beat_age_ms: How long ago the query was last seen to wait; None if it was not. Negative if the job's clock is
            ahead, or was set back since.
        stalled_after_ms: A batch up to this age is new.

    Returns:
        working: batches come. idle: none comes, and the query waits for usage. hung: none comes, and it does not wait.
        unknown: none comes, and the query was not seen to wait in the last `FRESH_MS`: it starts, has a long batch, or
        hangs. down: not running on this machine.
    """
    if not is_up:
        return "down"
    if batch_age_ms is not None and batch_age_ms <= stalled_after_ms:
        return "working"
    if beat_age_ms is not None and abs(beat_age_ms) <= FRESH_MS:
        return "idle"
    return "hung" if beat_age_ms is not None and beat_age_ms > LATE_AFTER_MS else "unknown"


@dataclass(frozen=True, slots=True)
class JobSigns:
    """What this machine knows of a job. Each is looked up when it is called.

    Attributes:
        process: The process of this machine that holds the job's lock, as text; None if none does.
        last_wait_ms: When the job was last seen to wait for usage, by its wall clock; None if that is not known here.
    """

    process: Callable[[], str | None]
    last_wait_ms: Callable[[], int | None] = lambda: None

    def is_idle(self, now_ms: int) -> bool:
        """Whether the job runs here and waits for usage, at this time by wall clock. No batch is then no failure.

        This asks whether somebody is to be called, so it is patient: up to `LATE_AFTER_MS` a job that waited still
        counts as waiting.
        """
        waited_ms = self.last_wait_ms()
        return waited_ms is not None and now_ms - waited_ms <= LATE_AFTER_MS and self.process() is not None
