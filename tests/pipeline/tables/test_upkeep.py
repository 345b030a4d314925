"""Old rows go, small files are merged, days are sorted and logs are cleaned, while the job writes; no row is lost."""

import random
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
from pipeline.tables.queries import read_table
from pipeline.tables.upkeep import clean, compact, sort_day, trim
from schemas.arrow import conform
from schemas.usage import UsageByMinuteRow
from tests.pipeline.tables.factories import job_writer, usage
from tests.quota.factories import usage_row

NOON_MS = 1_699_963_200_000 + 43_200_000
DAY_MS = 86_400_000


@pytest.fixture
def job(tmp_path: Path) -> DeltaRsWriter:
    return job_writer(tmp_path, "usage")


def batch(batch_id: int, evaluated_at_ms: int) -> pa.Table:
    return usage(usage_row(NOON_MS), batch_id=batch_id, evaluated_at_ms=evaluated_at_ms)


def kept(job: DeltaRsWriter) -> list[int]:
    return sorted(job.read(["batch_id"])["batch_id"].to_pylist())


def test_compaction_and_cleaning_keep_rows_and_versions_and_the_job_can_continue(job: DeltaRsWriter) -> None:
    for batch_id in range(10):
        job.append(batch(batch_id, NOON_MS), {"q1": batch_id}, {})
    assert not compact(job.uri, many_files=10)
    assert compact(job.uri, many_files=9)
    clean(job.uri)
    assert len(DeltaTable(job.uri).file_uris()) == 1
    assert Path(job.uri, "_delta_log", f"{DeltaTable(job.uri).version():020}.checkpoint.parquet").exists()
    assert not job.append(batch(9, NOON_MS), {"q1": 9}, {})
    assert job.append(batch(10, NOON_MS), {"q1": 10}, {})
    assert kept(job) == list(range(11))
    assert DeltaRsWriter(job.uri, "job").recorded_version("q1") == 10


def test_replaced_files_go_also_if_the_log_was_cleaned_since_they_were_replaced(job: DeltaRsWriter) -> None:
    retention = {"delta.deletedFileRetentionDuration": "interval 0 seconds"}
    DeltaTable(job.uri).alter.set_table_properties(retention, raise_if_not_exists=False)
    for batch_id in range(3):
        job.append(batch(batch_id, NOON_MS), {"q1": batch_id}, {})
    assert compact(job.uri, many_files=2)
    clean(job.uri, files=False)
    job.append(batch(3, NOON_MS), {"q1": 3}, {})
    assert clean(job.uri) >= 3
    assert len([*Path(job.uri).rglob("*=*/*.parquet")]) == len(DeltaTable(job.uri).file_uris()) == 2


def test_trimming_deletes_the_rows_before_the_instant_and_no_others(job: DeltaRsWriter) -> None:
    for batch_id, at_ms in enumerate((NOON_MS - DAY_MS, NOON_MS, NOON_MS + 1, NOON_MS + 2)):
        job.append(batch(batch_id, at_ms), {"q1": batch_id}, {})
    compact(job.uri, many_files=0)
    for before_ms, left in (
        (NOON_MS - DAY_MS, [0, 1, 2, 3]),  # nothing is older; a row at this instant stays
        (NOON_MS - DAY_MS + 1, [1, 2, 3]),
        (NOON_MS, [1, 2, 3]),
        (NOON_MS + 1, [2, 3]),
        (NOON_MS + 2, [3]),
        (NOON_MS + DAY_MS, []),
    ):
        count, version = len(kept(job)), DeltaTable(job.uri).version()
        assert trim(job.uri, "evaluated_at_ms", before_ms) == count - len(left)
        assert kept(job) == left
        assert DeltaTable(job.uri).version() == version + (count > len(left)), "nothing to delete, no commit"


def test_events_of_many_days_in_one_batch_are_one_file(job: DeltaRsWriter) -> None:
    """Rows lie in the partition of the day they were evaluated at, whatever day a client's event has."""
    rows = (usage_row(NOON_MS - DAY_MS * days) for days in range(400))
    job.append(usage(*rows, evaluated_at_ms=NOON_MS), {"q": 0}, {})
    assert len(DeltaTable(job.uri).file_uris()) == 1
    assert read_table(job.uri, ["date"])["date"].unique().to_pylist() == [
        datetime.fromtimestamp(NOON_MS / 1000, UTC).date()
    ]


START_MS = 1_699_920_000_000
DAY = "2023-11-14"
NAMES = ("o'brien", "alice", "zoë", "")


def minute(number: int) -> pa.Table:
    """One minute's rows, in no order: some clients of each user."""
    users = random.Random(number).sample([f"user-{one}" for one in range(20)] + [*NAMES[:3]], 23)
    rows = pa.table({"user": users, "client_id": [NAMES[(place + number) % 4] for place in range(23)]})
    starts = {"minute_start_ms": START_MS + number * 60_000, "last_event_ms": 1, "produced_bytes": number}
    return conform(rows, UsageByMinuteRow, cluster="c1", broker_id="1", request_count=1, **starts)


@pytest.fixture
def minutes(tmp_path: Path) -> DeltaRsWriter:
    return job_writer(tmp_path, "usage_by_minute")


@pytest.fixture
def limit(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Sets how many files a day that still gets rows may have."""
    return lambda files: monkeypatch.setattr(upkeep, "_FILES_OF_A_DAY", files)


def write(minutes: DeltaRsWriter, *numbers: int) -> None:
    for number in numbers:
        assert minutes.append(minute(number), {"job:minute": START_MS + number * 60_000}, {})


COLUMNS = ["minute_start_ms", "user", "client_id", "produced_bytes", "cluster", "date"]


def values_of(rows: pa.Table) -> list[tuple[object, ...]]:
    return sorted(tuple(row.values()) for row in rows.select(COLUMNS).to_pylist())


def assert_stored(minutes: DeltaRsWriter, *numbers: int) -> None:
    assert values_of(minutes.read(COLUMNS)) == values_of(pa.concat_tables([minute(number) for number in numbers]))


def test_a_day_becomes_one_file_in_the_order_of_users(minutes: DeltaRsWriter, limit: Callable[[int], None]) -> None:
    write(minutes, *range(8))
    limit(7)
    assert sort_day(minutes.uri) == DAY
    (file,) = DeltaTable(minutes.uri).file_uris()
    users = pq.read_table(file, columns=["user"])["user"].to_pylist()
    assert users == sorted(users)
    assert_stored(minutes, *range(8))


def test_only_days_with_many_files_are_rewritten(minutes: DeltaRsWriter, limit: Callable[[int], None]) -> None:
    write(minutes, 0, 1, 2, 1_440, 1_441)
    before = DeltaTable(minutes.uri).version()
    limit(3)
    assert (sort_day(minutes.uri), DeltaTable(minutes.uri).version()) == (None, before)
    limit(2)
    assert sort_day(minutes.uri) == DAY
    assert len(DeltaTable(minutes.uri).file_uris()) == 3
    assert_stored(minutes, 0, 1, 2, 1_440, 1_441)


def test_a_day_that_is_over_for_long_becomes_one_file(minutes: DeltaRsWriter) -> None:
    write(minutes, 0, 1, 1_440, 1_441, 2_880)
    assert [sort_day(minutes.uri) for _ in range(2)] == [DAY, None]
    assert len(DeltaTable(minutes.uri).file_uris()) == 4


def test_rows_that_a_clock_dated_ahead_do_not_make_today_a_day_that_is_over(minutes: DeltaRsWriter) -> None:
    now = (wall_ms() - START_MS) // 60_000
    write(minutes, now - 1_441, now - 1_440, now, now + 3 * 1_440)
    assert sort_day(minutes.uri) is None


def test_upkeep_beside_a_job_loses_and_doubles_nothing(minutes: DeltaRsWriter, limit: Callable[[int], None]) -> None:
    limit(2)
    writing = Thread(target=write, args=(minutes, *range(40)))
    writing.start()
    trimmed = rewritten = 0
    while writing.is_alive():
        with suppress(Conflict):  # other commits came first at every attempt; the next round does it
            rewritten += sort_day(minutes.uri) is not None
            trimmed += trim(minutes.uri, "minute_start_ms", START_MS + 10 * 60_000)
            rewritten += compact(minutes.uri, many_files=3)
    writing.join()
    trimmed += trim(minutes.uri, "minute_start_ms", START_MS + 10 * 60_000)
    limit(0)
    rewritten += sort_day(minutes.uri) == DAY
    assert (trimmed, rewritten > 0) == (10 * 23, True)
    assert_stored(minutes, *range(10, 40))
