"""Whether a job without batches waits for usage or hangs."""

from pathlib import Path

import pytest

from pipeline.activity import LATE_AFTER_MS, activity_of
from pipeline.job.heartbeat import Heartbeat, last_beat_ms, signs_of
from pipeline.job.lock import JobLock

NOW_MS = 1_700_000_000_000


@pytest.mark.parametrize(
    ("is_up", "batch_age_ms", "beat_age_ms", "expected"),
    [
        (True, 10_000, None, "working"),
        (True, 10_000, 999_999, "working"),
        (True, 10_001, 0, "idle"),
        (True, 10_001, LATE_AFTER_MS, "idle"),
        (True, 10_001, LATE_AFTER_MS + 1, "hung"),
        (True, None, 0, "idle"),
        (True, None, None, "unknown"),
        (True, 10_001, None, "unknown"),
        (False, 0, 0, "down"),
        (False, None, None, "down"),
    ],
)
def test_what_it_does_follows_from_its_process_its_batch_and_when_it_waited(
    is_up: bool, batch_age_ms: int | None, beat_age_ms: int | None, expected: str
) -> None:
    assert activity_of(is_up, batch_age_ms, beat_age_ms, 10_000) == expected


@pytest.mark.parametrize("root", ["tables", "s3://bucket/tables"])
def test_a_beat_is_found_by_who_looks_and_forgotten_by_the_next_life(root: str, tmp_path: Path) -> None:
    tables = root if "://" in root else str(tmp_path / root)
    if "://" not in root:
        (tmp_path / root).mkdir()
    place = (tmp_path, "kquota", tables)
    heart, signs = Heartbeat(*place), signs_of(*place)
    assert last_beat_ms(*place) is None
    heart.beat(NOW_MS)
    assert last_beat_ms(*place) == NOW_MS
    assert not signs.is_idle(NOW_MS), "no process has the lock"
    with JobLock(*place):
        assert signs.is_idle(NOW_MS + LATE_AFTER_MS)
        assert not signs.is_idle(NOW_MS + LATE_AFTER_MS + 1)
        Heartbeat(*place).forget()
        assert not signs.is_idle(NOW_MS)


@pytest.mark.parametrize(("at_ms", "is_due"), [(999, False), (1_000, True), (-1, True)])
def test_it_beats_once_a_second_and_at_once_when_the_clock_is_set_back(
    at_ms: int, is_due: bool, tmp_path: Path
) -> None:
    heart = Heartbeat(tmp_path, "kquota", "s3://bucket")
    heart.beat(NOW_MS)
    assert heart.is_due(NOW_MS + at_ms) is is_due


def test_a_disk_that_takes_nothing_is_told_once_and_ends_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    heart = Heartbeat(tmp_path / "missing", "kquota", "s3://bucket")
    heart.beat(NOW_MS)
    heart.beat(NOW_MS + 1_000)
    assert len(caplog.messages) == 1
    assert "can not be written (No such file or directory)" in caplog.text


def test_a_damaged_beat_is_none(tmp_path: Path) -> None:
    (tmp_path / "kquota.heartbeat").write_text("soon")
    assert last_beat_ms(tmp_path, "kquota", "s3://bucket") is None
