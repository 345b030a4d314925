"""What is remembered of the times at which the job worked equals what the table says."""

import random
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from pipeline.dashboard.reader import BatchParts
from pipeline.dashboard.recent import WatchedTable
from pipeline.errors import TableMissing
from pipeline.tables.address import table_uri
from pipeline.tables.layout import TABLES, create_missing
from schemas.arrow import conform
from schemas.rows import BatchRow

START_MS = 1_700_000_040_000
PART_MS = 30_000


class Batches:
    """The table, and what was written to it."""

    def __init__(self, root: Path) -> None:
        self.at_ms: list[int] = []
        self._uri = table_uri(str(root), "batches")
        create_missing(str(root), [TABLES["batches"]])
        self.watched = WatchedTable(str(root), "batches")
        self.asked: list[str] = []
        query = self.watched.query

        def noted(sql: str) -> pa.Table:
            self.asked.append(sql)
            return query(sql)

        self.watched.query = noted  # type: ignore[method-assign]

    def write(self, *at_ms: int) -> None:
        self.at_ms += at_ms
        counts = dict.fromkeys(("good_count", "late_count", "clamped_count", "ignored_count", "dead_count"), 0)
        rows = pa.table({"evaluated_at_ms": [*at_ms], "processed_at_ms": [*at_ms], "batch_id": [*at_ms]})
        texts = {"start_offsets": "{}", "end_offsets": "{}", "engine_settings": "{}", "query_id": "q", "cluster": "c"}
        write_deltalake(self._uri, conform(rows, BatchRow, quota_version=1, **counts, **texts), mode="append")
        self.watched.refresh(max(at_ms))

    def parts(self, since_ms: int, until_ms: int) -> list[int]:
        """As a look at all rows tells it."""
        starts = {at_ms // PART_MS * PART_MS for at_ms in self.at_ms}
        return sorted(start for start in starts if start + PART_MS > since_ms and start < until_ms)


@pytest.fixture
def batches(tmp_path: Path) -> Batches:
    return Batches(tmp_path)


def test_whatever_is_asked_in_whatever_order_the_answer_is_that_of_the_table(batches: Batches) -> None:
    chance, known = random.Random(4), BatchParts()
    end_ms = START_MS
    for _ in range(12):
        begin_ms = end_ms + chance.choice([0, 400_000])
        end_ms = begin_ms + 90_000
        batches.write(*range(begin_ms, end_ms, 5_000))
        for _ in range(4):
            since_ms = START_MS + chance.randrange(-100_000, end_ms - START_MS)
            until_ms = since_ms + chance.randrange(1, 500_000)
            in_memory = batches.at_ms[len(batches.at_ms) - chance.choice([0, 3, 17]) :]
            found = known.in_span(batches.watched, PART_MS, since_ms, until_ms, in_memory)
            assert found == batches.parts(since_ms, until_ms)


def test_a_part_with_a_batch_is_not_read_again_and_one_of_the_last_minute_without_is(batches: Batches) -> None:
    known = BatchParts()
    batches.write(*range(START_MS, START_MS + 570_000, 1_000), START_MS + 615_000)
    for _ in range(2):
        known.in_span(batches.watched, PART_MS, START_MS, START_MS + 630_000)
    assert len(batches.asked) == 2
    assert f"evaluated_at_ms >= {START_MS + 570_000} " in batches.asked[1]
    known.in_span(batches.watched, PART_MS, START_MS + 60_000, START_MS + 120_000)
    assert len(batches.asked) == 2


def test_batches_that_are_in_memory_are_not_read(batches: Batches) -> None:
    known = BatchParts()
    batches.write(*range(START_MS, START_MS + 600_000, 1_000))
    newest = batches.at_ms[-120:]
    known.in_span(batches.watched, PART_MS, START_MS, START_MS + 600_000, newest)
    (asked,) = batches.asked
    assert f"evaluated_at_ms < {newest[0] + PART_MS}" in asked
    # What came since is in memory, and so is the minute that may not be settled.
    known.in_span(batches.watched, PART_MS, START_MS, START_MS + 600_000, newest)
    assert len(batches.asked) == 1


def test_without_a_table_nothing_is_remembered(tmp_path: Path) -> None:
    with pytest.raises(TableMissing):
        BatchParts().in_span(WatchedTable(str(tmp_path), "batches"), PART_MS, 0, 1)
