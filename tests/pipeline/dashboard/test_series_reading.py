"""Whose usage the chart of a client sums up."""

from pathlib import Path
from typing import Any

import pytest

from pipeline.dashboard.client import RANGES, client_document
from pipeline.dashboard.reader import TablesReader
from pipeline.process import JobSigns
from tests.pipeline.dashboard.lived_tables import LivedTables, Sender
from tests.pipeline.dashboard.shop import START_MS, quota

SENDERS = (
    Sender("a", "x", lambda _: {"produced_bytes": 1_000, "fetched_bytes": 100}),
    Sender("a", "y", lambda _: {"produced_bytes": 3_000, "fetched_bytes": 100}),
    Sender("b", "x", lambda _: {"produced_bytes": 5_000, "fetched_bytes": 500}),
)


@pytest.fixture(scope="module")
def series(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Of a/x, where the user a has a bound of bytes produced, and nobody has one of bytes fetched."""
    folder: Path = tmp_path_factory.mktemp("series")
    tables = LivedTables(folder, [quota("a", "", producer_byte_rate=1e6)], SENDERS, START_MS)
    tables.live(15)
    reader = TablesReader(tables.root, JobSigns(lambda: "7"))
    state = reader.look(tables.now_ms)
    document = client_document(reader, state, ("a", "x"), RANGES["15m"])
    return dict(document["series"])


def newest(values: list[float | None]) -> float:
    return [value for value in values if value is not None][-1]


def test_under_a_quota_it_is_that_of_all_clients_of_the_sensor_and_its_own(series: dict[str, Any]) -> None:
    produced = series["producer_byte_rate"]
    assert newest(produced["observed"]) == pytest.approx(4_000)
    assert newest(produced["own"]) == pytest.approx(1_000)


def test_without_a_quota_it_is_its_own_whoever_has_the_same_client_id(series: dict[str, Any]) -> None:
    fetched = series["consumer_byte_rate"]
    assert newest(fetched["observed"]) == pytest.approx(100)
    assert fetched["own"] is None
