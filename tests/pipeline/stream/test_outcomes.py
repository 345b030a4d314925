"""Decisions and facts of a batch come after its records, and a crash neither loses nor doubles a row of them."""

import shutil
from contextlib import suppress
from pathlib import Path

import pytest

from pipeline.failpoints import FailpointReached
from pipeline.tables.layout import create_missing
from pipeline.tables.reading import read_table
from tests.faults.generator import RATES
from tests.faults.hand_job import HandJob
from tests.faults.hand_load import Load

LITTLE, MUCH = 1, 1_000_000


def batch(job: HandJob, *produced_bytes: int) -> None:
    """A batch with an event of each size, or without usage; then some time passes."""
    events = (
        f'{{"event_time_ms":{job.clock.wall_ms},"user":"u","client_id":"c","produced_bytes":{size}}}'
        for size in produced_bytes
    )
    job.send(*((event.encode() for event in events) if produced_bytes else (b"[]",)))
    job.step()
    job.clock.advance(60)


def stored(job: HandJob, table: str) -> list[int]:
    """The batches with a row in a table, as a reader finds them now."""
    found: list[int] = read_table(f"{job.settings.tables.root}/{table}", ["batch_id"])["batch_id"].to_pylist()
    return sorted(found)


def test_when_a_batch_is_done_its_rows_are_stored(tmp_path: Path) -> None:
    job = HandJob(tmp_path, RATES)
    job.start()
    for sizes in ((LITTLE,), (), (MUCH,)):
        batch(job, *sizes)
    assert (stored(job, "usage"), stored(job, "batches"), stored(job, "decisions")) == ([0, 2], [0, 1, 2], [2])


@pytest.mark.parametrize("is_new_checkpoint", [False, True])
@pytest.mark.parametrize("point", ["usage.appended", "batch.published", "decisions.appended", "batches.appended"])
def test_a_start_completes_the_batch_that_was_cut_short(
    point: str, is_new_checkpoint: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = Load(tmp_path, monkeypatch)
    job = load.job
    batch(job, MUCH)
    with load.armed(point), suppress(FailpointReached):
        for _ in range(20):
            batch(job, LITTLE)
    job.start(with_checkpoint=not is_new_checkpoint)
    usage = stored(job, "usage")
    assert stored(job, "batches") == usage == sorted(set(usage))
    assert set(stored(job, "decisions")) == set(usage)
    load.come_to_rest()
    assert job.verdict().as_json()["differences"] == []


def test_decisions_that_are_missing_are_appended_with_a_start(tmp_path: Path) -> None:
    job = HandJob(tmp_path, RATES)
    job.start()
    batch(job, MUCH)
    decided = job.rows("decisions").to_pylist()
    shutil.rmtree(Path(job.settings.tables.root, "decisions"))
    create_missing(job.settings.tables.root)
    job.start()
    assert job.rows("decisions").to_pylist() == decided
    assert len(decided) == len(stored(job, "batches")) == 1
