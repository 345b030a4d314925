"""With the newest rows in memory a client's view says what the table says, whatever happened in between."""

from pathlib import Path
from typing import Any

import pytest

from pipeline.dashboard.api import Query
from pipeline.dashboard.client import client_document
from pipeline.dashboard.reader import TablesReader
from pipeline.dashboard.recent import RecentTable
from pipeline.dashboard.state import State
from pipeline.dashboard.views import explained
from pipeline.process import JobSigns
from pipeline.settings.model import Settings, TablesSettings
from pipeline.tables.address import table_uri
from pipeline.tables.upkeep import compact
from tests.pipeline.dashboard.lived_tables import LivedTables
from tests.pipeline.dashboard.shop import QUOTAS, SENDERS, START_MS

CLIENTS = [(sender.user, sender.client_id) for sender in SENDERS]
TABLES = ("usage", "decisions", "throttle_events")
_MOST_COMMITS = 1_000


def of_memory(reader: TablesReader) -> list[RecentTable]:
    return [reader.recent.usage, reader.recent.decisions, reader.recent.events]


def stories(reader: TablesReader, state: State) -> list[dict[str, Any]]:
    settings = Settings(tables=TablesSettings(root=reader.root))
    held = sorted({(row["user"], row["client_id"]) for row in state.recent})
    return [explained(reader, state, Query(user=user, client_id=client_id), settings) for user, client_id in held]


def documents(reader: TablesReader, state: State) -> list[dict[str, Any]]:
    return [*stories(reader, state), *client_documents(reader, state)]


def client_documents(reader: TablesReader, state: State) -> list[dict[str, Any]]:
    spans = [(None, None), (state.now_ms - 20_000, None), (state.now_ms - 30_000, state.now_ms - 7_000)]
    return [
        client_document(reader, state, Query(user=user, client_id=client_id, since_ms=since_ms, until_ms=until_ms))
        for user, client_id in CLIENTS
        for since_ms, until_ms in spans
    ]


@pytest.fixture(scope="module")
def followed(tmp_path_factory: pytest.TempPathFactory) -> tuple[TablesReader, State]:
    """A reader that looked now and then at a job that was started again, and whose files were merged."""
    folder: Path = tmp_path_factory.mktemp("recent")
    tables = LivedTables(folder, QUOTAS, SENDERS, START_MS)
    tables.live(12, step_ms=500)
    reader = TablesReader(tables.root, JobSigns(lambda: "7"))
    reader.recent.keep()
    reader.look(tables.now_ms)
    for second in range(24):
        tables.live(1, step_ms=500)
        if second == 8:
            tables.restart()
        if second == 16:
            assert all(compact(table_uri(tables.root, name), many_files=1) for name in TABLES)
        if second % 3:
            reader.look(tables.now_ms)
            assert all(reader.tables[name].commits(_MOST_COMMITS) for name in TABLES)
    return reader, reader.look(tables.now_ms)


def test_all_of_a_view_is_as_the_table_has_it(followed: tuple[TablesReader, State]) -> None:
    reader, state = followed
    from_memory = documents(reader, state)
    assert any(document.get("records") for document in from_memory)
    kept = [one.held for one in of_memory(reader)]
    assert all(held is not None and len(held) for held in kept)
    for one in of_memory(reader):
        one.held = None
    try:
        assert from_memory == documents(reader, state)
    finally:
        for one, held in zip(of_memory(reader), kept, strict=True):
            one.held = held


def test_rows_from_the_middle_of_what_is_in_memory_on_are_read_once(followed: tuple[TablesReader, State]) -> None:
    reader, state = followed
    expected = documents(reader, state)
    kept = [one.held for one in of_memory(reader)]
    for one, held in zip(of_memory(reader), kept, strict=True):
        assert held is not None
        keys = sorted(key for block in held.blocks for key in block.rows[held.key].to_pylist())
        one.held = type(held)(held.key, keys[len(keys) // 2], held.blocks)
    try:
        assert documents(reader, state) == expected
    finally:
        for one, held in zip(of_memory(reader), kept, strict=True):
            one.held = held


def test_a_throttle_of_before_what_is_in_memory_has_all_its_records(followed: tuple[TablesReader, State]) -> None:
    reader, state = followed
    expected, held = stories(reader, state), reader.recent.events.held
    assert held is not None
    assert any(len(story["published"]) > 2 for story in expected)
    try:
        for row in state.recent:
            reader.recent.events.held = type(held)(held.key, row["publish_seq"], held.blocks)
            assert stories(reader, state) == expected
    finally:
        reader.recent.events.held = held


def test_commits_that_were_read_one_after_the_other_are_those_read_at_once(
    followed: tuple[TablesReader, State],
) -> None:
    reader, state = followed
    fresh = TablesReader(reader.root, JobSigns(lambda: "7"))
    fresh.look(state.now_ms)
    for name in TABLES:
        assert reader.tables[name].commits(_MOST_COMMITS) == fresh.tables[name].commits(_MOST_COMMITS)


def test_of_the_newest_minute_no_file_is_opened(
    followed: tuple[TablesReader, State], monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, state = followed
    client_documents(reader, state)

    def opened(*_: object) -> None:
        pytest.fail("a file was opened")

    # Records are kept by their number, so the table is asked for older ones.
    for table in (reader.tables["usage"], reader.tables["decisions"], reader.tables["batches"]):
        monkeypatch.setattr(table, "query", opened)
        monkeypatch.setattr(table, "rows", opened)
    since_ms = state.now_ms - 10_000
    for user, client_id in CLIENTS:
        assert client_document(reader, state, Query(user=user, client_id=client_id, since_ms=since_ms))["at_ms"]
