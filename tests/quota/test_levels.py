"""The control of levels: one period at a time, on rates that a test writes down."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quota.broker_level import broker_level
from quota.broker_levels.levels import NEVER_MS, RULES, LevelState, Proposals, propose
from quota.broker_levels.usage import BrokerView
from quota.broker_levels.writes import Cause

T = 100.0
NOW_MS = 1_700_000_000_000


def view(recent: list[float], observed: list[float] | None = None, at_ms: int = NOW_MS, age_ms: int = 10) -> BrokerView:
    """One entity. Unless given, O is the recent rate."""
    shape = (1, len(recent))
    return BrokerView(
        at_ms,
        np.array([observed or recent], np.float64),
        np.full(shape, 10_999, np.int64),
        np.array([recent], np.float64),
        np.full(shape, at_ms - age_ms, np.int64),
    )


def state(level: float, brokers: int = 2, at_ms: int = NOW_MS, **changes: Any) -> LevelState:
    never = np.array([NEVER_MS])
    started = LevelState.start(np.array([level]), never, never, brokers, at_ms)
    return replace(started, **{name: np.array(value) for name, value in changes.items()})


def proposed(view: BrokerView, bound: float, before: LevelState, now_ms: int) -> tuple[Proposals, LevelState]:
    """One period. Every write moved a level, and no bound was edited."""
    return propose(view, np.array([bound]), before, now_ms, np.array([False]), before.altered_at_ms)


def confirmed(recent: list[float], before: LevelState, observed: list[float] | None = None) -> Proposals:
    """What is proposed when the same has been seen for as long as an alter needs."""
    for at_ms in (NOW_MS, NOW_MS + RULES.confirm_ms):
        proposals, before = proposed(view(recent, observed, at_ms), T, before, at_ms)
    return proposals


def told(proposals: Proposals) -> tuple[float, Cause]:
    return round(float(proposals.level[0]), 6), Cause(int(proposals.cause[0]))


@pytest.mark.parametrize(
    ("recent", "level", "expected"),
    [
        pytest.param([0.0, 0.0], T, (T, Cause.KEPT), id="no demand"),
        pytest.param([50.0, 52.0], T, (T, Cause.KEPT), id="1.02 T is not above"),
        pytest.param([50.0, 52.1], T, (50.0, Cause.TOGETHER_ABOVE), id="above 1.02 T"),
        pytest.param([110.0, 10.0], T, (90.0, Cause.TOGETHER_ABOVE), id="the first throttles"),
        pytest.param([30.0, 20.0], 50.0, (50.0, Cause.KEPT), id="all fits below T"),
        pytest.param([48.4, 20.0], 50.0, (50.0, Cause.KEPT), id="below 0.97 L"),
        pytest.param([48.5, 20.0], 50.0, (80.0, Cause.ROOM_LEFT), id="0.97 L is pressing"),
        pytest.param([95.5, 4.6], 95.0, (95.0, Cause.KEPT), id="less than 5 % lower"),
        pytest.param([200.0, 200.0], 50.0, (50.0, Cause.KEPT), id="even already"),
    ],
)
def test_the_level_follows_the_demand(recent: list[float], level: float, expected: tuple[float, Cause]) -> None:
    assert told(confirmed(recent, state(level))) == expected


@pytest.mark.parametrize(
    ("recent", "later_ms", "since_altered_ms", "cause"),
    [
        pytest.param([60.0, 50.0], 1_999, None, Cause.KEPT, id="not yet confirmed"),
        pytest.param([60.0, 50.0], 2_000, None, Cause.TOGETHER_ABOVE, id="confirmed"),
        pytest.param([60.0, 60.0], 0, None, Cause.KEPT, id="not far above"),
        pytest.param([60.0, 60.1], 0, None, Cause.TOGETHER_ABOVE, id="far above: at once"),
        pytest.param([90.0, 90.0], 2_000, 9_999, Cause.KEPT, id="less than ten seconds after the last"),
        pytest.param([90.0, 90.0], 2_000, 10_000, Cause.TOGETHER_ABOVE, id="ten seconds after the last"),
    ],
)
def test_a_move_must_last_or_be_large_and_comes_at_most_every_ten_seconds(
    recent: list[float], later_ms: int, since_altered_ms: int | None, cause: Cause
) -> None:
    altered: dict[str, Any] = (
        {} if since_altered_ms is None else {"altered_at_ms": [NOW_MS + later_ms - since_altered_ms]}
    )
    proposals, seen = proposed(view(recent), T, state(T, **altered), NOW_MS)
    if later_ms:
        assert told(proposals)[1] is Cause.KEPT
        proposals, _ = proposed(view(recent, at_ms=NOW_MS + later_ms), T, seen, NOW_MS + later_ms)
    assert told(proposals)[1] is cause


def test_a_broker_that_throttles_is_unbounded_until_some_time_after_its_mute() -> None:
    # O = 60 at L = 50 over 10.999 s: muted for 2.2 s after the event. It then hides that it wants nothing any more.
    _, seen = proposed(view([60.0, 10.0]), T, state(50.0), NOW_MS)
    mute_ms = 2_200
    until_ms = NOW_MS - 10 + mute_ms + RULES.saturated_hold_ms
    for at_ms, unbounded in ((until_ms - 1, True), (until_ms, False)):
        proposals, _ = proposed(view([0.0, 10.0], at_ms=at_ms, age_ms=2_000), T, seen, at_ms)
        assert proposals.demand[0].tolist() == ([math.inf, 10.0] if unbounded else [0.0, 10.0])


@pytest.mark.parametrize(("observed", "unbounded"), [(48.49, False), (48.5, True)])
def test_a_broker_counts_as_throttling_from_97_percent_of_the_level_on(observed: float, unbounded: bool) -> None:
    proposals, _ = proposed(view([10.0, 10.0], [observed, 10.0]), T, state(50.0), NOW_MS)
    assert math.isinf(proposals.demand[0, 0]) is unbounded


def test_events_from_before_the_last_alter_do_not_say_who_throttles() -> None:
    before = state(50.0, altered_at_ms=[NOW_MS])
    proposals, _ = proposed(view([80.0, 30.0], age_ms=1), T, before, NOW_MS)
    assert proposals.demand[0].tolist() == [80.0, 30.0]
    proposals, _ = proposed(view([80.0, 30.0], age_ms=0), T, before, NOW_MS)
    assert proposals.demand[0].tolist() == [math.inf, 30.0]


@pytest.mark.parametrize(
    ("quiet_ms", "over_ms", "recent", "expected"),
    [
        (59_999, 700_000, [20.0, 0.0], (60.0, Cause.KEPT)),
        (60_000, 700_000, [20.0, 0.0], (T, Cause.QUIET)),
        (60_000, 600_000, [20.0, 0.0], (T, Cause.QUIET)),
        (60_000, 599_999, [20.0, 0.0], (50.0, Cause.QUIET_OFFENDER)),
        (60_000, 599_999, [40.0, 0.0], (50.0, Cause.QUIET_OFFENDER)),
        (60_000, 599_999, [40.1, 0.0], (60.0, Cause.KEPT)),
        (60_000, 700_000, [50.0, 0.0], (60.0, Cause.KEPT)),
    ],
)
def test_an_entity_that_has_been_quiet_costs_nothing_more(
    quiet_ms: int, over_ms: int, recent: list[float], expected: tuple[float, Cause]
) -> None:
    before = state(60.0, used_at_ms=[NOW_MS - quiet_ms], over_at_ms=[NOW_MS - over_ms], side_since_ms=[NOW_MS - 5_000])
    side = {Cause.QUIET: 1, Cause.QUIET_OFFENDER: -1, Cause.KEPT: -1}[expected[1]]
    proposals, _ = proposed(view(recent), T, replace(before, side=np.array([side])), NOW_MS)
    assert told(proposals) == expected


@pytest.mark.parametrize(
    ("level", "brokers", "expected"),
    [
        pytest.param(120.0, 2, (T, Cause.OUT_OF_RANGE), id="the bound was lowered"),
        pytest.param(T / 3, 2, (50.0, Cause.OUT_OF_RANGE), id="one of three brokers has left"),
        pytest.param(50.0, 3, (50.0, Cause.KEPT), id="a broker has joined"),
        pytest.param(0.5, 3, (T / 3, Cause.OUT_OF_RANGE), id="far below"),
    ],
)
def test_a_level_out_of_range_is_corrected_at_once(level: float, brokers: int, expected: tuple[float, Cause]) -> None:
    before = state(level, brokers, altered_at_ms=[NOW_MS])
    proposals, _ = proposed(view([1.0] * brokers), T, before, NOW_MS)
    assert told(proposals) == (round(expected[0], 6), expected[1])


INF = math.inf
RATES = st.floats(0.0, 1e12, allow_nan=False)
BOUNDS = st.floats(1e-3, 1e12, allow_nan=False)
BROKERS = st.lists(st.tuples(RATES, st.booleans()), min_size=1, max_size=30)


def level(demand: list[float], bound: float, saturated: list[bool] | None = None) -> float:
    return broker_level(np.array(demand, np.float64), np.array(saturated or [False] * len(demand), np.bool_), bound)


@pytest.mark.parametrize(
    ("demand", "bound", "expected"),
    [
        ([60.0, 30.0, 90.0], 100.0, 35.0),
        ([0.0, 0.0], 100.0, 100.0),
        ([50.0, 50.0], 100.0, 100.0),  # all fits, exactly
        ([50.0, 50.5], 100.0, 50.0),  # 50 is what the first wants and what each gets
        ([40.0, 61.0], 100.0, 60.0),
        ([INF, INF], 100.0, 50.0),
        ([0.0, INF], 100.0, 100.0),
        ([100.0, INF], 100.0, 50.0),
        ([150.0], 100.0, 100.0),
        ([INF], 100.0, 100.0),
        ([], 100.0, 100.0),
        ([5.0, 0.0], 0.0, 0.0),
        ([0.0, 0.0], 0.0, 0.0),
    ],
)
def test_the_level_at_the_edges(demand: list[float], bound: float, expected: float) -> None:
    assert level(demand, bound) == expected


@given(brokers=BROKERS, bounds=st.tuples(BOUNDS, BOUNDS))
def test_the_brokers_give_the_bound_together_or_all_that_is_wanted(
    brokers: list[tuple[float, bool]], bounds: tuple[float, float]
) -> None:
    demand, saturated = map(list, zip(*brokers, strict=True))
    bound, larger = sorted(bounds)
    found = level(demand, bound, saturated)
    assert bound / len(demand) <= found <= bound
    assert found <= level(demand, larger, saturated)
    wanted = [INF if hidden else rate for rate, hidden in brokers]
    given_together = math.fsum(min(rate, found) for rate in wanted)
    assert given_together == pytest.approx(min(bound, math.fsum(wanted)), rel=1e-9)  # a few sums and one quotient
