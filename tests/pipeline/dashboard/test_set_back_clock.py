"""After a clock was set back, all that is shown as now is what the tables of the new time epoch alone show."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.dashboard.client import client_document
from pipeline.dashboard.reader import TablesReader
from pipeline.dashboard.views import pipeline_document
from pipeline.job.status import status_of
from pipeline.settings.model import Settings, TablesSettings
from pipeline.tables.port import table_uri
from pipeline.tables.queries import live_clients, read_table
from pipeline.tables.quotas.table import QuotaTable
from pipeline.tables.throttles import newest_decision, running_throttles, story_of, why_unpublished
from pipeline.tables.upkeep import compact
from tests.pipeline.dashboard.lived_tables import LivedTables
from tests.pipeline.dashboard.shop import QUOTAS, SENDERS, START_MS, reader_of
from tests.pipeline.dashboard.stepped_tables import STEPS_MS, SteppedTables

Asked = Callable[[str, SteppedTables], Any]
OF_A_ROW = {"publish_seq", "time_epoch", "batch_id", "query_id"}
MANY_FILES = ("usage", "batches", "decisions", "throttle_events")


def of_now(reader: TablesReader, tables: SteppedTables) -> dict[str, Any]:
    state = reader.look(tables.now_ms)
    summary = state.summary()
    own = {name: summary[name] for name in ("rates_at_ms", "totals", "talkers", "seconds", "batch_id")}
    held = [{name: value for name, value in row.items() if name not in OF_A_ROW} for row in summary["throttled"]]
    return {**own, "throttled": held, "age_ms": state.health.last_batch_age_ms, "ahead_ms": state.health.ahead_ms}


STEP_MS = STEPS_MS[1]


@pytest.fixture(scope="module")
def stepped(tmp_path_factory: pytest.TempPathFactory) -> SteppedTables:
    """Tables after a quarter of a minute of the new epoch."""
    tables = SteppedTables(tmp_path_factory.mktemp("stepped"), STEP_MS)
    for second in range(16):
        tables.live(1)
        if second == 12:
            assert all(compact(table_uri(tables.root, name), many_files=1) for name in MANY_FILES)
    return tables


def test_a_reader_shows_what_that_of_the_new_epoch_alone_shows(stepped: SteppedTables) -> None:
    assert of_now(reader_of(stepped.root), stepped) == of_now(reader_of(stepped.alone.root), stepped)


def test_the_chart_of_a_client_goes_on_to_now(stepped: SteppedTables) -> None:
    readers = reader_of(stepped.root), reader_of(stepped.alone.root)
    for sender in SENDERS:
        client = sender.user, sender.client_id
        found, wanted = (client_document(one, one.look(stepped.now_ms), client) for one in readers)
        of_type = {name: series["observed"][-4:] for name, series in found["series"].items()}
        assert of_type == {name: series["observed"][-4:] for name, series in wanted["series"].items()}
        assert all(value is not None for values in of_type.values() for value in values[:-1])
        assert found["effective"] == wanted["effective"]


def settings_of(root: str) -> Settings:
    return Settings(job="hand", tables=TablesSettings(root=root))


def rows(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name not in OF_A_ROW} for row in found]


def clients(root: str, _: SteppedTables) -> Any:
    return live_clients(table_uri(root, "usage")).to_pylist()


def status(root: str, tables: SteppedTables) -> Any:
    found = status_of(settings_of(root), tables.now_ms)
    return found.last_batch_id, found.health.last_batch_age_ms, found.health.lag_ms, found.health.ahead_ms


def held(root: str, tables: SteppedTables) -> Any:
    return rows(running_throttles(root, tables.now_ms))


def explained(root: str, _: SteppedTables) -> Any:
    story = story_of(root, newest_decision(root, "alice", "etl"))
    return rows([story.decision]), rows(story.events), story.samples


def unpublished(root: str, _: SteppedTables) -> Any:
    found = why_unpublished(root, QuotaTable(root), newest_decision(root, "guest", None), 60_000, 1_000)
    return found.cause, found.age_ms


@pytest.mark.parametrize("ask", [clients, status, held, explained, unpublished])
def test_a_command_shows_as_now_what_the_new_epoch_alone_shows(stepped: SteppedTables, ask: Asked) -> None:
    assert ask(stepped.root, stepped) == ask(stepped.alone.root, stepped)


def test_status_and_the_page_number_the_epoch(stepped: SteppedTables) -> None:
    assert status_of(settings_of(stepped.root), stepped.now_ms).time_epoch == 1
    reader = reader_of(stepped.root)
    batches = pipeline_document(reader, reader.look(stepped.now_ms))["batches"]
    epochs = [batch["time_epoch"] for batch in batches]
    assert (epochs[:17], sorted(epochs, reverse=True)) == ([1] * 16 + [0], epochs)


def test_a_decision_of_the_old_epoch_is_explained_from_its_own_usage(stepped: SteppedTables) -> None:
    old = newest_decision(stepped.root, "ghost", "gone")
    story = story_of(stepped.root, old)
    assert old["time_epoch"] == 0
    assert sum(amount for _, amount in story.samples) == pytest.approx(old["observed"] * old["window_ms"] / 1000)
    assert story.events[0]["action"] == "throttle"


def test_a_job_whose_clock_is_set_back_is_shown_as_of_now_and_all_its_usage_is_rolled_up(tmp_path: Path) -> None:
    tables = LivedTables(tmp_path, QUOTAS, SENDERS, START_MS, at_once=True)
    reader = reader_of(tables.root)
    tables.live(10)
    tables.job.clock.set_wall(tables.now_ms + STEP_MS)
    tables.live(15)
    reader.look(tables.now_ms)
    tables.job.clock.set_wall(tables.now_ms - STEP_MS)
    for _ in range(6):
        tables.live(16)
        tables.roll_up()
        state = reader.look(tables.now_ms)
        assert (state.health.state, state.health.ahead_ms) == ("live", 0)
        assert tables.now_ms - state.rates_at_ms <= 1_000
    client = "web", "tracker"
    observed = client_document(reader, state, client)["series"]["producer_byte_rate"]["observed"]
    assert min(observed[-12:-1]) > 0
    assert state.batch is not None
    assert state.batch["time_epoch"] == 1
    used, rolled = (sum_of(tables.root, name) for name in ("usage", "usage_by_minute"))
    begun = (tables.now_ms - 10_000) // 60_000 * 60_000
    late = read_table(
        table_uri(tables.root, "usage"), ["produced_bytes"], [("sample_start_ms", ">=", begun), ("time_epoch", "=", 1)]
    )
    assert rolled == used - sum(filter(None, late["produced_bytes"].to_pylist()))


def sum_of(root: str, name: str) -> int:
    return sum(filter(None, read_table(table_uri(root, name), ["produced_bytes"])["produced_bytes"].to_pylist()))
