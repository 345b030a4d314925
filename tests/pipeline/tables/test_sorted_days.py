import random
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from threading import Thread

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from pipeline.errors import Conflict
from pipeline.tables.address import table_uri
from pipeline.tables.delta_rs import DeltaRsWriter
from pipeline.tables.layout import TABLES, create_missing
from pipeline.tables.upkeep import sort_day
from schemas.arrow import conform
from schemas.usage import UsageByMinuteRow
from tests.waiting import wait_until

START_MS = 1_699_920_000_000
DAY, NEXT_DAY = "2023-11-14", "2023-11-15"
NAMES = ("o'brien", "alice", "zoë", "")


def minute(number: int) -> pa.Table:
    """One minute's rows, in no order: some clients of each user."""
    users = random.Random(number).sample([f"user-{one}" for one in range(20)] + [*NAMES[:3]], 23)
    rows = pa.table({"user": users, "client_id": [NAMES[(place + number) % 4] for place in range(23)]})
    starts = {"minute_start_ms": START_MS + number * 60_000, "last_event_ms": 1, "produced_bytes": number}
    return conform(rows, UsageByMinuteRow, cluster="c1", broker_id="1", request_count=1, **starts)


@pytest.fixture
def uri(tmp_path: Path) -> str:
    create_missing(str(tmp_path), [TABLES["usage_by_minute"]])
    return table_uri(str(tmp_path), "usage_by_minute")


@pytest.fixture
def job(uri: str) -> DeltaRsWriter:
    writer = DeltaRsWriter(uri, "job")
    writer.raise_epoch(1)
    return writer


def write(job: DeltaRsWriter, *numbers: int) -> None:
    for number in numbers:
        assert job.append(minute(number), {"job:minute": START_MS + number * 60_000}, {})


def stored(job: DeltaRsWriter) -> list[tuple[object, ...]]:
    rows = job.read(["minute_start_ms", "user", "client_id", "produced_bytes", "cluster", "date"]).to_pylist()
    return sorted(tuple(row.values()) for row in rows)


def of(*numbers: int) -> list[tuple[object, ...]]:
    rows = pa.concat_tables([minute(number) for number in numbers])
    kept = rows.select(["minute_start_ms", "user", "client_id", "produced_bytes", "cluster", "date"]).to_pylist()
    return sorted(tuple(row.values()) for row in kept)


def test_a_day_becomes_one_file_in_the_order_of_users_with_the_same_rows(uri: str, job: DeltaRsWriter) -> None:
    write(job, *range(8))
    assert sort_day(uri, many_files=7) == DAY
    (file,) = DeltaTable(uri).file_uris()
    users = pq.read_table(file, columns=["user"])["user"].to_pylist()
    assert users == sorted(users)
    assert stored(job) == of(*range(8))


def test_the_job_goes_on_where_it_was_and_repeats_nothing(uri: str, job: DeltaRsWriter) -> None:
    write(job, 0, 1)
    assert sort_day(uri, many_files=1) == DAY
    assert not job.append(minute(1), {"job:minute": START_MS + 60_000}, {}), "it is in the table already"
    write(job, 2)
    assert DeltaRsWriter(uri, "job").recorded_version("job:minute") == START_MS + 120_000
    assert stored(job) == of(0, 1, 2)


def test_only_days_with_many_files_are_rewritten(uri: str, job: DeltaRsWriter) -> None:
    write(job, 0, 1, 2, 1_440, 1_441)
    before = DeltaTable(uri).version()
    assert sort_day(uri, many_files=3) is None
    assert DeltaTable(uri).version() == before
    assert sort_day(uri, many_files=2) == DAY
    assert len(DeltaTable(uri).file_uris()) == 3
    assert stored(job) == of(0, 1, 2, 1_440, 1_441)


def test_a_day_that_is_over_is_rewritten_once_and_the_newest_is_left_alone(uri: str, job: DeltaRsWriter) -> None:
    write(job, 0, 1)
    time.sleep(0.01)
    write(job, 1_440, 1_441)
    assert sort_day(uri, many_files=60, quiet_ms=0) == DAY
    time.sleep(0.01)
    write(job, 1_442)
    assert sort_day(uri, many_files=60, quiet_ms=0) is None
    assert sort_day(uri, many_files=1) == NEXT_DAY
    assert stored(job) == of(0, 1, 1_440, 1_441, 1_442)


def test_rewriting_while_the_job_writes_loses_and_doubles_nothing(uri: str, job: DeltaRsWriter) -> None:
    def go_on() -> None:
        for number in range(40):
            write(job, number)
            time.sleep(0.02)

    writing = Thread(target=go_on)
    writing.start()
    rewritten = 0
    while writing.is_alive():
        with suppress(Conflict):  # other commits came first at every attempt; the next round does it
            rewritten += sort_day(uri, many_files=2) is not None
    writing.join()
    rewritten += sort_day(uri, many_files=1) is not None
    assert rewritten >= 1
    assert stored(job) == of(*range(40))


def test_a_rewrite_that_is_killed_changes_no_row_and_the_next_one_does_it(uri: str, job: DeltaRsWriter) -> None:
    write(job, *range(6))
    files = len(list(Path(uri).rglob("*.parquet*")))
    endless = "import sys; from pipeline.tables.upkeep import sort_day\nwhile True: sort_day(sys.argv[1], 0, 0)"
    with subprocess.Popen([sys.executable, "-c", endless, uri]) as rewriting:
        try:
            wait_until(lambda: len(list(Path(uri).rglob("*.parquet*"))) > files, "a file that it writes")
        finally:
            rewriting.kill()
    assert stored(job) == of(*range(6))
    write(job, 6)
    assert sort_day(uri, many_files=0) == DAY
    assert stored(job) == of(*range(7))
