"""What a power loss leaves of a table is refused with the command that goes on; what must not be lost is waited for."""

import errno
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from pipeline.errors import PipelineError, TableMissing
from pipeline.tables.log_files import is_cut
from pipeline.tables.opening import open_table
from pipeline.tables.port import TableUnreadable
from pipeline.tables.queries import read_table
from pipeline.tables.quotas.table import QuotaTable
from pipeline.tables.upkeep import clean
from tests.pipeline.tables.factories import AUDIT, dead_letters, edit_up_to, new_table, quota_table

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
def test_a_cut_checkpoint_loses_nothing_while_commits_are_kept(
    is_log_cleaned: bool, left: str, long_table: QuotaTable
) -> None:
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
