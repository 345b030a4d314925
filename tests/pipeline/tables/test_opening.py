"""A table that cannot be read is an error of its own, never taken for a missing table or a version that is gone."""

import errno
import os
import re
import subprocess
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pydantic import SecretStr

from pipeline.errors import PipelineError, TableMissing
from pipeline.settings.model import StoreSettings
from pipeline.tables.layout import create_missing, owner_of
from pipeline.tables.object_store import reach_with
from pipeline.tables.opening import is_cut, open_table
from pipeline.tables.port import TableUnreadable
from pipeline.tables.queries import StoredTable, live_clients, newest_value, read_table
from pipeline.tables.quotas.history import origin_of, version_at, versions
from pipeline.tables.quotas.source import newest_valid
from pipeline.tables.quotas.table import QuotaTable
from pipeline.tables.upkeep import clean
from tests.pipeline.tables.factories import AUDIT, dead_letters, edit_up_to, new_table, quota_table

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


def test_without_its_data_file_an_older_version_is_missing_the_newest_unreadable(quotas: QuotaTable) -> None:
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


LEFT: dict[str, Callable[[bytes], bytes]] = {
    "nothing": lambda _: b"",
    "zeros": lambda whole: bytes(len(whole)),
    "its first line": lambda whole: whole.splitlines()[0],
    "all but its last line": lambda whole: b"\n".join(whole.splitlines()[:-1]),
    "half a line": lambda whole: whole[: len(whole) // 2],
    "zeros at its end": lambda whole: whole + bytes(4096),
}


@pytest.fixture
def table(tmp_path: Path) -> QuotaTable:
    """Version 2 is the first edit; each edit sets the bound to its version."""
    table = quota_table(tmp_path / "the tables")
    edit_up_to(table, 4)
    return table


def bound_at(table: QuotaTable, version: int | None = None) -> float:
    (row,) = table.read(version).rows
    return float(row["producer_byte_rate"])


def in_log(table: QuotaTable, name: str) -> Path:
    return Path(table.uri, "_delta_log", name)


def commit(table: QuotaTable, version: int) -> Path:
    return in_log(table, f"{version:020}.json")


def checkpoint(table: QuotaTable, version: int) -> Path:
    return in_log(table, f"{version:020}.checkpoint.parquet")


def data_files(table: QuotaTable) -> list[Path]:
    return [Path(unquote(uri)) for uri in DeltaTable(table.uri).file_uris()]


def cut(file: Path, left: str) -> None:
    if left == "gone":
        file.unlink()
    else:
        file.write_bytes(LEFT[left](file.read_bytes()))


def run_fix(error: PipelineError) -> None:
    """Paste what the fix says into a shell."""
    command = re.search(r"(?:cd|mv) .*", error.fix)
    assert command, error.fix
    subprocess.run(["/bin/sh", "-e", "-c", command[0]], check=True, capture_output=True)


def refused(table: QuotaTable) -> TableUnreadable:
    with pytest.raises(TableUnreadable) as caught:
        QuotaTable(str(Path(table.uri).parent)).read()
    assert caught.value.exit_code == 5, "another try does not help"
    return caught.value


@pytest.mark.parametrize(
    ("what", "left"),
    [*(("commit", left) for left in LEFT), *(("data", one) for one in ("zeros", "half a line", "gone"))],
)
def test_the_fix_goes_back_before_a_file_that_was_cut(what: str, left: str, table: QuotaTable) -> None:
    file = commit(table, 4) if what == "commit" else data_files(table)[0]
    cut(file, left)
    error = refused(table)
    assert f"{file.name} is " in error.message
    run_fix(error)
    assert (table.read().version, bound_at(table)) == (3, 3.0)
    edit_up_to(table, 5)
    assert bound_at(table) == 5.0


@pytest.mark.parametrize("later", [1, 9])
def test_commits_after_a_cut_one_go_with_it_also_those_of_spark(later: int, table: QuotaTable) -> None:
    edit_up_to(table, 4 + later)
    for name in (f".{4 + later:020}.json.crc", f"{4 + later:020}.crc", "_last_checkpoint"):
        in_log(table, name).write_text("{}")
    cut(commit(table, 4), "nothing")
    error = refused(table)
    assert f"back to version 3 ({later} later commits go with it): " in error.fix
    run_fix(error)
    assert (table.read().version, bound_at(table)) == (3, 3.0)
    assert sorted(path.name[:20] for path in in_log(table, "").iterdir()) == [f"{one:020}" for one in range(4)]
    kept = Path(table.uri, "_taken_back")
    assert len([path for path in kept.iterdir() if path.suffix == ".json"]) == later + 1


@pytest.fixture
def long_table(table: QuotaTable) -> QuotaTable:
    """With a checkpoint of version 19."""
    edit_up_to(table, 21)
    return table


def test_an_older_version_whose_commit_is_cut_is_no_longer_kept(long_table: QuotaTable) -> None:
    cut(commit(long_table, 10), "nothing")
    assert (bound_at(long_table), bound_at(long_table, 9)) == (21.0, 9.0)
    for version in (10, 12):
        with pytest.raises(TableMissing, match=f"no version {version} .* is no longer kept"):
            long_table.read(version)


@pytest.mark.parametrize(("left", "is_log_cleaned"), [("nothing", False), ("zeros", True), ("half a line", False)])
def test_a_cut_checkpoint_costs_nothing_with_commits(is_log_cleaned: bool, left: str, long_table: QuotaTable) -> None:
    cut(checkpoint(long_table, 19), left)
    if is_log_cleaned:
        for version in range(19):
            commit(long_table, version).unlink()
    error = refused(long_table)
    assert "its checkpoint of version 19 is empty or cut" in error.message
    assert ("nothing is lost" in error.fix) == (not is_log_cleaned)
    run_fix(error)
    assert [row["producer_byte_rate"] for row in long_table.read().rows] == ([] if is_log_cleaned else [21.0])


def test_a_commit_that_needs_no_action_is_whole(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    for mode in ("overwrite", "append", "overwrite"):
        write_deltalake(uri, pa.table({"at_ms": [1, 2]}), mode=mode)
    write_deltalake(uri, pa.table({"at_ms": pa.array([], pa.int64())}), mode="append")
    table = DeltaTable(uri)
    table.delete("at_ms = 5")
    table.delete("at_ms = 1")
    table.update({"at_ms": "7"}, predicate="at_ms = 2")
    table.optimize.compact()
    table.vacuum(0, dry_run=False, enforce_retention_duration=False)
    of_spark = (
        b'{"commitInfo":{"timestamp":1,"operation":"VACUUM START","operationMetrics":{"numFilesToDelete":"3"}}}\n'
    )
    assert not is_cut(of_spark)
    assert read_table(uri)["at_ms"].to_pylist() == [7]
    assert open_table(uri).version() == table.version() > 6


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Path, int]]:
    """What the disk was asked to confirm, in order, each with the number of commits in its folder by then."""
    found: list[tuple[Path, int]] = []
    fsync = os.fsync

    def noted(descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        found.append((path, len([*path.parent.glob("*.json")])))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    return found


def test_an_edit_returns_when_the_disk_has_its_version(table: QuotaTable, synced: list[tuple[Path, int]]) -> None:
    edit_up_to(table, 5)
    needed = {*data_files(table), *(commit(table, version) for version in range(6))}
    needed |= {commit(table, 5).parent, Path(table.uri), Path(table.uri).parent}
    assert needed <= {path for path, _ in synced}
    synced.clear()
    table.set_mode("shadow", AUDIT)
    assert commit(table, 6) in {path for path, _ in synced}
    edit_up_to(table, 18)
    synced.clear()
    edit_up_to(table, 19)
    assert {checkpoint(table, 19), in_log(table, "_last_checkpoint")} <= {path for path, _ in synced}


def test_an_edit_that_the_disk_does_not_confirm_is_told(table: QuotaTable, monkeypatch: pytest.MonkeyPatch) -> None:
    failure = OSError(errno.EINVAL, "a file system that has no such call")

    def fail(_: int) -> None:
        raise failure

    monkeypatch.setattr(os, "fsync", fail)
    edit_up_to(table, 5)
    failure = OSError(errno.EIO, "Input/output error")
    with pytest.raises(PipelineError, match=r"may be lost with a power loss: .*Input/output error.* Fix: see the disk"):
        edit_up_to(table, 6)


def test_the_log_is_cleaned_when_the_disk_has_a_checkpoint(tmp_path: Path, synced: list[tuple[Path, int]]) -> None:
    uri = new_table(tmp_path, "dead_letters")
    for _ in range(3):
        write_deltalake(uri, dead_letters(), mode="append")
    old = sorted(Path(uri, "_delta_log").glob("*.json"))
    for path in old:
        os.utime(path, (0, 0))
    synced.clear()
    clean(uri)
    assert [kept for path, kept in synced if path.name.endswith(".checkpoint.parquet")] == [len(old)]
    assert len([path for path in old if path.exists()]) < len(old)
    assert read_table(uri).num_rows == 3
