"""Rows of the job lie in the partition of the day they were evaluated at, whatever day a client's event has."""

import random
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from threading import Thread

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from pipeline.clock import wall_ms
from pipeline.errors import Conflict
from pipeline.tables import upkeep
from pipeline.tables.delta_rs import DeltaRsWriter
from pipeline.tables.layout import TABLES, create_missing
from pipeline.tables.port import table_uri
from pipeline.tables.queries import read_table
from pipeline.tables.upkeep import clean, compact, sort_day, trim
from schemas.arrow import conform
from schemas.rows import SensorStateRow
from schemas.usage import UsageByMinuteRow, UsageRow
from tests.waiting import wait_until

NOON_MS = 1_699_963_200_000 + 43_200_000
DAY_MS = 86_400_000


def state(batch_id: int, evaluated_at_ms: int = NOON_MS) -> pa.Table:
    rows = pa.table({"tokens": [float(batch_id)]})
    return conform(
        rows,
        SensorStateRow,
        cluster="c1",
        query_id="q1",
        batch_id=batch_id,
        evaluated_at_ms=evaluated_at_ms,
        broker_id="",
        sensor_user="alice",
        sensor_client_id="",
        quota_type="producer_byte_rate",
        refilled_at_ms=NOON_MS,
    )


@pytest.fixture
def uri(tmp_path: Path) -> str:
    create_missing(str(tmp_path), [TABLES["sensor_state"]])
    return table_uri(str(tmp_path), "sensor_state")


@pytest.fixture
def job(uri: str) -> DeltaRsWriter:
    writer = DeltaRsWriter(uri, "job")
    writer.raise_epoch(1)
    return writer


def kept(job: DeltaRsWriter) -> list[int]:
    return sorted(job.read(["batch_id"])["batch_id"].to_pylist())


def test_compaction_and_cleaning_keep_rows_and_versions_and_the_job_can_continue(uri: str, job: DeltaRsWriter) -> None:
    for batch_id in range(10):
        job.append(state(batch_id), {"q1": batch_id}, {})
    assert compact(uri, many_files=5)
    clean(uri)
    assert len(DeltaTable(uri).file_uris()) == 1
    assert Path(uri, "_delta_log", f"{DeltaTable(uri).version():020}.checkpoint.parquet").exists()
    assert not job.append(state(9), {"q1": 9}, {})
    assert job.append(state(10), {"q1": 10}, {})
    assert kept(job) == list(range(11))
    assert DeltaRsWriter(uri, "job").recorded_version("q1") == 10


@pytest.mark.parametrize(
    ("before_ms", "left"),
    [
        (NOON_MS - DAY_MS, [0, 1, 2, 3]),  # nothing is older; a row at this instant stays
        (NOON_MS - DAY_MS + 1, [1, 2, 3]),
        (NOON_MS, [1, 2, 3]),
        (NOON_MS + 1, [2, 3]),
        (NOON_MS + 2, [3]),
        (NOON_MS + DAY_MS, []),
    ],
)
def test_trimming_deletes_the_rows_before_the_instant_and_no_others(
    uri: str, job: DeltaRsWriter, before_ms: int, left: list[int]
) -> None:
    for batch_id, at_ms in enumerate((NOON_MS - DAY_MS, NOON_MS, NOON_MS + 1, NOON_MS + 2)):
        job.append(state(batch_id, at_ms), {"q1": batch_id}, {})
    compact(uri, many_files=0)
    assert trim(uri, "evaluated_at_ms", before_ms) == 4 - len(left)
    assert kept(job) == left
    version = DeltaTable(uri).version()
    assert trim(uri, "evaluated_at_ms", before_ms) == 0
    assert DeltaTable(uri).version() == version, "nothing to delete, no commit"


def test_upkeep_while_the_job_writes_loses_no_rows(uri: str, job: DeltaRsWriter) -> None:
    def write() -> None:
        for batch_id in range(60):
            job.append(state(batch_id, NOON_MS + batch_id), {"q1": batch_id}, {})
            time.sleep(0.03)

    writing = Thread(target=write)
    writing.start()
    trimmed = 0
    while writing.is_alive():
        with suppress(Conflict):  # on a slow machine other commits come first at every attempt; the next round does it
            trimmed += trim(uri, "evaluated_at_ms", NOON_MS + 20)
            compact(uri, many_files=3)
    writing.join()
    trimmed += trim(uri, "evaluated_at_ms", NOON_MS + 20)
    assert trimmed == 20
    assert kept(job) == list(range(20, 60))


def usage(batch_id: int, evaluated_at_ms: int, *starts_ms: int) -> pa.Table:
    names = {"broker_id": "", "user": "u", "client_id": "c", "request_count": 1}
    rows = [{"sample_start_ms": start_ms, "last_event_ms": start_ms, **names} for start_ms in starts_ms]
    same = {"batch_id": batch_id, "evaluated_at_ms": evaluated_at_ms}
    return conform(pa.Table.from_pylist(rows), UsageRow, cluster="c", query_id="q", quota_version=1, **same)


@pytest.fixture
def usage_uri(tmp_path: Path) -> str:
    create_missing(str(tmp_path), [TABLES["usage"]])
    return table_uri(str(tmp_path), "usage")


def test_events_of_many_days_in_one_batch_are_one_file(usage_uri: str) -> None:
    writer = DeltaRsWriter(usage_uri, "job")
    writer.raise_epoch(1)
    writer.append(usage(0, NOON_MS, *(NOON_MS - DAY_MS * days for days in range(400))), {"q": 0}, {})
    assert len(DeltaTable(usage_uri).file_uris()) == 1
    assert read_table(usage_uri, ["date"])["date"].unique().to_pylist() == [
        datetime.fromtimestamp(NOON_MS / 1000, UTC).date()
    ]


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
def at(tmp_path: Path) -> str:
    create_missing(str(tmp_path), [TABLES["usage_by_minute"]])
    return table_uri(str(tmp_path), "usage_by_minute")


@pytest.fixture
def minutes(at: str) -> DeltaRsWriter:
    writer = DeltaRsWriter(at, "job")
    writer.raise_epoch(1)
    return writer


@pytest.fixture
def limit(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Sets how many files a day that still gets rows may have."""
    return lambda files: monkeypatch.setattr(upkeep, "_FILES_OF_A_DAY", files)


def write(minutes: DeltaRsWriter, *numbers: int) -> None:
    for number in numbers:
        assert minutes.append(minute(number), {"job:minute": START_MS + number * 60_000}, {})


def stored(minutes: DeltaRsWriter) -> list[tuple[object, ...]]:
    rows = minutes.read(["minute_start_ms", "user", "client_id", "produced_bytes", "cluster", "date"]).to_pylist()
    return sorted(tuple(row.values()) for row in rows)


def of(*numbers: int) -> list[tuple[object, ...]]:
    rows = pa.concat_tables([minute(number) for number in numbers])
    kept = rows.select(["minute_start_ms", "user", "client_id", "produced_bytes", "cluster", "date"]).to_pylist()
    return sorted(tuple(row.values()) for row in kept)


def test_a_day_becomes_one_file_in_the_order_of_users_with_the_same_rows(
    at: str, minutes: DeltaRsWriter, limit: Callable[[int], None]
) -> None:
    write(minutes, *range(8))
    limit(7)
    assert sort_day(at) == DAY
    (file,) = DeltaTable(at).file_uris()
    users = pq.read_table(file, columns=["user"])["user"].to_pylist()
    assert users == sorted(users)
    assert stored(minutes) == of(*range(8))


def test_only_days_with_many_files_are_rewritten(at: str, minutes: DeltaRsWriter, limit: Callable[[int], None]) -> None:
    write(minutes, 0, 1, 2, 1_440, 1_441)
    before = DeltaTable(at).version()
    limit(3)
    assert sort_day(at) is None
    assert DeltaTable(at).version() == before
    limit(2)
    assert sort_day(at) == DAY
    assert len(DeltaTable(at).file_uris()) == 3
    assert stored(minutes) == of(0, 1, 2, 1_440, 1_441)


def test_a_day_that_is_over_for_long_becomes_one_file(at: str, minutes: DeltaRsWriter) -> None:
    write(minutes, 0, 1, 1_440, 1_441, 2_880)
    assert [sort_day(at) for _ in range(2)] == [DAY, None]
    assert len(DeltaTable(at).file_uris()) == 4
    assert stored(minutes) == of(0, 1, 1_440, 1_441, 2_880)


def test_rows_that_a_clock_dated_ahead_do_not_make_today_a_day_that_is_over(at: str, minutes: DeltaRsWriter) -> None:
    now = (wall_ms() - START_MS) // 60_000
    write(minutes, now - 1_441, now - 1_440, now, now + 3 * 1_440)
    assert sort_day(at) is None


def test_rewriting_while_the_job_writes_loses_and_doubles_nothing(
    at: str, minutes: DeltaRsWriter, limit: Callable[[int], None]
) -> None:
    def go_on() -> None:
        for number in range(40):
            write(minutes, number)
            time.sleep(0.02)

    writing = Thread(target=go_on)
    writing.start()
    rewritten = 0
    limit(2)
    while writing.is_alive():
        with suppress(Conflict):  # other commits came first at every attempt; the next round does it
            rewritten += sort_day(at) is not None
    writing.join()
    limit(1)
    rewritten += sort_day(at) is not None
    assert rewritten >= 1
    assert stored(minutes) == of(*range(40))


def test_a_rewrite_that_is_killed_changes_no_row_and_the_next_one_does_it(
    at: str, minutes: DeltaRsWriter, limit: Callable[[int], None]
) -> None:
    write(minutes, *range(6))
    files = len(list(Path(at).rglob("*.parquet*")))
    endless = (
        "import sys; from pipeline.tables import upkeep\n"
        "upkeep._FILES_OF_A_DAY = 0\nwhile True: upkeep.sort_day(sys.argv[1])"
    )
    with subprocess.Popen([sys.executable, "-c", endless, at]) as rewriting:
        try:
            wait_until(lambda: len(list(Path(at).rglob("*.parquet*"))) > files, "a file that it writes")
        finally:
            rewriting.kill()
    assert stored(minutes) == of(*range(6))
    write(minutes, 6)
    limit(0)
    assert sort_day(at) == DAY
    assert stored(minutes) == of(*range(7))
