"""What the dashboard finds in tables that come, change and stand still."""

from pathlib import Path

from pipeline.dashboard.reader import TablesReader
from pipeline.job.status import JobSigns
from pipeline.settings.model import Settings, StreamSettings, TablesSettings
from tests.pipeline.dashboard.lived_tables import LivedTables
from tests.pipeline.dashboard.shop import QUOTAS, SENDERS, START_MS, reader_of


def test_without_tables_it_says_so_and_finds_them_later(tmp_path: Path) -> None:
    root = tmp_path / "tables"
    reader = reader_of(str(root))
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
    reader = reader_of(tables.root)
    first = reader.look(tables.now_ms)
    assert reader.look(tables.now_ms + 500).seq == first.seq
    tables.live(1)
    assert reader.look(tables.now_ms).seq > first.seq


def test_a_job_that_dies_and_comes_back_is_seen(tmp_path: Path) -> None:
    tables = LivedTables(tmp_path, QUOTAS, SENDERS, START_MS)
    tables.live(2)
    process: list[str | None] = ["7", "7", None, None, "8", "8"]
    reader = reader_of(tables.root, lambda: process.pop(0))
    states = [reader.look(tables.now_ms).health.state for _ in range(2)]
    states += [reader.look(tables.now_ms + ms).health.state for ms in (100, 19_000)]
    states.append(reader.look(tables.now_ms + 19_500).health.state)
    tables.job.clock.advance(19_800)
    tables.live(1)
    states.append(reader.look(tables.now_ms).health.state)
    assert states == ["live", "live", "down", "down", "stalled", "live"]


def test_a_job_that_ended_before_the_page_was_opened_is_down_and_not_on_another_machine(tmp_path: Path) -> None:
    tables = LivedTables(tmp_path, QUOTAS, SENDERS, START_MS)
    tables.live(2)
    reader = reader_of(tables.root, lambda: None)
    assert [reader.look(tables.now_ms + ms).health.state for ms in (0, 60_000)] == ["down", "down"]


def test_how_old_a_batch_may_be_follows_from_the_settings_of_the_job(tmp_path: Path) -> None:
    tables = LivedTables(tmp_path, QUOTAS, SENDERS, START_MS)
    tables.live(2)
    stream = StreamSettings(trigger_ms=60_000)
    settings = Settings(tables=TablesSettings(root=tables.root), stream=stream)
    reader = TablesReader(settings, JobSigns(lambda: "7", lambda: None))
    assert [reader.look(tables.now_ms + ms).health.state for ms in (170_000, 190_000)] == ["live", "stalled"]


def test_a_job_that_was_seen_to_wait_for_usage_is_quiet_until_it_waits_no_more(tmp_path: Path) -> None:
    tables = LivedTables(tmp_path, QUOTAS, SENDERS, START_MS)
    tables.live(2)
    waited_ms = tables.now_ms + 19_000
    reader = reader_of(tables.root, last_wait_ms=lambda: waited_ms)
    states = [reader.look(tables.now_ms + age_ms).health.state for age_ms in (0, 20_000, 22_100, 40_000)]
    assert states == ["live", "quiet", "stalled", "hung"]
