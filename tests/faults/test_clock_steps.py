"""Wall clocks that are set, forward or back, while a job runs or between two of its lives."""

import json
from itertools import product
from pathlib import Path

import pytest

from pipeline.replay.verification import verify
from pipeline.tables.quotas.source import QuotaSource
from pipeline.tables.throttles import story_of
from tests.faults.generator import RATES
from tests.faults.hand_job import HandJob
from tests.pipeline.cli.running import kquota

STEP_MS = 500
LONG = pytest.mark.long
BOUND = int(RATES["producer_byte_rate"])


class Clients:
    """A quiet client at a tenth of its quota, and an offender."""

    def __init__(self, folder: Path) -> None:
        self.job = HandJob(folder, RATES, in_memory=True)
        self.job.start()
        self.offender_bytes = 0

    def go(self, seconds: float) -> None:
        """Let time pass, with usage of both in every trigger."""
        for _ in range(int(seconds * 1_000) // STEP_MS):
            self.job.clock.advance(STEP_MS)
            self.job.send(self._event("quiet", BOUND // 20), self._event("offender", self.offender_bytes))
            self.job.step()

    def is_throttled_at_25_times_its_bound(self) -> bool:
        known, self.offender_bytes = len(self.job.broker.records), 50 * BOUND // 2
        self.go(3)
        self.offender_bytes = 0
        return "throttle" in {record.action for record in self.job.broker.records[known:]}

    def _event(self, user: str, produced_bytes: int) -> bytes:
        event = {"event_time_ms": self.job.broker_ms, "client_id": "c", "user": user, "produced_bytes": produced_bytes}
        return json.dumps(event).encode()


# Each clock, each step (within the age of decisions, 60 s, or far beyond it), with or without a kill.
QUICK = {
    *(("both", -3_600_000, True), ("both", 20_000, False), ("driver", 20_000, True), ("driver", 3_600_000, False)),
    *(("broker", -20_000, False), ("broker", -3_600_000, True)),
}
SET = [
    pytest.param(*one, marks=() if one in QUICK else LONG)
    for one in product(("both", "driver", "broker"), (20_000, -20_000, 3_600_000, -3_600_000), (False, True))
]


@pytest.mark.parametrize(("clocks", "by_ms", "is_killed"), SET)
def test_after_clocks_are_set_an_offender_is_held_within_seconds_and_nobody_else(
    clocks: str, by_ms: int, is_killed: bool, tmp_path: Path
) -> None:
    clients = Clients(tmp_path)
    clients.go(5)
    for step_ms in (by_ms, -by_ms):
        clients.job.set_clocks(step_ms if clocks != "broker" else 0, step_ms if clocks != "driver" else 0)
        if is_killed:
            clients.job.start()
        clients.go(3 if clocks == "both" else 10)
        if clocks == "both" or step_ms == -by_ms:
            assert clients.is_throttled_at_25_times_its_bound()
        else:
            assert clients.job.broker.records == [], "while only one clock is set"
    clients.go(30)
    assert {record.user for record in clients.job.broker.records} == {"offender"}
    assert [line for line in clients.job.verdict().told() if not line.startswith("pairs: lost: the release of")] == []


@pytest.mark.parametrize("later_ms", [0, 1])
def test_an_epoch_begins_when_now_is_before_the_last_batch_by_more_than_the_ring(later_ms: int, tmp_path: Path) -> None:
    clients = Clients(tmp_path)
    clients.go(5)
    last_ms = clients.job.decider.last.evaluated_at_ms
    by_ms = -STEP_MS - clients.job.settings.engine.late_after_ms - 1 + later_ms
    clients.job.set_clocks(by_ms, by_ms)
    clients.go(0.5)
    last = clients.job.decider.last
    assert last.time_epoch == 1 - later_ms
    assert (last.evaluated_at_ms < last_ms) == (not later_ms)


def test_decisions_before_and_after_a_clock_step_can_be_verified_told_and_simulated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clients = Clients(tmp_path)
    job, clients.offender_bytes = clients.job, 4 * BOUND
    for by_ms in (0, -20_000, 20_000):
        job.set_clocks(by_ms, by_ms)
        clients.go(6)
    job.store()
    root = job.settings.tables.root
    found = verify(root, "cluster", QuotaSource(job.quota_table).at, 0, 2**62, lambda *_: None)
    recorded = job.rows("decisions").to_pylist()
    assert (found.batches, found.mismatches, found.decisions) == (36, [], len(recorded))
    assert len(recorded) > 30
    for decision in (recorded[0], recorded[len(recorded) // 2], recorded[-1]):
        used = sum(size for _, size in story_of(root, decision).samples)
        assert used == pytest.approx(decision["observed"] * decision["window_ms"] / 1_000)
    candidate = tmp_path / "candidate.json"
    candidate.write_text(json.dumps([{"user": "<default>", "client_id": "", "producer_byte_rate": 2 * BOUND}]))
    monkeypatch.setenv("KQUOTA_ENGINE__NUM_SAMPLES", "4")
    monkeypatch.setenv("KQUOTA_ENGINE__SAMPLE_WINDOW_MS", "500")
    span = ("--since", str(job.starts[0] - 7_200_000), "--until", str(job.starts[0] + 7_200_000))
    (found,) = json.loads(kquota("what-if", "-f", str(candidate), *span, "--tables", root, "-o", "json").stdout)
    # Of the newest time epoch alone; those of the first one lie in its span, too.
    assert (found["about"]["evaluations"], found["clients"][0]["windows_happened"]) == (24, 24)
