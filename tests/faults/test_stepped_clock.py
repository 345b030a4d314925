"""What a verdict knows of a wall clock that was set."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.faults.evidence import Evidence
from tests.faults.stepped_clock import COMPILER, ClockHistory, stepped_clock

HISTORY = ClockHistory(
    steps=[(100_000, 0), (130_000, 20_001), (150_000, 2), (170_000, -3_599_997)], lives=[101_000, 140_000]
)


@pytest.mark.parametrize(
    ("reading_ms", "moved_ms"),
    [
        (120_000, 0),
        (150_001, 20_001),
        (149_991, 20_001),
        (160_001, 20_001),
        (160_002, 2),
        (170_002, 2),
        (-3_429_987, -3_599_997),
    ],
)
def test_a_reading_tells_since_which_step_it_was_taken(reading_ms: int, moved_ms: int) -> None:
    assert HISTORY.moved_ms(reading_ms) == moved_ms


@pytest.mark.parametrize("reading_ms", [120_004, 130_110, 99_890, 149_881, 170_112])
def test_what_the_clock_never_showed_is_refused(reading_ms: int) -> None:
    with pytest.raises(ValueError, match="never showed"):
        HISTORY.moved_ms(reading_ms)


def test_rows_and_starts_are_put_on_the_first_clock() -> None:
    tables: dict[str, list[dict[str, Any]]] = {
        "batches": [{"processed_at_ms": 160_001}],
        "throttle_events": [
            {"publish_seq": 0, "throttled_until_ms": 121_000, "throttle_time_ms": 1_000, "due_ms": None},
            {"publish_seq": 1, "throttled_until_ms": 161_002, "throttle_time_ms": 1_000, "due_ms": 180_000},
        ],
    }
    told = HISTORY.tell(Evidence("usage", [], [], tables, {}, starts=[110_000, 162_001, 155_002]))
    assert told.tables["batches"][0]["moved_ms"] == 20_001
    assert [row["moved_ms"] for row in told.tables["throttle_events"]] == [0, 2]
    assert [row["due_ms"] for row in told.tables["throttle_events"]] == [None, 159_999]
    assert told.starts == [110_000, 142_000, 155_000]
    assert told.moved == [(0, 0), (20_001, 1), (2, 1)]


@pytest.mark.skipif(COMPILER is None, reason="needs a C compiler: apt-get install gcc libc6-dev")
def test_processes_of_its_block_follow_the_clock_and_this_one_does_not(tmp_path: Path) -> None:
    program = "import time; print(time.time_ns() // 1_000_000, int(time.time() * 1_000))"
    shown, wanted = [], []
    with stepped_clock(tmp_path) as clock:
        for seconds in (0, 3_600, -3_620):
            clock.step(seconds)
            wanted.append(clock.steps[-1][1])
            done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
            shown.append([ClockHistory(clock.steps).moved_ms(int(one)) for one in done.stdout.split()])
    assert shown == [[ahead_ms] * 2 for ahead_ms in wanted]
    assert wanted == [1, 3_600_002, -19_997]
