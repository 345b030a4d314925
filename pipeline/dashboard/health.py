"""Whether the pipeline works, as a function of what was last seen. A job that stalls must never look calm."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from pipeline.activity import activity_of
from pipeline.command_line import command_text
from quota.units import age_text

STALLED_AFTER_MS: Final = 5_000
"""How old the newest micro-batch may be before the page says so."""

_LAPSE: Final = "Running throttles lapse by themselves; nobody is throttled anew. What is shown is that old."

State = Literal["live", "starting", "quiet", "hung", "stalled", "down", "unreadable"]


@dataclass(frozen=True, slots=True)
class Health:
    """The state of the pipeline at an instant.

    Attributes:
        state: live: micro-batches come. starting: none is stored yet. quiet: no batch comes, as the job waits for usage
            and finds none. hung: no batch comes, and the job does not even look for usage. stalled: no batch comes, and
            which of the two it is, or whether the job lives, is not known here: it was not seen to wait for usage in
            the last `FRESH_MS`. down: the job's process is gone.
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
    waited_ms: int | None = None,
    failure: str | None = None,
) -> Health:
    """Judge the pipeline.

    Args:
        now_ms: Wall clock.
        batch: The newest row of `batches`; None if there is none.
        process: The job's process on this machine; None if nobody holds its lock.
        was_seen: A process of this machine held the job's lock since the dashboard started. Without that, a missing
            process proves nothing: the job may run on another machine.
        waited_ms: When the job was last seen to wait for usage, by wall clock; None if that is not known here.
        failure: Why the tables can not be read; None if they can.
    """
    age_ms = None if batch is None else max(now_ms - batch["processed_at_ms"], 0)
    lag_ms = None if batch is None else max(batch["processed_at_ms"] - batch["evaluated_at_ms"], 0)
    wait_age_ms = None if waited_ms is None else now_ms - waited_ms
    if failure is not None:
        told: tuple[State, str, str] = ("unreadable", "The tables can not be read", failure)
    elif age_ms is None:
        told = _without_batch(process, wait_age_ms)
    elif age_ms <= STALLED_AFTER_MS and (process is not None or not was_seen):
        told = ("live", "Live", "")
    elif process is None:
        told = _gone(age_ms, was_seen)
    else:
        told = _without_news(age_ms, process, wait_age_ms)
    return Health(*told, age_ms, lag_ms, process)


def _without_batch(process: str | None, wait_age_ms: int | None) -> tuple[State, str, str]:
    title = "The job has written no micro-batch yet"
    if process is None:
        return "starting", "No micro-batch is stored yet", f"Start the job: {command_text('run')}."
    activity = activity_of(True, None, wait_age_ms, STALLED_AFTER_MS)
    if activity == "hung":
        return "hung", title, f"It hangs: {_last_look(process, wait_age_ms)}"
    return "starting", title, f"Its process {process} {'waits for usage' if activity == 'idle' else 'runs'}."


def _without_news(age_ms: int, process: str, wait_age_ms: int | None) -> tuple[State, str, str]:
    """Of a job that lives."""
    since, activity = f"for {age_text(age_ms)}", activity_of(True, age_ms, wait_age_ms, STALLED_AFTER_MS)
    if activity == "idle":
        text = f"The job's process {process} works: it looks for usage, and no client has used anything."
        return "quiet", f"Quiet: no usage {since}", text
    if activity == "hung":
        return "hung", f"The job hangs: no micro-batch {since}", f"{_last_look(process, wait_age_ms)} {_LAPSE}"
    if wait_age_ms is None or wait_age_ms < 0:
        seen = "runs, and was not yet seen to wait for usage: it starts, or hangs"
    else:
        seen = f"last looked for usage {age_text(wait_age_ms)} ago: a batch takes long, or it hangs"
    return "stalled", f"No micro-batch {since}", f"The job's process {process} {seen}. {_LAPSE}"


def _gone(age_ms: int, was_seen: bool) -> tuple[State, str, str]:
    age = age_text(age_ms)
    if was_seen:
        return "down", "The job has ended", f"Its last micro-batch was {age} ago. {_LAPSE}"
    return "stalled", f"No micro-batch for {age}", f"No job runs on these tables on this machine. {_LAPSE}"


def _last_look(process: str, wait_age_ms: int | None) -> str:
    return (
        f"Its process {process} last looked for usage {age_text(wait_age_ms or 0)} ago; its log may say what keeps it."
    )
