"""Tables that earlier releases wrote, read and edited by the commands of today. No broker, no Spark."""

import json
import time
from pathlib import Path
from unittest.mock import patch

import pytest
from deltalake import DeltaTable

from pipeline.tables.address import table_uri
from pipeline.tables.layout import TABLES, create_missing
from pipeline.tables.reading import TimeSlices, read_table
from tests.pipeline.cli.running import kquota
from tests.upgrade.kept import RELEASES, Kept, unpack

OF_RELEASE_0_1 = {"quotas", "usage", "batches", "decisions", "throttle_events", "sensor_state", "dead_letters"}


@pytest.fixture(scope="module", params=RELEASES)
def kept(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Kept:
    """For tests that only read."""
    return unpack(request.param, tmp_path_factory.mktemp("kept"))


def columns(root: str, name: str) -> list[tuple[str, str, bool]]:
    fields = DeltaTable(table_uri(root, name)).schema().fields
    return [(field.name, field.type.to_json(), field.nullable) for field in fields]


@pytest.mark.parametrize("release", RELEASES)
def test_a_start_gives_the_tables_the_columns_that_new_ones_have(release: str, tmp_path: Path) -> None:
    kept = unpack(release, tmp_path / "kept")
    old = {path.name for path in Path(kept.tables).iterdir() if path.is_dir()}
    assert old >= OF_RELEASE_0_1
    create_missing(kept.tables)
    create_missing(str(tmp_path))
    for name in old:
        assert sorted(columns(kept.tables, name)) == sorted(columns(str(tmp_path), name)), name
        assert DeltaTable(table_uri(kept.tables, name)).metadata().partition_columns == (
            DeltaTable(table_uri(str(tmp_path), name)).metadata().partition_columns
        ), name
    assert set(TABLES) >= old, "those that are missing are created at the first start"


def test_a_column_of_this_release_is_null_in_the_rows_of_earlier_ones(kept: Kept) -> None:
    uri, columns = table_uri(kept.tables, "usage"), ["user", "broker_throttle_ms"]
    for rows in (read_table(uri, columns), TimeSlices(uri, "evaluated_at_ms").read(columns, 0, 2**62)):
        assert rows["broker_throttle_ms"].null_count == rows.num_rows > 0


@pytest.mark.parametrize(
    ("command", "found"),
    [
        ("quotas describe", "alice"),
        ("quotas history", "kept"),
        ("quotas effective alice c", "100000"),
        ("throttles list --all", "alice"),
        ("throttles explain alice c", "producer_byte_rate"),
        ("throttles verify --since 3650d", " decisions, 0 mismatches"),
        ("top --once", "down on this machine"),
        ("status", "batch   1, "),
        ("doctor", "quotas    v3: 2 entities"),
    ],
)
def test_a_reading_command_answers_a_year_later(kept: Kept, command: str, found: str) -> None:
    a_year_later_ns = time.time_ns() + 365 * 86_400 * 10**9
    with patch.object(time, "time_ns", return_value=a_year_later_ns):
        answer = kquota(*command.split(), "--tables", kept.tables)
    assert found in answer.stdout + answer.stderr, answer
    assert answer.exit_code == (1 if command in {"doctor", "status"} else 0), answer


def test_a_command_that_needs_a_table_of_later_releases_says_how_to_create_it(tmp_path: Path) -> None:
    kept = unpack("0.1.0", tmp_path)
    report = ("report", "chargeback", "--since", "3650d", "--tables", kept.tables)
    refused = kquota(*report)
    assert refused.exit_code == 2
    _program, *fix = refused.stderr.strip().rpartition("create new tables: ")[2].split()
    assert kquota(*fix).exit_code == 0
    assert "no usage from" in kquota(*report).stderr, "the job of today writes the minutes from its start on"


@pytest.mark.parametrize("release", RELEASES)
def test_an_edit_of_the_quotas_adds_to_their_history(release: str, tmp_path: Path) -> None:
    kept = unpack(release, tmp_path)
    edit = ("--user", "alice", "--client-id", "c", "--add-config", "producer_byte_rate=2MB/s", "--reason", "today")
    assert kquota("quotas", "alter", *edit, "--tables", kept.tables).exit_code == 0
    history = json.loads(kquota("quotas", "history", "-o", "json", "--tables", kept.tables).stdout)
    reasons = [version["reason"] for version in history]
    assert sorted(filter(None, reasons)) == ["kept", "kept", "today"]
