"""The present rates, as the live view shows them."""

import pytest

from tests.pipeline.observe.observed import ALICE, BOUND, T0_MS, observation, produced, quotas, second_of, send
from tests.quota.factories import quota_row


def test_a_rate_is_right_from_the_first_second_on() -> None:
    seen = observation(ALICE)
    seen.add(second_of(produced(BOUND, "1", "2"), 0))
    (line,) = seen.lines(T0_MS + 1_000)
    assert (line.by_broker, line.observed, line.used) == ({"1": BOUND, "2": BOUND}, 2 * BOUND, 2.0)
    assert line.sensor.level == 3


@pytest.mark.parametrize("seconds", [9, 10, 11, 40])
def test_a_steady_rate_stays_what_it_is(seconds: int) -> None:
    seen = observation(ALICE)
    send(seen, produced(BOUND, "1", "2"), 0, seconds)
    (line,) = seen.lines(T0_MS + seconds * 1_000)
    assert line.observed == 2 * BOUND


def test_the_most_critical_line_is_the_first_and_those_without_a_bound_come_last() -> None:
    snapshot = quotas(
        quota_row("alice", producer_byte_rate=float(BOUND)), quota_row("bob", producer_byte_rate=4.0 * BOUND)
    )
    seen = observation(snapshot)
    rates = {
        **produced(9 * BOUND, "1", user="carol"),
        **produced(2 * BOUND, "1", user="bob"),
        **produced(BOUND * 9 // 10, "1", user="alice"),
    }
    send(seen, rates, 0, 12)
    found = seen.lines(T0_MS + 12_000)
    assert [(line.sensor.user, line.used) for line in found] == [("alice", 0.9), ("bob", 0.5), ("carol", 0.0)]


def test_a_broker_that_reports_later_than_another_is_not_shown_with_less() -> None:
    seen = observation(ALICE)
    send(seen, produced(BOUND, "1", "2"), 0, 20)
    send(seen, produced(BOUND, "1"), 20, 21)
    (line,) = seen.lines(T0_MS + 21_000)
    assert line.by_broker == {"1": BOUND, "2": BOUND}


def test_a_broker_that_went_away_falls_to_nothing_and_not_at_once() -> None:
    seen = observation(ALICE)
    send(seen, produced(BOUND, "1", "2"), 0, 20)
    send(seen, produced(BOUND, "1"), 20, 25)
    (line,) = seen.lines(T0_MS + 25_000)
    assert line.by_broker["1"] == BOUND
    assert 0 < line.by_broker["2"] < BOUND
    send(seen, produced(BOUND, "1"), 25, 35)
    (line,) = seen.lines(T0_MS + 35_000)
    assert line.by_broker == {"1": BOUND}


def test_before_anything_is_used_there_are_no_lines() -> None:
    assert observation(ALICE).lines(T0_MS) == []
