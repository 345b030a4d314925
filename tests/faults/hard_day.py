"""A day of a job on which everything happens once that a verdict must have seen."""

import json
from collections.abc import Callable
from typing import Final

from tests.faults.evidence import Message
from tests.faults.generator import OFFENDERS
from tests.faults.hand_load import Load

AT_LEAST: Final = {
    **{"batches": 30, "messages": 300, "usage": 300, "dead_letters": 20, "clamped_events": 5, "late_events": 8},
    **{"decisions": 20, "applied": 20, "snapshots": 3, "buckets": 30, "full_buckets": 3},
    **{"begins": 20, "extensions": 1, "renewals": 30, "looks": 40, "releases": 10, "edits": 10},
    **{"publish_seq": 80, "topic": 80, "pairs": 80, "epochs": 2, "old_batches": 1},
}
"""What the verifier must have compared of it."""


def live(load: Load) -> None:
    """Load, restarts, a kill, edits, late usage, clocks ahead and set back, a batch that is too old, and rest."""
    job = load.job
    _steps(load, 6)
    job.start()
    _steps(load, 3)
    load.run_until_killed_at("outbox.appended")
    load.edit(0.5)
    job.start()
    _steps(load, 3)
    _send_late(load)
    _steps(load, 2)
    load.edit(2.0)
    _steps(load, 2)
    _send_from_a_clock_ahead(load)
    _steps(load, 2)
    _start_when_throttles_have_ended(load)
    _set_clocks_back(load)
    _edit_during_a_batch(load, lambda: load.edit(1.0))
    _steps(load, 3)
    load.edit(4.0)
    load.come_to_rest()
    _come_back_late(load)
    job.send(*_burst(job.clock.wall_ms))
    _steps(load, 1)
    load.edit(50.0)
    _steps(load, 4)
    load.come_to_rest()


def _steps(load: Load, count: int) -> None:
    for _ in range(count):
        load.step()


def _burst(at_ms: int, who: str = "offender") -> list[bytes]:
    """A large event of each of eight users, above two of its quotas, with a debt of many slices."""
    event = {"event_time_ms": at_ms, "client_id": "app", "produced_bytes": 120_000, "fetched_bytes": 300_000}
    return [json.dumps({**event, "user": f"{who}-{number}"}).encode() for number in range(OFFENDERS)]


def _send_late(load: Load) -> None:
    """Usage of five seconds ago, which the rates know no more."""
    load.job.send(*_burst(load.job.clock.wall_ms - 5_000))
    load.step()


def _send_from_a_clock_ahead(load: Load) -> None:
    """Events and append times of a broker whose clock is five minutes ahead."""
    job = load.job
    ahead_ms = job.clock.wall_ms + 300_000
    for value in _burst(ahead_ms):
        job.messages.append(Message(0, len(job.messages), ahead_ms, b"", value))
    load.step()


def _start_when_throttles_have_ended(load: Load) -> None:
    """Nobody was there to look at throttles that end; their clients still owe."""
    job = load.job
    job.send(*_burst(job.clock.wall_ms))
    load.step()
    job.clock.advance(2_500)
    job.start()
    load.step()


def _set_clocks_back(load: Load) -> None:
    """Once while the job runs, once between two of its lives, with throttles and debts."""
    job = load.job
    starts: tuple[Callable[[], object], ...] = (lambda: None, job.start)
    for start in starts:
        job.send(*_burst(job.clock.wall_ms))
        load.step()
        job.set_clocks(-5_000, -5_000)
        start()
        _steps(load, 12)


def _edit_during_a_batch(load: Load, edit: Callable[[], None]) -> None:
    """The quotas are edited, and the edit is in force, between a batch's pin and its decision."""
    job = load.job

    def meanwhile() -> None:
        edit()
        job.quotas.poll()
        job.purgatory.quotas_changed(job.quotas.pin())

    job.send(*_burst(job.clock.wall_ms, "newcomer"))
    job.meanwhile = meanwhile
    load.step()
    job.meanwhile = lambda: None


def _come_back_late(load: Load) -> None:
    """The job was down for so long that what it finds is too old to be published."""
    job = load.job
    job.send(*_burst(job.clock.wall_ms))
    job.clock.advance(job.settings.stream.max_decision_age_ms + 1)
    job.start()
    job.step()
    job.start()  # its next batch writes down what is owed
