"""The roll-up on real tables. delta-rs appends to `usage`, as in the job."""

from collections import Counter, defaultdict
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.tables.address import table_uri
from pipeline.tables.roll_ups import BY_SECOND
from tests.pipeline.tables.rollups.rolled_usage import T0_MS, Rolled, full, sums

LATENESS_MS = BY_SECOND.lateness_ms
FAR_MS = T0_MS + 10 * LATENESS_MS


@pytest.fixture
def rolled(tmp_path: Path) -> Rolled:
    return Rolled(tmp_path)


@pytest.mark.parametrize(
    ("newest_ms", "written"), [(LATENESS_MS + 999, 0), (LATENESS_MS + 1_000, 1), (LATENESS_MS + 1_001, 1)]
)
def test_a_second_is_complete_when_stored_usage_is_past_its_end_by_the_lateness(
    rolled: Rolled, newest_ms: int, written: int
) -> None:
    rolled.use(full(T0_MS + 999, produced_bytes=1))
    rolled.use(full(T0_MS + newest_ms, produced_bytes=1))
    assert len(rolled.step()) == written


def test_usage_that_comes_when_its_second_is_written_already_is_left_out(rolled: Rolled) -> None:
    rolled.use(full(T0_MS, produced_bytes=1))
    rolled.use(full(T0_MS + LATENESS_MS + 999, produced_bytes=2))
    rolled.step()
    rolled.use(full(T0_MS, produced_bytes=4))
    rolled.use(full(FAR_MS, produced_bytes=8))
    assert sums(rolled.step()) == [(0, "u", 5), (LATENESS_MS, "u", 2)]
    rolled.use(full(T0_MS, produced_bytes=16), full(T0_MS + 5_000, user="v"), full(FAR_MS + 2, produced_bytes=1))
    assert sums(rolled.step()) == [(0, "u", 5), (LATENESS_MS, "u", 2)]


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


def test_it_knows_until_when_usage_is_rolled_up_and_says_0_before_the_first_step(rolled: Rolled) -> None:
    assert rolled.roll_up.written_until_ms == 0
    rolled.use(full(T0_MS + 70, produced_bytes=1))
    rolled.step()
    assert rolled.roll_up.written_until_ms == T0_MS
    rolled.use(full(T0_MS + 2 * LATENESS_MS + 90, produced_bytes=1))
    rolled.step()
    assert rolled.roll_up.written_until_ms == T0_MS + LATENESS_MS


def test_a_missing_table_is_logged_and_raises_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rolled = Rolled(tmp_path)
    rolled.use(full(T0_MS), full(FAR_MS))
    for file in Path(rolled.root, "usage_by_second", "_delta_log").iterdir():
        file.unlink()
    rolled.roll_up.step()
    assert "the roll-up by second failed" in caplog.text


def test_an_event_of_1970_does_not_keep_the_roll_up_in_1970(rolled: Rolled) -> None:
    rolled.use(full(5_000, produced_bytes=1), full(T0_MS, produced_bytes=2))
    rolled.use(full(FAR_MS, produced_bytes=4))
    assert sums(rolled.step()) == [(5_000 - T0_MS, "u", 1), (0, "u", 2)]
    assert rolled.roll_up.written_until_ms == FAR_MS - LATENESS_MS
    assert rolled.writer.version == 3, "a commit for each second with usage, besides creation and epoch"


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


BATCHES = st.lists(
    st.tuples(
        st.integers(0, 4 * (LATENESS_MS + BY_SECOND.step_ms)),
        st.lists(st.tuples(st.integers(0, LATENESS_MS), st.sampled_from("uvw"), st.integers(0, 9)), max_size=4),
        st.sampled_from(["wait", "step", "restart", "before", "after"]),
    ),
    max_size=8,
)


@settings(max_examples=8)
@given(BATCHES)
def test_whatever_fails_each_second_has_the_sum_of_all_usage_that_came_in_time(
    batches: list[tuple[int, list[tuple[int, str, int]], str]],
) -> None:
    expected: defaultdict[tuple[int, str], int] = defaultdict(int)
    newest_ms = T0_MS
    with TemporaryDirectory() as folder:
        rolled = Rolled(Path(folder))
        for after_ms, late, then in [*batches, (10 * LATENESS_MS, [], "step")]:
            at_ms = newest_ms + after_ms
            rows = [(max(newest_ms - late_ms, T0_MS), user, used) for late_ms, user, used in late]
            for used_at_ms, user, used in [*rows, (at_ms, "z", 1)]:
                expected[used_at_ms // 1_000 * 1_000, user] += used
            rolled.use(*(full(used, user=user, produced_bytes=value) for used, user, value in [*rows, (at_ms, "z", 1)]))
            newest_ms = at_ms
            if then in {"before", "after"}:
                rolled.writer.fail_next = then
            if then == "restart":
                rolled.restart()
            if then != "wait":
                rolled.step()
        written = rolled.step()
    assert {(row["second_start_ms"], row["user"]): row["produced_bytes"] for row in written} == {
        key: used for key, used in expected.items() if key[0] < newest_ms - LATENESS_MS - 999
    }
    assert len(written) == len({(row["second_start_ms"], row["user"]) for row in written})


@pytest.mark.parametrize(
    ("step_ms", "restarts"),
    [
        (20_000, True),
        (3_600_000, False),
        pytest.param(20_000, False, marks=pytest.mark.long),
        pytest.param(3_600_000, True, marks=pytest.mark.long),
    ],
)
def test_after_a_clock_was_set_back_all_seconds_of_both_epochs_are_written(
    rolled: Rolled, step_ms: int, restarts: bool
) -> None:
    for second in range(0, 90, 10):
        rolled.use(full(T0_MS + step_ms + second * 1_000, produced_bytes=1))
    rolled.step()
    rolled.time_epoch = 1
    for second in range(0, 150, 10):
        rolled.use(full(T0_MS + second * 1_000, produced_bytes=100))
        if restarts:
            rolled.restart()
        rolled.step()
    complete = [second for second in range(0, 150, 10) if second < 140 - LATENESS_MS // 1_000]
    wanted = Counter({second + step_ms // 1_000: 1 for second in range(0, 90, 10)})
    wanted.update(dict.fromkeys(complete, 100))
    got: Counter[int] = Counter()
    for start_ms, _, size in sums(rolled.step()):
        got[start_ms // 1_000] += size
    assert got == wanted
