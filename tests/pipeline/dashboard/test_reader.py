"""What the dashboard finds in tables that come, change and stand still, and whose clock was set back.

What is shown as now is then what came since, in the new time epoch.
"""

from itertools import pairwise
from pathlib import Path

import pytest

from pipeline.dashboard.client import client_document
from pipeline.dashboard.views import pipeline_document
from pipeline.job.status import status_of
from pipeline.settings.model import Settings, StreamSettings, TablesSettings
from pipeline.tables.port import table_uri
from pipeline.tables.queries import live_clients
from pipeline.tables.throttles import newest_decision, running_throttles, story_of
from pipeline.tables.upkeep import compact
from tests.pipeline.dashboard.shop import QUOTAS, SENDERS, START_MS, LivedTables, reader_of, set_back_shop

STEP_MS = 3_600_000
MANY_FILES = ("usage", "batches", "decisions", "throttle_events")


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> LivedTables:
    tables = set_back_shop(tmp_path_factory.mktemp("set_back"), STEP_MS)
    for name in MANY_FILES:
        compact(table_uri(tables.root, name), many_files=1)
    return tables


def test_page_and_status_show_what_came_since(tables: LivedTables) -> None:
    reader = reader_of(tables.root)
    state = reader.look(tables.now_ms)
    summary = state.summary()
    assert (state.health.state, state.health.ahead_ms, state.health.last_batch_age_ms) == ("live", 0, 0)
    assert tables.now_ms - summary["rates_at_ms"] <= 1_000
    assert max(second for second, *_ in summary["seconds"]) * 1_000 <= tables.now_ms
    found = status_of(Settings(job="hand", tables=TablesSettings(root=tables.root)), tables.now_ms)
    assert (found.time_epoch, found.health.ahead_ms, found.health.last_batch_age_ms) == (1, 0, 0)
    epochs = [batch["time_epoch"] for batch in pipeline_document(reader, state)["batches"]]
    assert (epochs[:17], sorted(epochs, reverse=True)) == ([1] * 16 + [0], epochs)


def test_the_chart_of_a_client_goes_on_to_now(tables: LivedTables) -> None:
    reader = reader_of(tables.root)
    found = client_document(reader, reader.look(tables.now_ms), ("web", "tracker"))
    assert tables.now_ms <= found["at_ms"][-1] < tables.now_ms + 5_000
    assert min(found["series"]["producer_byte_rate"]["observed"][-3:-1]) > 0


def test_clients_and_throttles_of_now_are_of_the_new_epoch(tables: LivedTables) -> None:
    assert "ghost" not in live_clients(table_uri(tables.root, "usage"))["user"].to_pylist()
    running = running_throttles(tables.root, tables.now_ms)
    assert running
    assert max(row["throttled_until_ms"] for row in running) < tables.now_ms + 60_000
    for user, client_id in (("alice", "etl"), ("guest", None)):
        story = story_of(tables.root, newest_decision(tables.root, user, client_id))
        assert story.decision["time_epoch"] == 1


def test_a_decision_of_the_old_epoch_is_explained_from_its_own_usage(tables: LivedTables) -> None:
    old = newest_decision(tables.root, "ghost", "gone")
    story = story_of(tables.root, old)
    assert old["time_epoch"] == 0
    assert sum(amount for _, amount in story.samples) == pytest.approx(old["observed"] * old["window_ms"] / 1000)
    assert story.events[0]["action"] == "throttle"


def test_without_tables_it_says_so_and_finds_them_later(tmp_path: Path) -> None:
    reader = reader_of(str(tmp_path / "tables"))
    assert reader.look(START_MS).health.state == "unreadable"
    tables = LivedTables(tmp_path, QUOTAS, SENDERS, START_MS)
    states = [reader.look(tables.now_ms)]
    tables.live(2)
    states += [reader.look(tables.now_ms), reader.look(tables.now_ms + 500)]
    tables.live(1)
    states.append(reader.look(tables.now_ms))
    assert [state.health.state for state in states] == ["starting", *["live"] * 3]
    assert states[1].counts["active_clients"] == len(SENDERS)
    assert [one.seq < other.seq for one, other in pairwise(states)] == [True, False, True], "without a change the same"


def test_a_job_that_dies_and_comes_back_is_seen(tmp_path: Path) -> None:
    tables = LivedTables(tmp_path, QUOTAS, SENDERS, START_MS)
    tables.live(2)
    process: list[str | None] = ["7", None, None, "8", "8"]
    reader = reader_of(tables.root, lambda: process.pop(0))
    states = [reader.look(tables.now_ms + ms).health.state for ms in (0, 100, 19_000, 19_500)]
    tables.job.clock.advance(19_800)
    tables.live(1)
    states.append(reader.look(tables.now_ms).health.state)
    assert states == ["live", "down", "down", "stalled", "live"]


@pytest.mark.parametrize(
    ("stream", "waited_ms", "states"),
    [
        (StreamSettings(trigger_ms=60_000), None, {170_000: "live", 190_000: "stalled"}),
        (StreamSettings(), 19_000, {0: "live", 20_000: "quiet", 22_100: "stalled", 40_000: "hung"}),
    ],
)
def test_how_long_a_job_may_be_silent_follows_from_its_settings_and_its_last_wait(
    stream: StreamSettings, waited_ms: int | None, states: dict[int, str], tmp_path: Path
) -> None:
    tables = LivedTables(tmp_path, QUOTAS, SENDERS, START_MS)
    tables.live(2)
    reader = reader_of(tables.root, last_wait_ms=waited_ms and tables.now_ms + waited_ms, stream=stream)
    assert {age_ms: reader.look(tables.now_ms + age_ms).health.state for age_ms in states} == states
