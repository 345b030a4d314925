"""Wall clocks that are set, forward or back, while a job runs or between two of its lives."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.failpoints import FailpointReached
from pipeline.replay.verification import verify
from pipeline.tables.quotas.source import QuotaSource
from pipeline.tables.throttles import story_of
from tests.faults.generator import RATES
from tests.faults.hand_job import HandJob, Load
from tests.pipeline.cli.running import kquota

STEP_MS = 500
LONG = pytest.mark.long
# A step within the age of decisions (60 s) and one far beyond it.
STEPS_MS = [20_000, 3_600_000]
BOTH_WAYS_MS = (20_000, -20_000, 3_600_000, -3_600_000)
# Each step with or without a kill, and of each both ways; the other half is for the long run.
QUICK = {(20_000, True), (-20_000, False), (3_600_000, False), (-3_600_000, True)}
STEPS_AND_KILLS = [
    pytest.param(by_ms, is_killed, marks=() if (by_ms, is_killed) in QUICK else LONG)
    for by_ms in BOTH_WAYS_MS
    for is_killed in (False, True)
]
BOUND = int(RATES["producer_byte_rate"])


class Clients:
    """A quiet client at a tenth of its quota, and an offender."""

    def __init__(self, job: HandJob) -> None:
        self.job = job
        self.offender_bytes = 0

    def go(self, seconds: float) -> None:
        """Let time pass, with usage of both in every trigger."""
        for _ in range(int(seconds * 1_000) // STEP_MS):
            self.job.clock.advance(STEP_MS)
            self.job.send(self._event("quiet", BOUND // 20), self._event("offender", self.offender_bytes))
            self.job.step()

    def told(self, user: str, since: int = 0) -> list[str]:
        """Actions of the records about a client."""
        return [record.action for record in self.job.broker.records[since:] if record.user == user]

    def _event(self, user: str, produced_bytes: int) -> bytes:
        event = {"event_time_ms": self.job.broker_ms, "client_id": "c", "user": user, "produced_bytes": produced_bytes}
        return json.dumps(event).encode()


def begun(folder: Path) -> Clients:
    job = HandJob(folder, RATES, in_memory=True)
    job.start()
    clients = Clients(job)
    clients.go(5)
    return clients


def on_driver_and_broker(job: HandJob, by_ms: int) -> None:
    job.set_clocks(by_ms, by_ms)


def on_driver(job: HandJob, by_ms: int) -> None:
    job.set_clocks(driver_by_ms=by_ms)


def on_broker(job: HandJob, by_ms: int) -> None:
    job.set_clocks(broker_by_ms=by_ms)


def differences(job: HandJob) -> list[str]:
    return [line for line in job.verdict().told() if not line.startswith("pairs: lost: the release of")]


@pytest.mark.parametrize(("by_ms", "is_killed"), STEPS_AND_KILLS)
def test_after_both_clocks_are_set_an_offender_is_held_within_seconds(
    by_ms: int, is_killed: bool, tmp_path: Path
) -> None:
    clients = begun(tmp_path)
    for step_ms in (by_ms, -by_ms):
        on_driver_and_broker(clients.job, step_ms)
        if is_killed:
            clients.job.start()
        clients.go(3)
        assert "quiet" not in {record.user for record in clients.job.broker.records}
        known, clients.offender_bytes = len(clients.job.broker.records), 50 * BOUND // 2
        clients.go(3)
        assert "throttle" in clients.told("offender", known)
        clients.offender_bytes = 0
    clients.go(30)
    assert clients.told("quiet") == []
    assert differences(clients.job) == []


@pytest.mark.parametrize("step", [on_driver, on_broker])
@pytest.mark.parametrize(("by_ms", "is_killed"), STEPS_AND_KILLS)
def test_while_only_one_clock_is_set_nobody_is_held_wrongly_and_afterwards_an_offender_is(
    by_ms: int, step: Callable[[HandJob, int], None], is_killed: bool, tmp_path: Path
) -> None:
    clients = begun(tmp_path)
    for step_ms in (by_ms, -by_ms):
        step(clients.job, step_ms)
        if is_killed:
            clients.job.start()
        clients.go(10)
    assert clients.job.broker.records == []
    clients.offender_bytes = 50 * BOUND // 2
    clients.go(3)
    assert "throttle" in clients.told("offender")
    assert clients.told("quiet") == []
    assert differences(clients.job) == []


@pytest.mark.parametrize("step_ms", STEPS_MS)
@pytest.mark.parametrize("is_killed", [False, True])
def test_a_debt_outlives_a_clock_that_is_set_back(step_ms: int, is_killed: bool, tmp_path: Path) -> None:
    clients = begun(tmp_path)
    clients.offender_bytes = 10 * BOUND
    clients.go(2)
    debt_seconds = -(clients.job.broker.records[-1].tokens or 0) / BOUND
    clients.offender_bytes, known = 0, len(clients.job.broker.records)
    on_driver_and_broker(clients.job, -step_ms)
    if is_killed:
        clients.job.start()
    clients.go(debt_seconds - 3)
    assert "release" not in clients.told("offender", known)
    clients.go(5)
    assert clients.told("offender", known)[-1] == "release"
    assert differences(clients.job) == []


@pytest.mark.parametrize("later_ms", [0, 1])
def test_an_epoch_begins_when_now_is_before_the_last_batch_by_more_than_the_ring(later_ms: int, tmp_path: Path) -> None:
    clients = begun(tmp_path)
    last_ms = clients.job.decider.last.evaluated_at_ms
    on_driver_and_broker(clients.job, -STEP_MS - clients.job.settings.engine.late_after_ms - 1 + later_ms)
    clients.go(0.5)
    last = clients.job.decider.last
    assert last.time_epoch == 1 - later_ms
    assert (last.evaluated_at_ms < last_ms) == (not later_ms)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=LONG) for seed in (1, 2, 3))])
def test_clocks_are_set_at_random_with_kills_around(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load = Load(tmp_path, monkeypatch, seed, in_memory=True)
    points = ("usage.appended", "batch.decided", "outbox.appended", "batches.appended", "check.appended")
    for number, by_ms in enumerate((20_000, -20_000, 3_600_000, -120_000, -3_600_000, 120_000)):
        for _ in range(12):
            load.step()
        on_driver_and_broker(load.job, by_ms)
        if (number + seed) % 2:
            with load.armed(points[(number + seed) % len(points)]):
                try:
                    for _ in range(40):
                        load.step()
                except FailpointReached:
                    load.job.start()
    load.come_to_rest()
    assert load.job.verdict({"epochs": 2}).told() == []


@pytest.mark.parametrize("by_ms", [-20_000, pytest.param(3_600_000, marks=LONG)])
def test_decisions_before_and_after_a_clock_step_can_be_verified_and_simulated(
    by_ms: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = HandJob(tmp_path, RATES, in_memory=True)
    job.start()
    clients = Clients(job)
    clients.offender_bytes = 4 * BOUND
    for step_ms in (0, by_ms, -by_ms):
        on_driver_and_broker(job, step_ms)
        clients.go(6)
    job.store()
    root, quotas = job.settings.tables.root, QuotaSource(job.quota_table)
    found = verify(root, "cluster", quotas.at, 0, 2**62, lambda *_: None)
    assert (found.batches, found.mismatches) == (36, [])
    assert found.decisions == job.rows("decisions").num_rows > 30
    recorded = job.rows("decisions").to_pylist()
    for number in (0, len(recorded) // 2, -1):
        story = story_of(root, recorded[number])
        assert sum(size for _, size in story.samples) == pytest.approx(
            recorded[number]["observed"] * recorded[number]["window_ms"] / 1_000
        )
    candidate = tmp_path / "candidate.json"
    candidate.write_text(json.dumps([{"user": "<default>", "client_id": "", "producer_byte_rate": 2 * BOUND}]))
    monkeypatch.setenv("KQUOTA_ENGINE__NUM_SAMPLES", "4")
    monkeypatch.setenv("KQUOTA_ENGINE__SAMPLE_WINDOW_MS", "500")
    span = ("--since", str(job.starts[0] - 7_200_000), "--until", str(job.starts[0] + 7_200_000))
    simulated = kquota("what-if", "-f", str(candidate), *span, "--tables", root)
    assert simulated.exit_code == 0, simulated
