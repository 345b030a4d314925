"""What the dashboard finds in tables that come, change and stand still."""

from pathlib import Path

from pipeline.dashboard.reader import TablesReader
from pipeline.job.status import JobSigns
from tests.pipeline.dashboard.lived_tables import LivedTables
from tests.pipeline.dashboard.shop import QUOTAS, SENDERS, START_MS


def test_without_tables_it_says_so_and_finds_them_later(tmp_path: Path) -> None:
    root = tmp_path / "tables"
    reader = TablesReader(str(root), JobSigns(lambda: None))
    assert reader.look(START_MS).health.state == "unreadable"
    tables = LivedTables(tmp_path, QUOTAS, SENDERS, START_MS)
    assert reader.look(tables.now_ms).health.state == "starting"
    tables.live(3)
    state = reader.look(tables.now_ms)
    assert state.health.state == "live"
    assert state.counts["active_clients"] == len(SENDERS)


def test_a_look_at_what_did_not_change_has_the_same_number(tmp_path: Path) -> None:
    tables = LivedTables(tmp_path, QUOTAS, SENDERS, START_MS)
    tables.live(2)
    reader = TablesReader(tables.root, JobSigns(lambda: "7"))
    first = reader.look(tables.now_ms)
    assert reader.look(tables.now_ms + 500).seq == first.seq
    tables.live(1)
    assert reader.look(tables.now_ms).seq > first.seq


def test_a_job_that_dies_and_comes_back_is_seen(tmp_path: Path) -> None:
    tables = LivedTables(tmp_path, QUOTAS, SENDERS, START_MS)
    tables.live(2)
    process: list[str | None] = ["7", "7", None, None, "8", "8"]
    reader = TablesReader(tables.root, JobSigns(lambda: process.pop(0)))
    states = [reader.look(tables.now_ms).health.state for _ in range(2)]
    states += [reader.look(tables.now_ms + ms).health.state for ms in (100, 9_000)]
    states.append(reader.look(tables.now_ms + 9_500).health.state)
    tables.job.clock.advance(9_800)
    tables.live(1)
    states.append(reader.look(tables.now_ms).health.state)
    assert states == ["live", "live", "down", "down", "stalled", "live"]


def test_a_job_that_was_seen_to_wait_for_usage_is_quiet_until_it_waits_no_more(tmp_path: Path) -> None:
    tables = LivedTables(tmp_path, QUOTAS, SENDERS, START_MS)
    tables.live(2)
    waited_ms = tables.now_ms + 9_000
    reader = TablesReader(tables.root, JobSigns(lambda: "7", lambda: waited_ms))
    states = [reader.look(tables.now_ms + age_ms).health.state for age_ms in (0, 10_000, 12_100, 40_000)]
    assert states == ["live", "quiet", "stalled", "hung"]
