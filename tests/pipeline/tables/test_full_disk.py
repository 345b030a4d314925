"""A full disk at each place of a commit: what is told to have failed is not stored, and what is stored is not lost."""

import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest
from deltalake import DeltaTable

from pipeline.tables.delta_rs import DeltaRsWriter
from pipeline.tables.layout import TABLES, create_missing
from pipeline.tables.port import TableUnwritable
from pipeline.tables.quotas.edit import QuotaChange
from pipeline.tables.quotas.table import EditAudit, QuotaTable
from pipeline.tables.upkeep import clean
from tests.pipeline.tables.test_delta_rs import dead_letters
from tests.soak.small_disk import small_disk

AUDIT = EditAudit(actor="carol", host="ops1", tool_version="0.1.0", reason="")
PAGE_BYTES = 4096
PAGES = (0, 1, 2, 4, 9)
"""An edit needs two, a checkpoint up to six."""
WITH_CHECKPOINT = 19
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
        with suppress(OSError):
            while True:
                file.write(bytes(PAGE_BYTES))
        file.truncate(max(file.tell() - pages * PAGE_BYTES, 0))
    try:
        yield
    finally:
        ballast.unlink()


def failure_of(write: Callable[[], object]) -> TableUnwritable | None:
    try:
        write()
    except TableUnwritable as exc:
        return exc
    return None


def edit(table: QuotaTable) -> None:
    table.alter([QuotaChange("alice", "", {"producer_byte_rate": 1.0 + table.read().version})], AUDIT)


def test_an_edit_on_a_full_disk_is_stored_or_told_to_have_failed_at_every_place(disk: Path) -> None:
    create_missing(str(disk), [TABLES["quotas"]])
    table = QuotaTable(str(disk))
    has_failed = []
    for pages, version in [(pages, version) for version in (5, WITH_CHECKPOINT - 1) for pages in PAGES]:
        while table.read().version % 20 != version:
            edit(table)
        before = table.read()
        with free_pages(disk, pages):
            failure = failure_of(lambda: edit(table))
        assert table.read().version == before.version + (failure is None)
        assert (table.read().rows == before.rows) == (failure is not None)
        assert failure is None or "No space left on device" in failure.message
        has_failed.append(failure is not None)
    assert {*has_failed} == {False, True}
    edit(table)


def test_an_append_on_a_full_disk_is_stored_or_told_to_have_failed_at_every_place(disk: Path) -> None:
    create_missing(str(disk), [TABLES["dead_letters"]])
    uri = str(disk / "dead_letters")
    # The quota table's interval, so that the disk can be small.
    DeltaTable(uri).alter.set_table_properties({"delta.checkpointInterval": "20"})
    job = DeltaRsWriter(uri, "job")
    job.raise_epoch(1)
    has_failed, stored = [], 0
    for pages, version in [(pages, version) for version in (5, WITH_CHECKPOINT - 1) for pages in PAGES]:
        while DeltaTable(uri).version() % 20 != version:
            stored += job.append(dead_letters(), {"q": stored}, {})
        with free_pages(disk, pages):
            failure = failure_of(partial(job.append, dead_letters(), {"q": stored}, {}))
        stored += failure is None
        assert (job.recorded_version("q"), job.read(["offset"]).num_rows) == (stored - 1, stored)
        has_failed.append(failure is not None)
    assert {*has_failed} == {False, True}


def test_what_else_writes_to_a_table_tells_a_full_disk_and_can_be_repeated(disk: Path) -> None:
    create_missing(str(disk / "old"), [TABLES["quotas"]])
    table = QuotaTable(str(disk / "old"))
    edit(table)
    job_uri = str(disk / "old" / "dead_letters")
    create_missing(str(disk / "old"), [TABLES["dead_letters"]])
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
