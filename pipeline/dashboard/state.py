"""The state of one moment: the immutable value that the reader makes, what the view Now shows of it, and its health."""

from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal

from pipeline.command_line import command_text
from pipeline.dashboard.verdict import collapsed, standing, verdict
from pipeline.process import activity_of, ahead_ms
from quota.units import age_text
from schemas.throttle_record import verb, written_ms

# The view Now. Pure.

MOST_THROTTLED: Final = 200
MOST_RECENT: Final = 30


def picked(row: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Some columns of a row."""
    return {name: row[name] for name in names}


_CLIENT: Final = ("user", "client_id", "broker_id", "quota_type", "observed", "bound")
_RECORD: Final = ("cause", "throttled_until_ms", "decision_id", "quota_version")


def throttled_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """A client that is held: who, by what, since when and until when, whose, and at which level."""
    return {
        **picked(row, (*_CLIENT, *_RECORD, "since_ms", "records", "most_used", "level", "owner")),
        "owed_until_ms": max(written_ms(row) + row["owed_ms"], row["throttled_until_ms"]),
    }


def talker_row(row: Mapping[str, Any], held: Container[tuple[str, str]]) -> dict[str, Any]:
    """A sensor and how much of its bound it uses."""
    shown = (*_CLIENT, "sensor_user", "sensor_client_id", "clients", "level", "mode", "owner")
    judged = {"used": row["share"], "standing": standing(row["share"], row["mode"])}
    return {**picked(row, shown), **judged, "throttled": (row["user"], row["client_id"]) in held}


def event_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """A record of the throttle topic, in short, with who is responsible for its client now."""
    return {
        **picked(row, (*_CLIENT, *_RECORD, "throttle_time_ms", "owed_ms", "lateness_ms", "publish_seq", "owner")),
        "at_ms": written_ms(row),
        "verb": verb(row),
    }


# Whether the pipeline works. Pure. If data stops, a banner shows it.

STALLED_AFTER_MS: Final = 5_000
"""How old the newest micro-batch may be before the page shows a banner."""

_LAPSE: Final = "Running throttles end by themselves; no new ones begin. The figures below are that old."

_AHEAD: Final = "The time of the rates is {} ahead of the wall clock: a clock was set back, and usage of now is late."

HealthState = Literal["live", "starting", "quiet", "hung", "stalled", "down", "unreadable"]


@dataclass(frozen=True, slots=True)
class Health:
    """The state of the pipeline at an instant.

    Attributes:
        state: live: micro-batches come. starting: none is stored yet. quiet: no batch comes, as the job waits for usage
            and finds none. hung: no batch comes, and the job does not even look for usage. stalled: no batch comes, and
            which of the two it is, or whether the job lives, is not known here. down: the job's process is gone.
            unreadable: the tables cannot be read.
        text: What it means and what to do; "" if all is well.
        last_batch_age_ms: How long ago the newest batch was collected, by wall clock; None without one.
        lag_ms: How old the newest event of that batch was then.
        process: The job's process on this machine; None if it is not known to run.
        ahead_ms: How far the time of that batch is ahead of the wall clock now.
    """

    state: HealthState
    title: str
    text: str
    last_batch_age_ms: int | None
    lag_ms: int | None
    process: str | None
    ahead_ms: int = 0


def health(
    now_ms: int,
    batch: Mapping[str, Any] | None,
    process: str | None,
    *,
    was_seen: bool,
    waited_ms: int | None = None,
    collected_ms: int | None = None,
    failure: str | None = None,
) -> Health:
    """Judge the pipeline.

    Args:
        batch: The newest row of `batches`.
        process: The job's process on this machine; None if its lock is free.
        was_seen: A process of this machine held the job's lock since the dashboard started. Without that, a missing
            process proves nothing: the job may run on another machine.
        waited_ms: When the job was last seen to wait for usage, by wall clock.
        collected_ms: When that batch was collected, by the clock of `now_ms`; None = by the batch. A batch whose
            clock was ahead is as old as it has been known for, and not new for as long as the clock was ahead.
        failure: Why the tables cannot be read; None if they can.
    """
    at_ms = batch["processed_at_ms"] if collected_ms is None and batch is not None else collected_ms
    age_ms = None if batch is None or at_ms is None else max(now_ms - at_ms, 0)
    lag_ms = None if batch is None else max(batch["processed_at_ms"] - batch["evaluated_at_ms"], 0)
    ahead = 0 if batch is None else ahead_ms(batch["evaluated_at_ms"], now_ms)
    wait_age_ms = None if waited_ms is None else now_ms - waited_ms
    if failure is not None:
        found: tuple[HealthState, str, str] = ("unreadable", "The tables cannot be read", failure)
    elif age_ms is None:
        found = _without_batch(process, wait_age_ms)
    elif age_ms <= STALLED_AFTER_MS and (process is not None or not was_seen):
        found = ("live", "Live", _AHEAD.format(age_text(ahead)) if ahead else "")
    elif process is None:
        found = _gone(age_ms, was_seen)
    else:
        found = _without_news(age_ms, process, wait_age_ms)
    return Health(*found, age_ms, lag_ms, process, ahead)


def _without_batch(process: str | None, wait_age_ms: int | None) -> tuple[HealthState, str, str]:
    title = "The job has written no micro-batch yet"
    if process is None:
        command = command_text("run")
        return "starting", "No micro-batch is stored yet", f"Start the job: {command}."
    activity = activity_of(True, None, wait_age_ms, STALLED_AFTER_MS)
    if activity == "hung":
        return "hung", title, f"It hangs: {_last_look(process, wait_age_ms)}"
    return "starting", title, f"Its process {process} {'waits for usage' if activity == 'idle' else 'runs'}."


def _without_news(age_ms: int, process: str, wait_age_ms: int | None) -> tuple[HealthState, str, str]:
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


def _gone(age_ms: int, was_seen: bool) -> tuple[HealthState, str, str]:
    age = age_text(age_ms)
    if was_seen:
        return "down", "The job has ended", f"Its last micro-batch was {age} ago. {_LAPSE}"
    return "stalled", f"No micro-batch for {age}", f"No job runs on these tables on this machine. {_LAPSE}"


def _last_look(process: str, wait_age_ms: int | None) -> str:
    return f"Its process {process} last looked for usage {age_text(wait_age_ms or 0)} ago; its log may have the reason."


@dataclass(frozen=True, slots=True)
class State:
    """All of it.

    Attributes:
        now_ms: The instant.
        seq: Counts up with every value that differs in more than its time.
        quotas: Version in force, the newest version, scope and mode.
        batch: The newest row of `batches`; None before the first, and `cluster`, too.
        running: Rows of `running_throttles` with `holds_of`, level and owner; who is held longest comes first.
        recent: The newest rows of `throttle_events` with their owner, newest first.
        seconds: (second, produced bytes, fetched bytes, requests) of the last minutes.
        nearest: Of `Rates.nearest`, with the owner.
        counts: Of `Rates.counts`, with the number of active clients and what all of them used per second.
        rates_at_ms: The instant of the rates, in event time.
        min_hold_ms: `purgatory.min_hold_ms`: what a throttle must hold to count.
    """

    now_ms: int
    seq: int
    health: Health
    cluster: str | None = None
    quotas: Mapping[str, Any] = field(default_factory=dict)
    batch: Mapping[str, Any] | None = None
    running: Sequence[Mapping[str, Any]] = ()
    recent: Sequence[Mapping[str, Any]] = ()
    seconds: Sequence[tuple[int, int, int, int]] = ()
    nearest: Sequence[Mapping[str, Any]] = ()
    counts: Mapping[str, Any] = field(default_factory=dict)
    rates_at_ms: int = 0
    min_hold_ms: int = 1

    @property
    def held(self) -> set[tuple[str, str]]:
        """The clients that are held."""
        return {(row["user"], row["client_id"]) for row in self.running}

    def head(self) -> dict[str, Any]:
        """What every view needs: the time, the health, the versions."""
        return {
            "now_ms": self.now_ms,
            "seq": self.seq,
            "health": asdict(self.health),
            "as_of_ms": self.now_ms - (self.health.last_batch_age_ms or 0),
            "cluster": self.cluster,
            "quotas": dict(self.quotas),
            "batch_id": None if self.batch is None else self.batch["batch_id"],
        }

    def summary(self) -> dict[str, Any]:
        """The view Now: the verdict, totals, who is held, the nearest to their bound, the newest records by client."""
        throttled = [throttled_row(row) for row in self.running]
        held = self.held
        by_type = dict(Counter(row["quota_type"] for row in self.running))
        return {
            **self.head(),
            "rates_at_ms": self.rates_at_ms,
            "verdict": verdict(self.now_ms, throttled, self.nearest),
            "totals": {**self.counts, "throttled": len(throttled), "throttled_by_type": by_type},
            "throttled": throttled[:MOST_THROTTLED],
            "talkers": [talker_row(row, held) for row in self.nearest],
            "recent": collapsed(event_row(row) for row in self.recent)[:MOST_RECENT],
            "seconds": [list(second) for second in self.seconds],
        }
