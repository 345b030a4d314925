"""Load and faults for a `HandJob`, and a day on which everything happens once that a verdict must have seen."""

import json
import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest

from pipeline import failpoints
from pipeline.errors import ClusterUnreachable
from pipeline.failpoints import FAILPOINTS, Failpoint, FailpointReached
from tests.faults.evidence import Message
from tests.faults.generator import OFFENDERS, RATES, Content
from tests.faults.hand_job import HandJob

_STEP_MS: Final = 200
_DOWN_MS: Final = 700


class Load:
    """A job under load that is killed where a test wants it."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, seed: int = 1, in_memory: bool = False) -> None:
        self.job = HandJob(folder, RATES, in_memory)
        self.content = Content(seed, garbage_share=0.05, skew_ms=2_000)
        self._monkeypatch = monkeypatch
        self.job.start()

    def step(self, waited_ms: int = 0) -> None:
        """One trigger with a dozen messages, after a time in which messages came and none was read."""
        for _ in range(waited_ms // _STEP_MS):
            self._send(3)
        self._send(12)
        self.job.step()

    def _send(self, count: int) -> None:
        self.job.send(*(self.content.message(self.job.clock.wall_ms)[0] for _ in range(count)))
        self.job.clock.advance(_STEP_MS)

    def run_until_killed_at(self, point: str) -> None:
        """Take steps until the job has died there. Then it is down for a moment."""
        with self.armed(point), pytest.raises(FailpointReached):
            _repeat(self.job.start if point.startswith("start.") else self.step)
        self.job.clock.advance(_DOWN_MS)

    def armed(self, point: str, nth: int = 1) -> "_Armed":
        """Within the block the job dies when it comes to a failpoint for the nth time."""
        return _Armed(self._monkeypatch, Failpoint(f"{point}:{nth}:raise"))

    def edit(self, factor: float) -> None:
        """Multiply all quotas by a factor."""
        self.job.edit({name: rate * factor for name, rate in RATES.items()})

    def come_to_rest(self) -> None:
        """Send no more messages and wait until every throttle has ended."""
        self.job.step()
        for _ in range(600):
            if not len(self.job.purgatory):
                return
            self.job.clock.advance(_STEP_MS // 4)
            self.job.step()
        pytest.fail("the purgatory did not become empty")


class Trouble:
    """Random faults, the same for the same seed: kills, transactions that fail, a broker that is away, quota edits."""

    def __init__(self, load: Load, seed: int) -> None:
        self._load = load
        self._job = load.job
        self._random = random.Random(seed)

    def run(self, kills: int) -> None:
        """Run this many lives of the job with faults, and then one without."""
        for _ in range(kills):
            point = self._random.choice(list(FAILPOINTS))
            self._live(point)
            # The only thing that a lost checkpoint may repeat: dead letters of a batch whose usage was not stored yet.
            self._start_again(point == "dead_letters.appended" or self._random.random() < 0.8)
        self._job.broker.is_reachable = True
        for _ in range(3):
            self._load.step()

    def _live(self, point: str) -> None:
        """Take up to 30 steps, until the job is killed."""
        with self._load.armed(point, self._random.choice((1, 1, 2, 5))), suppress(FailpointReached):
            for _ in range(30):
                self._one_of(self._edit, self._fail_transaction, self._lose_broker, self._lose_marker)
                # Most of a batch of many seconds is late: its usage gets into the buckets and not into the windows.
                self._load.step(self._random.choice((0, 0, 0, 3_000, 20_000)))

    def _start_again(self, keeps_checkpoint: bool) -> None:
        """Start again after some time. Perhaps the checkpoint is gone; perhaps the job dies again during its start."""
        point = self._random.choice([name for name in FAILPOINTS if name.startswith("start.")])
        for attempt in range(20):
            self._job.clock.advance(self._random.choice((300, 2_000, 9_000)))
            self._one_of(self._edit)
            with (
                self._load.armed(point if attempt == 0 else "batch.pinned"),
                suppress(FailpointReached, ClusterUnreachable),
            ):
                self._job.start(with_checkpoint=keeps_checkpoint)
                return
            self._job.broker.is_reachable = self._random.random() < 0.5
        self._job.broker.is_reachable = True
        self._job.start(with_checkpoint=keeps_checkpoint)

    def _one_of(self, *troubles: Callable[[], None]) -> None:
        if self._random.random() < 0.3:
            self._random.choice(troubles)()

    def _edit(self) -> None:
        self._load.edit(self._random.choice((0.5, 1.0, 2.0)))

    def _fail_transaction(self) -> None:
        self._job.topic.fail_next = self._random.choice(("lost", "late"))

    def _lose_broker(self) -> None:
        self._job.broker.is_reachable = self._random.random() < 0.4

    def _lose_marker(self) -> None:
        if self._job.broker.records:
            self._job.broker.marker = None


class _Armed:
    def __init__(self, monkeypatch: pytest.MonkeyPatch, failpoint: Failpoint) -> None:
        self._monkeypatch = monkeypatch
        self._failpoint = failpoint

    def __enter__(self) -> None:
        self._monkeypatch.setattr(failpoints, "_armed", self._failpoint)

    def __exit__(self, *_: object) -> None:
        self._monkeypatch.setattr(failpoints, "_armed", None)


def _repeat(step: Callable[[], None]) -> None:
    for _ in range(80):
        step()


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
    _owe_little(load)
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


def _owe_little(load: Load) -> None:
    """Users who owe a little more than nothing and up to two seconds; again a little later; then an edit raises T."""
    for produced_bytes, each_bytes in ((20_000, 1_000), (3_000, 0), (3_000, 0)):
        about = {"event_time_ms": load.job.clock.wall_ms, "client_id": "app"}
        for number in range(20):
            event = {**about, "user": f"little-{number}", "produced_bytes": produced_bytes + number * each_bytes}
            load.job.send(json.dumps(event).encode())
        load.step()
    load.edit(3.0)
    load.step()


def _come_back_late(load: Load) -> None:
    """The job was down for so long that what it finds is too old to be published."""
    job = load.job
    job.send(*_burst(job.clock.wall_ms))
    job.clock.advance(job.settings.stream.max_decision_age_ms + 1)
    job.start()
    job.step()
    job.start()  # its next batch writes down what is owed
