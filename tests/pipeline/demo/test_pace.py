"""A steady rate, a stop while blocked, and no catching up."""

import pytest

from pipeline.demo.clients import Pace


def sent_bytes(pace: Pace, start_ms: int, end_ms: int, blocked: range = range(0), step_ms: int = 1) -> int:
    total, now_ms = 0, start_ms
    while now_ms < end_ms:
        if pace.wait_ms(now_ms, max(0, blocked.stop - now_ms) if now_ms in blocked else 0) <= 0:
            pace.used(100, now_ms)
            total += 100
        now_ms += step_ms
    return total


def test_the_rate_is_kept() -> None:
    assert sent_bytes(Pace(1_000), 0, 60_000) == pytest.approx(60_000, abs=200)


def test_small_delays_do_not_lower_the_rate() -> None:
    assert sent_bytes(Pace(1_000), 0, 60_000, step_ms=37) == pytest.approx(60_000, abs=200)


def test_nothing_is_sent_while_blocked_and_the_rate_is_the_same_after() -> None:
    pace = Pace(1_000)

    assert sent_bytes(pace, 0, 10_000, blocked=range(4_000, 9_000)) == pytest.approx(5_000, abs=200)
    assert sent_bytes(pace, 10_000, 20_000) == pytest.approx(10_000, abs=200)


def test_a_throttle_that_is_released_early_ends_early() -> None:
    pace = Pace(1_000)

    assert pace.wait_ms(0, blocked_ms=5_000) == 5_000
    assert pace.wait_ms(100, blocked_ms=0) == 0
