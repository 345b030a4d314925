"""A table that cannot be read is an error of its own, never taken for a missing table or a version that is gone."""

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from pipeline.errors import TableMissing
from pipeline.settings.model import StoreSettings
from pipeline.tables.delta_rs import DeltaRsWriter
from pipeline.tables.layout import TABLES, create_missing, owner_of
from pipeline.tables.object_store import reach_with
from pipeline.tables.opening import open_table
from pipeline.tables.port import TableUnreadable
from pipeline.tables.queries import StoredTable, TimeSlices, live_clients, newest_value, read_table
from pipeline.tables.quotas.edit import QuotaChange
from pipeline.tables.quotas.history import origin_of, version_at, versions
from pipeline.tables.quotas.source import newest_valid
from pipeline.tables.quotas.table import EditAudit, QuotaTable

AUDIT = EditAudit(actor="carol", host="ops1", tool_version="0.1.0", reason="")

# Nothing listens there, so every request fails at once.
AWAY = StoreSettings.model_validate(
    {
        "endpoint": "http://127.0.0.1:9",
        "access_key_id": "a",
        "secret_access_key": "b",
        "region": "x",
        "options": {"max_retries": "0"},
    }
)

READS: dict[str, Callable[[str], Any]] = {
    "open_table": open_table,
    "read_table": read_table,
    "newest_value": lambda uri: newest_value(uri, "version"),
    "live_clients": live_clients,
    "TimeSlices": lambda uri: TimeSlices(uri, "at_ms"),
    "DeltaRsWriter": lambda uri: DeltaRsWriter(uri, "job"),
    "QuotaTable": lambda uri: QuotaTable(str(Path(uri).parent)),
    "owner_of": lambda uri: owner_of(str(Path(uri).parent)),
    "create_missing": lambda uri: create_missing(str(Path(uri).parent)),
}


def log_entry(uri: str, version: int) -> Path:
    return Path(uri, "_delta_log", f"{version:020}.json")


def damaged(folder: Path, name: str) -> str:
    uri = str(folder / name)
    write_deltalake(uri, pa.table({"at_ms": [1]}))
    log_entry(uri, 0).write_text('{"protocol":', encoding="utf-8")
    return uri


@pytest.fixture
def quotas(tmp_path: Path) -> QuotaTable:
    """Versions 5 to 8 are edits of one row; versions below set the table up."""
    create_missing(str(tmp_path), [TABLES["quotas"]])
    table = QuotaTable(str(tmp_path))
    while table.read().version < 8:
        bound = float(1 + table.read().version)
        table.alter([QuotaChange("alice", "", {"producer_byte_rate": bound})], AUDIT)
    return table


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_a_damaged_log_is_no_missing_table(tmp_path: Path, read: Callable[[str], Any]) -> None:
    uri = damaged(tmp_path, "batches" if read is READS["owner_of"] else "quotas")
    with pytest.raises(TableUnreadable, match=r"cannot be read: its commit 0{20}\.json is cut, .* Fix:") as refused:
        read(uri)
    assert "\n" not in str(refused.value)


def test_a_store_that_does_not_answer_is_no_missing_table() -> None:
    reach_with(AWAY, "s3://away/t")
    with pytest.raises(TableUnreadable, match=r"s3://away/t cannot be read: .*127\.0\.0\.1:9") as refused:
        open_table("s3://away/t")
    assert "\x1b" not in str(refused.value)


def test_a_folder_without_a_table_is_missing(tmp_path: Path) -> None:
    with pytest.raises(TableMissing):
        open_table(str(tmp_path / "nowhere"))
    with pytest.raises(TableMissing):
        open_table(str(tmp_path))


def test_a_version_above_the_newest_and_one_that_was_cleaned_away_are_missing(quotas: QuotaTable) -> None:
    table = DeltaTable(quotas.uri)
    table.create_checkpoint()
    for version in range(3):
        log_entry(quotas.uri, version).unlink()
    for version in (99, 1, 7):
        with pytest.raises(TableMissing, match=f"version {version}"):
            quotas.read(version)
    assert quotas.read(8).rows[0]["producer_byte_rate"] == 8.0


def test_a_version_whose_data_file_was_cleaned_away_is_missing(quotas: QuotaTable) -> None:
    for file in DeltaTable(quotas.uri, version=7).file_uris():
        Path(file).unlink()
    with pytest.raises(TableMissing, match="version 7"):
        quotas.read(7)


def test_the_newest_version_without_its_data_file_can_not_be_read(quotas: QuotaTable) -> None:
    for file in DeltaTable(quotas.uri).file_uris():
        Path(file).unlink()
    with pytest.raises(TableUnreadable, match=r"its data file part-.* is gone\. Fix: restore it, or "):
        quotas.read()
    with pytest.raises(TableUnreadable, match=r"its data file part-.* is gone\. Fix: restore it, or "):
        read_table(quotas.uri)


def test_a_damaged_older_version_ends_no_history_origin_or_search_for_a_valid_one(
    quotas: QuotaTable,
) -> None:
    DeltaTable(quotas.uri).create_checkpoint()
    log_entry(quotas.uri, 7).write_text("{damaged", encoding="utf-8")
    with pytest.raises(TableUnreadable, match="Invalid JSON"):
        list(versions(quotas, 9))
    with pytest.raises(TableUnreadable, match="version 7"):
        origin_of(quotas, 8, "alice", "", "consumer_byte_rate")
    with pytest.raises(TableUnreadable, match="version 7"):
        newest_valid(quotas, 7)
    with pytest.raises(TableUnreadable):
        version_at(quotas, datetime.now(UTC))


def test_the_newest_and_the_oldest_of_all_files_is_found_without_opening_them(tmp_path: Path) -> None:
    for at_ms in (5, 90, 7):
        write_deltalake(tmp_path / "t", pa.table({"at_ms": [at_ms - 1, at_ms]}), mode="append")
    for file in (tmp_path / "t").glob("*.parquet"):
        file.unlink()
    assert newest_value(str(tmp_path / "t"), "at_ms") == 90
    assert StoredTable(str(tmp_path / "t")).oldest_value("at_ms") == 4


def test_without_rows_or_without_a_table_there_is_no_value(tmp_path: Path) -> None:
    write_deltalake(tmp_path / "t", pa.table({"at_ms": pa.array([], pa.int64())}))
    assert newest_value(str(tmp_path / "t"), "at_ms") is None
    assert StoredTable(str(tmp_path / "t")).oldest_value("at_ms") is None
    assert newest_value(str(tmp_path / "nowhere"), "at_ms") is None
