"""The decisions and the facts of batches are appended together, and a crash neither loses nor doubles a row of them."""

import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pipeline.errors import PipelineError
from pipeline.failpoints import FailpointReached
from pipeline.settings.model import EngineSettings
from pipeline.stream.batch_facts import BatchFacts
from pipeline.stream.job_tables import Outcome, Outcomes
from pipeline.tables.layout import TABLES, create_missing
from pipeline.tables.reading import read_table
from pipeline.throttle.decider import Decided
from pipeline.throttle.shapes import NO_PUBLICATIONS
from quota.replay import Evaluation
from schemas.arrow import arrow_schema
from tests.fakes.table import MemoryTable, MemoryWriter
from tests.faults.generator import RATES
from tests.faults.hand_job import HandJob
from tests.faults.hand_load import Load

TRIGGER_MS = 200
LITTLE, MUCH = 1, 1_000_000
NAMES = ("decisions", "batches")


def batch(job: HandJob, *produced_bytes: int, rest_ms: int = TRIGGER_MS) -> None:
    """A batch with an event of each size, or without usage; then some time passes."""
    events = (
        f'{{"event_time_ms":{job.clock.wall_ms},"user":"u","client_id":"c","produced_bytes":{size}}}'
        for size in produced_bytes
    )
    job.send(*((event.encode() for event in events) if produced_bytes else (b"[]",)))
    job.step()
    job.clock.advance(rest_ms)


def stored(job: HandJob, table: str) -> list[int]:
    """The batches with a row in a table, as a reader finds them now."""
    found: list[int] = read_table(f"{job.settings.tables.root}/{table}", ["batch_id"])["batch_id"].to_pylist()
    return sorted(found)


def test_batches_of_a_second_have_one_commit(tmp_path: Path) -> None:
    job = HandJob(tmp_path, RATES)
    job.start()
    before = job.tables.batches.version
    for _ in range(10):
        batch(job, LITTLE)
    assert stored(job, "usage") == list(range(10))
    assert stored(job, "batches") == list(range(6)), "the first at once, the next five a second later"
    assert job.tables.batches.version == before + 2


def test_what_waits_is_appended_when_no_batch_comes_any_more(tmp_path: Path) -> None:
    job = HandJob(tmp_path, RATES)
    job.start()
    for _ in range(3):
        batch(job, LITTLE)
    job.clock.advance(1_000 - 3 * TRIGGER_MS - 1)
    for after_ms, expected in ((0, [0]), (1, [0, 1, 2])):
        job.clock.advance(after_ms)
        job.tables.outcomes.append_if_due(job.clock.now())
        assert stored(job, "batches") == expected


@pytest.mark.parametrize("produced_bytes", [(), (MUCH,)], ids=["without usage", "with a throttle"])
def test_a_batch_that_needs_its_rows_at_once_has_them(produced_bytes: tuple[int, ...], tmp_path: Path) -> None:
    job = HandJob(tmp_path, RATES)
    job.start()
    for sizes in ((LITTLE,), (LITTLE,), produced_bytes):
        batch(job, *sizes)
    assert stored(job, "batches") == [0, 1, 2]
    assert set(stored(job, "decisions")) == ({2} if produced_bytes else set())


@pytest.mark.parametrize("point", ["batch.pinned", "usage.appended", "batch.published", "decisions.appended"])
def test_a_start_completes_all_batches_that_waited(point: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load = Load(tmp_path, monkeypatch)
    job = load.job
    batch(job, MUCH)
    for number in range(30):  # it is held, so in the end they decide the same and publish nothing
        batch(job, LITTLE, rest_ms=60)
        if number > 12 and len(stored(job, "usage")) == len(stored(job, "batches")) + 3:
            break
    with load.armed(point), suppress(FailpointReached):
        for _ in range(20):
            batch(job, LITTLE, rest_ms=20)
    usage = stored(job, "usage")
    assert len(usage) > len(stored(job, "batches")) + 2
    job.start()
    assert stored(job, "batches") == sorted(set(usage))
    assert set(stored(job, "decisions")) == set(usage)
    load.come_to_rest()
    assert job.verdict().as_json()["differences"] == []


def test_a_start_decides_the_oldest_batch_that_waited_with_all_its_windows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = Load(tmp_path, monkeypatch)
    job = load.job
    batch(job, MUCH, rest_ms=1_000)
    batch(job, LITTLE, rest_ms=700)
    job.start()
    for rest_ms in (200, 700, 100):  # at 1.7 s, where the buckets are stored, 1.9 s and 2.6 s
        batch(job, LITTLE, rest_ms=rest_ms)
    assert stored(job, "batches") == [0, 1, 2], "at 1.9 s the quota is exceeded, at 2.6 s the windows are over"
    job.start()
    assert stored(job, "decisions") == [0, 1, 2, 3]
    load.come_to_rest()
    assert job.verdict().as_json()["differences"] == []


def test_a_start_appends_the_decisions_that_an_earlier_release_has_left_out(tmp_path: Path) -> None:
    job = HandJob(tmp_path, RATES)
    job.start()
    batch(job, MUCH)
    decided = job.rows("decisions").to_pylist()
    shutil.rmtree(Path(job.settings.tables.root, "decisions"))
    create_missing(job.settings.tables.root)
    job.start()
    assert job.rows("decisions").to_pylist() == decided
    assert len(decided) == len(stored(job, "batches")) == 1


def test_buckets_are_stored_after_the_outcomes_of_all_batches_before(tmp_path: Path) -> None:
    job = HandJob(tmp_path, RATES)
    job.start()
    for _ in range(4):
        batch(job, LITTLE)
    job.clock.advance(600)
    assert stored(job, "batches") == [0]
    job.clock.advance(job.settings.stream.sensor_state_interval_ms)
    assert job.tables.sensor_state.write_if_due(job.decider, job.clock.now())
    assert stored(job, "batches") == [0, 1, 2, 3]


class FailingOnce(MemoryWriter):
    """Its first append fails."""

    fails = True

    def append(self, *arguments: Any) -> bool:
        if self.fails:
            self.fails = False
            msg = "the disk is full"
            raise PipelineError(msg, "make room")
        return super().append(*arguments)


class Stored:
    """Both tables in memory; the first append to one of them fails."""

    def __init__(self, failing: str) -> None:
        self._tables = {name: MemoryTable(name, arrow_schema(TABLES[name].model).empty_table()) for name in NAMES}
        self._writers = [
            (FailingOnce if name == failing else MemoryWriter)(table, "job") for name, table in self._tables.items()
        ]
        for writer in self._writers:
            writer.raise_epoch(1)

    def outcomes(self) -> Outcomes:
        """Of a driver that starts now."""
        return Outcomes(self._writers[0], self._writers[1], "test")

    def batches(self) -> list[list[int]]:
        """Of the rows of each table."""
        return [table.rows["batch_id"].to_pylist() for table in self._tables.values()]


@pytest.mark.parametrize("failing", NAMES)
@pytest.mark.parametrize("restarts", [False, True])
def test_batches_that_failed_together_have_their_rows_once(failing: str, restarts: bool) -> None:
    stored = Stored(failing)
    outcomes = stored.outcomes()
    for number in (0, 1):
        outcomes.add(outcome(number))
    with pytest.raises(PipelineError, match="full"):
        outcomes.append()
    if restarts:
        stored.outcomes().complete([outcome(0), outcome(1), outcome(2)])
    else:
        outcomes.add(outcome(2))
        outcomes.append()
    assert stored.batches() == [[0, 1, 2], [0, 1, 2]]


def outcome(batch_id: int) -> Outcome:
    """A batch with one decision."""
    evaluation = Evaluation("query", batch_id, batch_id, 1)
    facts = BatchFacts(evaluation, batch_id, "", "", EngineSettings().model_dump_json(), 1, 0, 0, 0, 0)
    names = dict.fromkeys(("broker_id", "user", "client_id", "sensor_user", "sensor_client_id", "decision_id"), "u")
    numbers = dict.fromkeys(("observed", "bound", "window_ms", "raw_throttle_time_ms", "throttle_time_ms", "level"), 1)
    row = {**names, **numbers, "quota_type": "producer_byte_rate", "mode": "enforce", "applied": True}
    return Outcome(facts, Decided(pa.Table.from_pylist([row]), NO_PUBLICATIONS))
