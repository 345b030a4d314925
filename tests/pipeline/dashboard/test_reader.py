"""The reader reads only what is new, and knows as much as one that reads all."""

from pathlib import Path

from pipeline.dashboard.reader import TablesReader
from pipeline.process import JobSigns
from pipeline.tables.address import table_uri
from pipeline.tables.upkeep import compact
from tests.pipeline.dashboard.lived_tables import LivedTables
from tests.pipeline.dashboard.shop import QUOTAS, SENDERS, START_MS, quota


def followed(reader: TablesReader, tables: LivedTables) -> dict[str, object]:
    summary = reader.look(tables.now_ms).summary()
    return {name: value for name, value in summary.items() if name not in {"seq", "health"}}


def test_one_that_followed_all_along_knows_what_a_new_one_knows(tmp_path: Path) -> None:
    tables = LivedTables(tmp_path, QUOTAS, SENDERS, START_MS)
    reader = TablesReader(tables.root, JobSigns(lambda: "7"))
    reader.look(tables.now_ms)
    names = ("usage", "decisions", "throttle_events")
    for second in range(24):
        tables.live(1, step_ms=500)
        if second == 6:
            assert all(compact(table_uri(tables.root, name), many_files=1) for name in names)
        if second == 8:
            tables.edit([quota("web", "", producer_byte_rate=250_000.0)], "less")
        if second == 12:
            tables.edit([quota("search", "", consumer_byte_rate=10_000.0, mode="shadow")], "the first shadow quota")
        if second == 16:
            tables.restart()
        if second % 3:
            reader.look(tables.now_ms)
            assert all(reader.tables[name].commits(1_000) for name in names)
    fresh = TablesReader(tables.root, JobSigns(lambda: "7"))
    assert followed(reader, tables) == followed(fresh, tables)
    assert [reader.tables[name].commits(1_000) for name in names] == [
        fresh.tables[name].commits(1_000) for name in names
    ]


def test_without_tables_it_says_so_and_finds_them_later(tmp_path: Path) -> None:
    root = tmp_path / "tables"
    reader = TablesReader(str(root), JobSigns(lambda: None))
    assert reader.look(START_MS).health.state == "unreadable"
    tables = LivedTables(tmp_path, QUOTAS, SENDERS, START_MS)
    assert reader.look(tables.now_ms).health.state == "starting"
    tables.live(3)
    state = reader.look(tables.now_ms)
    assert state.health.state == "live"
    assert state.active_clients == len(SENDERS)


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
