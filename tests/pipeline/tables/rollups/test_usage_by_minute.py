"""The roll-up by minute on real tables: nothing is lost and nothing is counted twice, however late it comes."""

from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pipeline.tables.roll_ups import BY_MINUTE, MINUTE_MS
from tests.pipeline.tables.rollups.rolled_usage import DAY_MS, RolledMinutes, full

T0_MS = 1_700_000_040_000
LATENESS_MS = BY_MINUTE.lateness_ms
assert T0_MS % MINUTE_MS == 0
FAR_MS = T0_MS + 10 * MINUTE_MS


@pytest.fixture
def rolled(tmp_path: Path) -> RolledMinutes:
    return RolledMinutes(tmp_path)


def minutes(rows: list[dict[str, Any]]) -> list[tuple[int, str, int | None]]:
    """Minute, counted from T0, user and bytes produced of each row."""
    return [((row["minute_start_ms"] - T0_MS) // MINUTE_MS, row["user"], row["produced_bytes"]) for row in rows]


@pytest.mark.parametrize(("past_ms", "written"), [(-1, 0), (0, 1), (1, 1)])
def test_a_minute_is_complete_when_stored_usage_is_past_its_end_by_the_lateness(
    rolled: RolledMinutes, past_ms: int, written: int
) -> None:
    rolled.use(full(T0_MS, produced_bytes=1))
    rolled.use(full(T0_MS + MINUTE_MS + LATENESS_MS + past_ms, produced_bytes=1))
    assert len(rolled.step()) == written


@pytest.mark.parametrize(("past_ms", "rows"), [(-1, [(0, "u", 3)]), (0, [(0, "u", 1), (0, "u", 2)])])
def test_what_comes_after_the_lateness_is_a_row_of_its_own(
    rolled: RolledMinutes, past_ms: int, rows: list[tuple[int, str, int]]
) -> None:
    at_ms = T0_MS + MINUTE_MS + LATENESS_MS + past_ms
    rolled.use(full(T0_MS + 1, produced_bytes=1))
    rolled.use(full(T0_MS + 2, produced_bytes=2), full(at_ms, user="clock"))
    rolled.use(full(FAR_MS, user="clock"))
    assert [row for row in minutes(rolled.step()) if row[1] == "u"] == rows


def test_a_row_late_by_days_is_added_to_its_minute_without_reading_the_time_between(rolled: RolledMinutes) -> None:
    rolled.use(full(T0_MS, produced_bytes=1))
    rolled.use(full(T0_MS + 3 * DAY_MS, produced_bytes=2))
    assert minutes(rolled.step()) == [(0, "u", 1)]
    rolled.use(full(T0_MS, produced_bytes=4), full(T0_MS + 3 * DAY_MS, user="clock"))
    rolled.use(full(T0_MS + 4 * DAY_MS, user="clock"))
    late_minute = 3 * DAY_MS // MINUTE_MS
    written = [row for row in minutes(rolled.step()) if row[1] == "u"]
    assert written == [(0, "u", 1), (0, "u", 4), (late_minute, "u", 2)]


def test_it_knows_until_when_usage_is_rolled_up_and_says_0_before_the_first_step(
    rolled: RolledMinutes,
) -> None:
    assert rolled.minutes.written_until_ms == 0
    rolled.use(full(T0_MS + 70, produced_bytes=1))
    rolled.step()
    assert rolled.minutes.written_until_ms == T0_MS
    rolled.use(full(FAR_MS, produced_bytes=1))
    rolled.step()
    assert rolled.minutes.written_until_ms == T0_MS + MINUTE_MS


def test_a_sum_beyond_any_integer_is_cut_and_not_negative(rolled: RolledMinutes) -> None:
    largest_of_a_row = 2**53
    for _ in range(9):
        rolled.use(*[full(T0_MS + second * 1_000, produced_bytes=largest_of_a_row) for second in range(60)])
    rolled.use(full(FAR_MS, user="clock"))
    (row,) = [row for row in rolled.step() if row["user"] == "u"]
    assert row["produced_bytes"] == 2**62


Batch = tuple[int, list[tuple[int, int]]]
"""By how much the newest event is newer than that of the batch before; and the age and bytes of each further row.

Below 0 a clock was set back, and the batch begins a new time epoch.
"""

batches = st.lists(
    st.tuples(
        st.sampled_from([0, 1, 7_000, MINUTE_MS - LATENESS_MS, MINUTE_MS, 3 * MINUTE_MS, -20_000, -60 * MINUTE_MS]),
        st.lists(
            st.tuples(
                st.sampled_from([0, 1, LATENESS_MS - 1, LATENESS_MS, LATENESS_MS + 1, MINUTE_MS, 5 * MINUTE_MS]),
                st.integers(1, 1_000),
            ),
            max_size=4,
        ),
    ),
    min_size=1,
    max_size=8,
)


STEPPED: list[Batch] = [(0, [(0, 3)]), (MINUTE_MS, []), (-60 * MINUTE_MS, [(0, 5)]), (3 * MINUTE_MS, [(MINUTE_MS, 7)])]


@settings(max_examples=10)
@example(batches=STEPPED, interruptions=["step", "step", "after", "restart"])
@example(batches=[*STEPPED, (-20_000, [(0, 9)])], interruptions=["", "before", "restart", "before", "step"])
@given(batches=batches, interruptions=st.lists(st.sampled_from(["", "step", "restart", "before", "after"]), max_size=8))
def test_the_sum_of_each_minute_is_that_of_a_batch_computation_over_all_usage(
    batches: list[Batch], interruptions: list[str]
) -> None:
    with TemporaryDirectory() as folder:
        rolled = RolledMinutes(Path(folder))
        wanted: Counter[int] = Counter()
        now_ms = T0_MS + 20 * MINUTE_MS
        for number, (newer_ms, others) in enumerate(batches):
            now_ms += newer_ms
            rolled.time_epoch = rolled.time_epoch + (newer_ms < 0)
            ages = [(0, 1), *others]
            rolled.use(*[full(now_ms - age_ms, produced_bytes=size) for age_ms, size in ages])
            for age_ms, size in ages:
                wanted[(now_ms - age_ms) // MINUTE_MS] += size
            interruption = interruptions[number] if number < len(interruptions) else ""
            if interruption == "restart":
                rolled.restart()
            elif interruption:
                rolled.writer.fail_next = None if interruption == "step" else interruption
                rolled.step()
        rolled.use(full(now_ms + 10 * MINUTE_MS, user="clock"))
        rolled.step()
        got: Counter[int] = Counter()
        for row in rolled.step():
            if row["user"] == "u":
                got[row["minute_start_ms"] // MINUTE_MS] += row["produced_bytes"]
        assert got == wanted


@pytest.mark.parametrize("step_ms", [20_000, 3_600_000])
def test_the_first_minute_after_a_clock_was_set_back_is_written_when_it_is_complete(
    rolled: RolledMinutes, step_ms: int
) -> None:
    rolled.use(full(T0_MS + step_ms, produced_bytes=1, user="old"))
    rolled.step()
    rolled.time_epoch = 1
    rolled.use(full(T0_MS, produced_bytes=2))
    assert minutes(rolled.step())[0][1:] == ("old", 1), "of an epoch that is over all is written at once"
    rolled.use(full(T0_MS + MINUTE_MS + LATENESS_MS, produced_bytes=4))
    assert {row[1:] for row in minutes(rolled.step())} == {("old", 1), ("u", 2)}
    assert rolled.minutes.written_until_ms <= T0_MS + MINUTE_MS


def test_usage_of_an_old_epoch_that_could_not_be_rolled_up_is_said_to_be_unread(rolled: RolledMinutes) -> None:
    rolled.use(full(T0_MS, produced_bytes=1))
    rolled.step()
    rolled.time_epoch = 1
    rolled.use(full(T0_MS + 2 * DAY_MS, produced_bytes=2))
    rolled.writer.fail_next = "before"
    rolled.step()
    assert rolled.minutes.written_until_ms <= T0_MS
    rolled.step()
    assert rolled.minutes.written_until_ms > T0_MS + DAY_MS
