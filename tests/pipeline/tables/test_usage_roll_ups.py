"""The roll-ups of usage on real tables: nothing is lost and nothing is counted twice, wherever they are interrupted."""

from collections import Counter
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pipeline.tables.delta_rs import DeltaRsWriter
from pipeline.tables.layout import TABLES, create_missing
from pipeline.tables.port import TableUnwritable, table_uri
from pipeline.tables.roll_ups import BY_MINUTE, BY_SECOND, MINUTE_MS, UsageRoller, UsageRollUp
from schemas.arrow import arrow_schema, conform
from schemas.usage import UsageRow
from tests.quota.factories import usage_row

T0_MS = 1_700_000_040_000
assert T0_MS % MINUTE_MS == 0
FAR_MS = T0_MS + 20 * MINUTE_MS
DAY_MS = 86_400_000
BOTH = [BY_SECOND, BY_MINUTE]


class LostAnswers(DeltaRsWriter):
    """A writer whose next append raises, either before or after the rows are stored."""

    fail_next: str | None = None

    def append(self, *arguments: Any) -> bool:
        failure, self.fail_next = self.fail_next, None
        if failure != "before":
            super().append(*arguments)
        if failure:
            raise TableUnwritable(self.uri, "no answer")
        return True


class Rolled:
    """A `usage` table and a roll-up of it, which is run step by step."""

    def __init__(self, folder: Path, by: UsageRollUp) -> None:
        self._by = by
        self._batch_id = self._driver = self.time_epoch = 0
        self.root = str(folder / "tables")
        create_missing(self.root, [TABLES["usage"], TABLES[f"usage_by_{by.name}"]])
        self.restart()

    def restart(self) -> None:
        """Start again as a new process, with nothing but the tables."""
        self.writer = LostAnswers(table_uri(self.root, f"usage_by_{self._by.name}"), "test")
        self._driver += 1
        self.writer.raise_epoch(self._driver)
        self.roll_up = UsageRoller(self._by, table_uri(self.root, "usage"), self.writer, "test")

    def use(self, *rows: dict[str, Any]) -> None:
        """Append the usage of one batch, evaluated at its newest event."""
        self._batch_id += 1
        table = pa.Table.from_pylist([{"request_count": 1, "exempt_time_ns": None, **row} for row in rows])
        stored = conform(
            table.cast(pa.schema([arrow_schema(UsageRow).field(name) for name in table.column_names])),
            UsageRow,
            cluster="c1",
            query_id="q1",
            batch_id=self._batch_id,
            time_epoch=self.time_epoch,
            evaluated_at_ms=max(row["last_event_ms"] for row in rows),
            quota_version=1,
        )
        write_deltalake(table_uri(self.root, "usage"), stored, mode="append")

    def interrupt(self, how: str) -> None:
        """Nothing, a restart, or a step, which may fail before or after its first append is stored."""
        if how == "restart":
            self.restart()
        elif how:
            self.writer.fail_next = None if how == "step" else how
            self.roll_up.step()

    def step(self) -> list[dict[str, Any]]:
        """Run one step. Returns all rows written so far, in order."""
        self.roll_up.step()
        table = DeltaTable(self.writer.uri).to_pyarrow_table()
        assert table.schema.names == arrow_schema(self._by.row).names
        names = (f"{self._by.name}_start_ms", "user", "last_event_ms", "produced_bytes")
        rows: list[dict[str, Any]] = table.sort_by([(name, "ascending") for name in names]).to_pylist()
        return rows

    def sums(self) -> list[tuple[int, str, int | None]]:
        """Run one step. Returns span, counted from T0, user and bytes produced of all rows written so far."""
        name, span_ms = f"{self._by.name}_start_ms", self._by.span_ms
        return [((row[name] - T0_MS) // span_ms, row["user"], row["produced_bytes"]) for row in self.step()]


def full(at_ms: int, **columns: Any) -> dict[str, Any]:
    """A row of usage without measures, but for those given."""
    empty = {"produced_bytes": None, "fetched_bytes": None, "io_time_ns": None, "network_time_ns": None}
    return usage_row(at_ms, **{**empty, **columns})


@pytest.fixture(params=BOTH, ids=lambda by: by.name)
def by(request: pytest.FixtureRequest) -> UsageRollUp:
    found: UsageRollUp = request.param
    return found


@pytest.fixture
def rolled(tmp_path: Path, by: UsageRollUp) -> Rolled:
    return Rolled(tmp_path, by)


@pytest.fixture
def seconds(tmp_path: Path) -> Rolled:
    return Rolled(tmp_path, BY_SECOND)


@pytest.fixture
def minutes(tmp_path: Path) -> Rolled:
    return Rolled(tmp_path, BY_MINUTE)


@pytest.mark.parametrize(("past_ms", "written"), [(-1, 0), (0, 1), (1, 1)])
def test_a_span_is_complete_when_stored_usage_is_past_its_end_by_the_lateness(
    rolled: Rolled, by: UsageRollUp, past_ms: int, written: int
) -> None:
    rolled.use(full(T0_MS, produced_bytes=1))
    rolled.use(full(T0_MS + by.span_ms + by.lateness_ms + past_ms, produced_bytes=1))
    assert len(rolled.step()) == written


def test_a_second_that_is_written_gets_nothing_more(seconds: Rolled) -> None:
    late_ms = BY_SECOND.lateness_ms
    seconds.use(full(T0_MS, produced_bytes=1))
    seconds.use(full(T0_MS + late_ms + 999, produced_bytes=2))
    seconds.step()
    seconds.use(full(T0_MS, produced_bytes=4))
    seconds.use(full(FAR_MS, produced_bytes=8))
    assert seconds.sums() == [(0, "u", 5), (late_ms // 1000, "u", 2)]
    seconds.use(full(T0_MS, produced_bytes=16), full(T0_MS + 5_000, user="v"), full(FAR_MS + 2, produced_bytes=1))
    assert seconds.sums() == [(0, "u", 5), (late_ms // 1000, "u", 2)]


@pytest.mark.parametrize(("past_ms", "rows"), [(-1, [(0, "u", 3)]), (0, [(0, "u", 1), (0, "u", 2)])])
def test_what_comes_after_the_lateness_is_a_row_of_its_minute(
    minutes: Rolled, past_ms: int, rows: list[tuple[int, str, int]]
) -> None:
    at_ms = T0_MS + MINUTE_MS + BY_MINUTE.lateness_ms + past_ms
    minutes.use(full(T0_MS + 1, produced_bytes=1))
    minutes.use(full(T0_MS + 2, produced_bytes=2), full(at_ms, user="clock"))
    minutes.use(full(FAR_MS, user="clock"))
    assert [row for row in minutes.sums() if row[1] == "u"] == rows


def test_a_row_late_by_days_is_added_to_its_minute(minutes: Rolled) -> None:
    minutes.use(full(T0_MS, produced_bytes=1))
    minutes.use(full(T0_MS + 3 * DAY_MS, produced_bytes=2))
    assert minutes.sums() == [(0, "u", 1)]
    minutes.use(full(T0_MS, produced_bytes=4), full(T0_MS + 3 * DAY_MS, user="clock"))
    minutes.use(full(T0_MS + 4 * DAY_MS, user="clock"))
    late_minute = 3 * DAY_MS // MINUTE_MS
    written = [row for row in minutes.sums() if row[1] == "u"]
    assert written == [(0, "u", 1), (0, "u", 4), (late_minute, "u", 2)]


def test_time_without_usage_costs_no_commit_also_after_an_event_of_1970(seconds: Rolled) -> None:
    before = DeltaTable(seconds.writer.uri).version()
    seconds.use(full(5_000, produced_bytes=1), full(T0_MS, produced_bytes=2))
    seconds.use(full(FAR_MS, produced_bytes=4))
    assert [row[2] for row in seconds.sums()] == [1, 2]
    assert DeltaTable(seconds.writer.uri).version() == before + 2
    assert seconds.roll_up.written_until_ms == FAR_MS - BY_SECOND.lateness_ms


def test_trimmed_and_compacted_usage_changes_nothing(rolled: Rolled) -> None:
    for number in range(4):
        rolled.use(full(T0_MS + number, produced_bytes=1), full(T0_MS + 5_000, user="v", produced_bytes=1))
    rolled.use(full(FAR_MS, produced_bytes=1))
    written = rolled.step()
    usage = DeltaTable(table_uri(rolled.root, "usage"))
    usage.optimize.compact()
    usage.delete("user = 'v'")
    rolled.use(full(FAR_MS + 1, produced_bytes=1))
    assert rolled.step() == written


def test_it_knows_until_when_usage_is_rolled_up_and_says_0_before_the_first_step(
    rolled: Rolled, by: UsageRollUp
) -> None:
    assert rolled.roll_up.written_until_ms == 0
    rolled.use(full(T0_MS + 70, produced_bytes=1))
    rolled.step()
    assert rolled.roll_up.written_until_ms == T0_MS
    rolled.use(full(FAR_MS + 90, produced_bytes=1))
    rolled.step()
    assert rolled.roll_up.written_until_ms == FAR_MS - max(by.lateness_ms, by.span_ms)


def test_a_missing_table_is_logged_and_raises_nothing(
    rolled: Rolled, by: UsageRollUp, caplog: pytest.LogCaptureFixture
) -> None:
    rolled.use(full(T0_MS), full(FAR_MS))
    for file in Path(rolled.writer.uri, "_delta_log").iterdir():
        file.unlink()
    rolled.roll_up.step()
    assert f"the roll-up by {by.name} failed" in caplog.text


def test_a_sum_is_null_only_if_all_values_are_null(rolled: Rolled) -> None:
    rolled.use(
        full(T0_MS, produced_bytes=None, fetched_bytes=0, io_time_ns=3, broker_throttle_ms=None),
        full(T0_MS + 1, produced_bytes=None, fetched_bytes=None, io_time_ns=None, broker_throttle_ms=40),
    )
    rolled.use(full(FAR_MS))
    (row,) = rolled.step()
    names = ("produced_bytes", "fetched_bytes", "io_time_ns", "network_time_ns", "exempt_time_ns", "request_count")
    assert tuple(row[name] for name in (*names, "broker_throttle_ms")) == (None, 0, 3, None, None, 2, 40)
    assert row["date"] == date(2023, 11, 14)


def test_a_sum_beyond_any_integer_is_cut_and_not_negative(minutes: Rolled) -> None:
    largest_of_a_row = 2**61
    minutes.use(*[full(T0_MS + second * 1_000, produced_bytes=largest_of_a_row) for second in range(9)])
    minutes.use(full(FAR_MS, user="clock"))
    assert minutes.sums() == [(0, "u", 2**62)]


Batch = tuple[int, list[tuple[int, int]]]
"""By how much the newest event is newer than that of the batch before; and the age and bytes of each further row.

Below 0 a clock was set back, and the batch begins a new time epoch.
"""
STEPS_MS = [0, 1, 7_000, 50_000, MINUTE_MS, 3 * MINUTE_MS, -20_000, -60 * MINUTE_MS]
AGES_MS = [0, 1, 9_999, 10_000, 10_001, MINUTE_MS, 5 * MINUTE_MS]
"""Of these a second takes what is at most a minute older than the batch before; see `_is_in_time`."""
STEPPED: list[Batch] = [(0, [(0, 3)]), (MINUTE_MS, []), (-60 * MINUTE_MS, [(0, 5)]), (3 * MINUTE_MS, [(MINUTE_MS, 7)])]

batches = st.lists(
    st.tuples(
        st.sampled_from(STEPS_MS), st.lists(st.tuples(st.sampled_from(AGES_MS), st.integers(1, 1_000)), max_size=4)
    ),
    min_size=1,
    max_size=8,
)


@settings(max_examples=15)
@example(by=BY_MINUTE, batches=STEPPED, interruptions=["step", "step", "after", "restart"])
@example(
    by=BY_MINUTE, batches=[*STEPPED, (-20_000, [(0, 9)])], interruptions=["", "before", "restart", "before", "step"]
)
@given(
    by=st.sampled_from(BOTH),
    batches=batches,
    interruptions=st.lists(st.sampled_from(["", "step", "restart", "before", "after"]), max_size=8),
)
def test_the_sum_of_each_span_is_that_of_a_batch_computation_over_all_usage(
    by: UsageRollUp, batches: list[Batch], interruptions: list[str]
) -> None:
    with TemporaryDirectory() as folder:
        rolled = Rolled(Path(folder), by)
        wanted: Counter[int] = Counter()
        now_ms = T0_MS + 20 * MINUTE_MS
        for number, (newer_ms, others) in enumerate(batches):
            before_ms, now_ms = now_ms, now_ms + newer_ms
            rolled.time_epoch += newer_ms < 0
            oldest_ms = before_ms if by is BY_SECOND and newer_ms >= 0 else now_ms
            used = [(now_ms, 1), *((oldest_ms - age_ms, size) for age_ms, size in others if _is_in_time(by, age_ms))]
            rolled.use(*[full(at_ms, produced_bytes=size) for at_ms, size in used])
            for at_ms, used_bytes in used:
                wanted[at_ms // by.span_ms] += used_bytes
            rolled.interrupt(interruptions[number] if number < len(interruptions) else "")
        rolled.use(full(now_ms + 10 * MINUTE_MS, user="clock"))
        rolled.step()
        got: Counter[int] = Counter()
        for span, user, size in rolled.sums():
            if user == "u":
                got[span + T0_MS // by.span_ms] += size or 0
        assert got == wanted


def _is_in_time(by: UsageRollUp, age_ms: int) -> bool:
    return by is BY_MINUTE or age_ms <= BY_SECOND.lateness_ms


@pytest.mark.parametrize("step_ms", [20_000, 3_600_000])
def test_what_is_left_of_an_epoch_that_is_over_is_written_at_once(
    rolled: Rolled, by: UsageRollUp, step_ms: int
) -> None:
    rolled.use(full(T0_MS + step_ms, produced_bytes=1, user="old"))
    rolled.step()
    rolled.time_epoch = 1
    rolled.use(full(T0_MS, produced_bytes=2))
    assert [row[1:] for row in rolled.sums()] == [("old", 1)]
    rolled.use(full(T0_MS + by.span_ms + by.lateness_ms, produced_bytes=4))
    assert {row[1:] for row in rolled.sums()} == {("old", 1), ("u", 2)}
    assert rolled.roll_up.written_until_ms <= T0_MS + by.span_ms


def test_usage_of_an_old_epoch_that_could_not_be_rolled_up_is_said_to_be_unread(rolled: Rolled) -> None:
    rolled.use(full(T0_MS, produced_bytes=1))
    rolled.step()
    rolled.time_epoch = 1
    rolled.use(full(T0_MS + 2 * DAY_MS, produced_bytes=2))
    rolled.writer.fail_next = "before"
    rolled.step()
    assert rolled.roll_up.written_until_ms <= T0_MS
    rolled.step()
    assert rolled.roll_up.written_until_ms > T0_MS + DAY_MS
