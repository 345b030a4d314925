"""A full disk at each place of a commit: what is told to have failed is not stored, and what is stored is not lost."""

import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from deltalake import DeltaTable

from pipeline.tables.delta_rs import DeltaRsWriter
from pipeline.tables.layout import create_missing
from pipeline.tables.port import TableUnwritable
from pipeline.tables.quotas.table import QuotaTable
from pipeline.tables.upkeep import clean
from tests.pipeline.tables.factories import AUDIT, bound, dead_letters, job_writer, new_table, quota_table
from tests.soak.small_disk import small_disk

PAGE_BYTES = 4096
PAGES = (0, 1, 2, 4, 9)
"""An edit needs two, a checkpoint up to six."""
INTERVAL = 5
"""Every so many commits have a checkpoint."""
FULL = r"cannot be written: .*No space left on device .* Fix: nothing was written; see .* df -h /"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path, megabytes=8) as mounted:
        if mounted is None:
            pytest.skip("only root may mount a disk that is small enough to be filled")
        yield tmp_path


@contextmanager
def free_pages(disk: Path, pages: int) -> Iterator[None]:
    """Leave so much space on the disk until the end of the block."""
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file:
        for chunk_bytes in (1 << 20, PAGE_BYTES):
            with suppress(OSError):
                while True:
                    file.write(bytes(chunk_bytes))
        file.truncate(max(file.tell() - pages * PAGE_BYTES, 0))
    try:
        yield
    finally:
        ballast.unlink()


def edit(table: QuotaTable) -> None:
    table.alter([bound("alice", 1.0 + table.read().version)], AUDIT)


def edits(disk: Path) -> tuple[str, Callable[[], object], Callable[[], int]]:
    """The table of quotas, an edit of it, and the bound that the last edit has set: one above the version before it."""
    table = quota_table(disk)
    return table.uri, lambda: edit(table), lambda: int(sum(row["producer_byte_rate"] for row in table.read().rows))


def appends(disk: Path) -> tuple[str, Callable[[], object], Callable[[], int]]:
    """A table of the job, an append to it, and its number of rows, which is that of the recorded version."""
    job = job_writer(disk, "dead_letters")

    def rows() -> int:
        count: int = job.read(["offset"]).num_rows
        assert job.recorded_version("q") == (count - 1 if count else None)
        return count

    return job.uri, lambda: job.append(dead_letters(), {"q": rows()}, {}), rows


@pytest.mark.parametrize("kind", [edits, appends])
def test_a_write_to_a_full_disk_is_stored_or_told_to_have_failed(
    kind: Callable[[Path], tuple[str, Callable[[], object], Callable[[], int]]], disk: Path
) -> None:
    uri, write, stored = kind(disk)
    DeltaTable(uri).alter.set_table_properties({"delta.checkpointInterval": f"{INTERVAL}"})
    has_failed = set[bool]()
    for pages, version in [(pages, version) for version in (1, INTERVAL - 2) for pages in PAGES]:
        while DeltaTable(uri).version() % INTERVAL != version:
            write()
        before, before_version, failure = stored(), DeltaTable(uri).version(), None
        with free_pages(disk, pages):
            try:
                write()
            except TableUnwritable as exc:
                failure = exc
        assert DeltaTable(uri).version() == before_version + (failure is None)
        assert (stored() == before) == (failure is not None)
        assert failure is None or "No space left on device" in failure.message
        has_failed.add(failure is not None)
    assert has_failed == {False, True}
    write()


def test_what_else_writes_to_a_table_tells_a_full_disk_and_can_be_repeated(disk: Path) -> None:
    table, job_uri = quota_table(disk / "old"), new_table(disk / "old", "dead_letters")
    edit(table)
    writes: list[Callable[[], object]] = [
        lambda: create_missing(str(disk / "new")),
        lambda: table.set_mode("shadow", AUDIT),
        lambda: DeltaRsWriter(job_uri, "job").raise_epoch(1),
        lambda: clean(job_uri),
    ]
    with free_pages(disk, 0):
        for write in writes:
            with pytest.raises(TableUnwritable, match=FULL):
                write()
    remounted = subprocess.run(["/bin/mount", "-o", "remount,ro", str(disk)], check=False)
    if remounted.returncode == 0:
        for write in (*writes[:3], lambda: edit(table)):
            with pytest.raises(TableUnwritable, match=r"Read-only file system.* Fix: nothing was written; .*findmnt -"):
                write()
        subprocess.run(["/bin/mount", "-o", "remount,rw", str(disk)], check=True)
    for write in writes:
        write()
    assert QuotaTable(str(disk / "new")).read().rows == ()
    assert table.read().mode == "shadow"
