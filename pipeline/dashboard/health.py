"""Whether the pipeline works, as a function of what was last seen. A job that stalls must never look calm."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from quota.units import age_text

STALLED_AFTER_MS: Final = 5_000
"""How old the newest micro-batch may be before the page says so."""

State = Literal["live", "starting", "quiet", "stalled", "down", "unreadable"]


@dataclass(frozen=True, slots=True)
class Health:
    """The state of the pipeline at an instant.

    Attributes:
        state: live: micro-batches come. starting: none is stored yet. quiet: the job's process lives, but no batch comes.
            stalled: no batch comes, and whether the job lives is not known here. down: the job's process is gone.
            unreadable: the tables can not be read.
        title: In a few words.
        text: What it means and what to do; "" if all is well.
        last_batch_age_ms: How long ago the newest batch was collected, by wall clock; None without one.
        lag_ms: How old the newest event of that batch was then.
        process: The job's process on this machine; None if it is not known to run.
    """

    state: State
    title: str
    text: str
    last_batch_age_ms: int | None
    lag_ms: int | None
    process: str | None


def health(
    now_ms: int,
    batch: Mapping[str, Any] | None,
    process: str | None,
    *,
    was_seen: bool,
    failure: str | None = None,
) -> Health:
    """Judge the pipeline.

    Args:
        now_ms: Wall clock.
        batch: The newest row of `batches`; None if there is none.
        process: The job's process on this machine; None if nobody holds its lock.
        was_seen: A process of this machine held the job's lock since the dashboard started. Without that, a missing
            process proves nothing: the job may run on another machine.
        failure: Why the tables can not be read; None if they can.
    """
    age_ms = None if batch is None else max(now_ms - batch["processed_at_ms"], 0)
    lag_ms = None if batch is None else max(batch["processed_at_ms"] - batch["evaluated_at_ms"], 0)

    def found(state: State, title: str, text: str = "") -> Health:
        return Health(state, title, text, age_ms, lag_ms, process)

    if failure is not None:
        return found("unreadable", "The tables can not be read", failure)
    if age_ms is None:
        if process is not None:
            return found("starting", "The job has written no micro-batch yet", f"Its process {process} runs.")
        return found("starting", "No micro-batch is stored yet", "Start the job: kquota run.")
    if age_ms <= STALLED_AFTER_MS and (process is not None or not was_seen):
        return found("live", "Live")
    if process is not None:
        return found(
            "quiet",
            f"No micro-batch for {age_text(age_ms)}",
            f"The job's process {process} runs: no usage events reach it, or it hangs. What is shown is that old.",
        )
    ending = "Running throttles lapse by themselves; nobody is throttled anew. What is shown is that old."
    if was_seen:
        return found("down", "The job has ended", f"Its last micro-batch was {age_text(age_ms)} ago. {ending}")
    return found("stalled", f"No micro-batch for {age_text(age_ms)}", f"The job does not run on this machine. {ending}")
