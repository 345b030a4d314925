"""The contract of the monotonic clock, for the system's clock and for the one that tests move by hand."""

import time

import pytest

from purgatory.timer import MonotonicClock, SystemMonotonicClock
from tests.fakes.monotonic_clock import ManualMonotonicClock


@pytest.mark.parametrize(
    "clock",
    [SystemMonotonicClock(), ManualMonotonicClock(), ManualMonotonicClock(7)],
    ids=("system", "manual", "manual from 7"),
)
def test_a_clock_tells_whole_milliseconds_that_never_go_back(clock: MonotonicClock) -> None:
    readings = [clock.monotonic_ms() for _ in range(1000)]
    assert all(type(reading) is int and reading >= 0 for reading in readings)
    assert readings == sorted(readings)


def test_the_system_clock_counts_milliseconds() -> None:
    clock = SystemMonotonicClock()
    for _ in range(100):
        before_ns = time.monotonic_ns()
        now_ms = clock.monotonic_ms()
        assert before_ns // 1_000_000 <= now_ms <= time.monotonic_ns() // 1_000_000


def test_the_manual_clock_moves_by_hand_only() -> None:
    clock = ManualMonotonicClock(5)
    assert clock.monotonic_ms() == clock.monotonic_ms() == 5
    clock.advance(3)
    assert clock.monotonic_ms() == 8
