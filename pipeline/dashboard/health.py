"""Whether the pipeline works, as a function of what was last seen. A job that stalls must never look calm."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from pipeline.command_line import command_text
from quota.units import age_text

STALLED_AFTER_MS: Final = 5_000
"""How old the newest micro-batch may be before the page says so."""

State = Literal["live", "starting", "quiet", "stalled", "down", "unreadable"]


@dataclass(frozen=True, slots=True)
class Health:
    """The state of the pipeline at an instant.

    Attributes:
        state: live: micro-batches come. starting: none is stored yet. quiet: the job's process lives, but no batch
            comes. stalled: no batch comes, and whether the job lives is not known here. down: the job's process is
            gone. unreadable: the tables can not be read.
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

    if failure is not None:
        told: tuple[State, str, str] = ("unreadable", "The tables can not be read", failure)
    elif age_ms is None:
        told = _without_batch(process)
    elif age_ms <= STALLED_AFTER_MS and (process is not None or not was_seen):
        told = ("live", "Live", "")
    else:
        told = _without_news(age_text(age_ms), process, was_seen)
    return Health(*told, age_ms, lag_ms, process)


def _without_batch(process: str | None) -> tuple[State, str, str]:
    if process is not None:
        return "starting", "The job has written no micro-batch yet", f"Its process {process} runs."
    return "starting", "No micro-batch is stored yet", f"Start the job: {command_text('run')}."


def _without_news(age: str, process: str | None, was_seen: bool) -> tuple[State, str, str]:
    if process is not None:
        text = f"The job's process {process} runs: no usage events reach it, or it hangs. What is shown is that old."
        return "quiet", f"No micro-batch for {age}", text
    ending = "Running throttles lapse by themselves; nobody is throttled anew. What is shown is that old."
    if was_seen:
        return "down", "The job has ended", f"Its last micro-batch was {age} ago. {ending}"
    return "stalled", f"No micro-batch for {age}", f"No job runs on these tables on this machine. {ending}"
