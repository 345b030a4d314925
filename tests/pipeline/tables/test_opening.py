"""A table that cannot be read is an error of its own, never taken for a missing table or a version that is gone."""

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pydantic import SecretStr

from pipeline.errors import TableMissing
from pipeline.settings.model import StoreSettings
from pipeline.tables.layout import create_missing, owner_of
from pipeline.tables.object_store import reach_with
from pipeline.tables.opening import open_table
from pipeline.tables.port import TableUnreadable
from pipeline.tables.queries import StoredTable, live_clients, newest_value, read_table
from pipeline.tables.quotas.history import origin_of, version_at, versions
from pipeline.tables.quotas.source import newest_valid
from pipeline.tables.quotas.table import QuotaTable
from tests.pipeline.tables.factories import edit_up_to, quota_table

READS: dict[str, Callable[[str], Any]] = {
    "open_table": open_table,
    "newest_value": lambda uri: newest_value(uri, "version"),
    "live_clients": live_clients,
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
    """Versions 2 to 8 are edits of one row; versions below set the table up."""
    table = quota_table(tmp_path)
    edit_up_to(table, 8)
    return table


def without_data(quotas: QuotaTable, version: int) -> QuotaTable:
    for file in DeltaTable(quotas.uri, version=version).file_uris():
        Path(file).unlink()
    return quotas


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_a_damaged_log_is_no_missing_table(tmp_path: Path, read: Callable[[str], Any]) -> None:
    uri = damaged(tmp_path, "batches" if read is READS["owner_of"] else "quotas")
    with pytest.raises(TableUnreadable, match=r"cannot be read: its commit 0{20}\.json is cut, .* Fix:") as refused:
        read(uri)
    assert "\n" not in str(refused.value)


def test_a_store_that_does_not_answer_is_no_missing_table() -> None:
    at_once = {"max_retries": SecretStr("0")}
    names = {"access_key_id": SecretStr("a"), "secret_access_key": SecretStr("b"), "region": "x"}
    reach_with(StoreSettings(endpoint="http://127.0.0.1:9", options=at_once, **names), "s3://away/t")
    with pytest.raises(TableUnreadable, match=r"s3://away/t cannot be read: .*127\.0\.0\.1:9") as refused:
        open_table("s3://away/t")
    assert "\x1b" not in str(refused.value)


@pytest.mark.parametrize("folder", ["nowhere", ""])
def test_a_folder_without_a_table_is_missing(folder: str, tmp_path: Path) -> None:
    with pytest.raises(TableMissing):
        open_table(str(tmp_path / folder))


def test_a_version_above_the_newest_and_one_that_was_cleaned_away_are_missing(quotas: QuotaTable) -> None:
    DeltaTable(quotas.uri).create_checkpoint()
    for version in range(3):
        log_entry(quotas.uri, version).unlink()
    for version in (99, 1, 7):
        with pytest.raises(TableMissing, match=f"version {version}"):
            quotas.read(version)
    assert quotas.read(8).rows[0]["producer_byte_rate"] == 8.0


def test_an_older_version_without_its_data_file_is_missing_and_the_newest_can_not_be_read(quotas: QuotaTable) -> None:
    with pytest.raises(TableMissing, match="version 7"):
        without_data(quotas, 7).read(7)
    without_data(quotas, 8)
    for read in (quotas.read, lambda: read_table(quotas.uri)):
        with pytest.raises(TableUnreadable, match=r"its data file part-.* is gone\. Fix: restore it, or "):
            read()


def test_a_damaged_older_version_ends_no_history_origin_or_search_for_a_valid_one(quotas: QuotaTable) -> None:
    DeltaTable(quotas.uri).create_checkpoint()
    log_entry(quotas.uri, 7).write_text("{damaged", encoding="utf-8")
    reads: list[tuple[str, Callable[[], object]]] = [
        ("Invalid JSON", lambda: list(versions(quotas, 9))),
        ("version 7", lambda: origin_of(quotas, 8, "alice", "", "consumer_byte_rate")),
        ("version 7", lambda: newest_valid(quotas, 7)),
        ("version 7|Invalid JSON", lambda: version_at(quotas, datetime.now(UTC))),
    ]
    for told, read in reads:
        with pytest.raises(TableUnreadable, match=told):
            read()


@pytest.mark.parametrize(("batches", "oldest", "newest"), [([[4, 5], [89, 90], [6, 7]], 4, 90), ([[]], None, None)])
def test_the_oldest_and_the_newest_of_all_files_are_found_without_opening_them(
    batches: list[list[int]], oldest: int | None, newest: int | None, tmp_path: Path
) -> None:
    for values in batches:
        write_deltalake(tmp_path / "t", pa.table({"at_ms": pa.array(values, pa.int64())}), mode="append")
    for file in (tmp_path / "t").glob("*.parquet"):
        file.unlink()
    assert StoredTable(str(tmp_path / "t")).oldest_value("at_ms") == oldest
    assert newest_value(str(tmp_path / "t"), "at_ms") == newest
    assert newest_value(str(tmp_path / "nowhere"), "at_ms") is None
