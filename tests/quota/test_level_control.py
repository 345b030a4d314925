"""The control of levels: one period at a time, on rates that a test writes down; and runs on simulated brokers."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quota.broker_levels.level_control import NEVER_MS, Cause, LevelRules, LevelState, Proposals, propose
from quota.broker_levels.usage import BrokerView
from tests.conformance.replay import RECORDED_SESSIONS, as_kafka_int, read_sessions
from tests.quota.level_runs import (
    ByKnowledge,
    ByRule,
    Run,
    Scenario,
    SimulatedBrokers,
    after_move,
    one_broker,
    outside,
    run_all,
    scenarios,
    settled,
    shortest_interval,
)

T = 100.0
NOW_MS = 1_700_000_000_000
RULES = LevelRules()


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


def confirmed(recent: list[float], before: LevelState, observed: list[float] | None = None) -> Proposals:
    """What is proposed when the same has been seen for as long as an alter needs."""
    for at_ms in (NOW_MS, NOW_MS + RULES.confirm_ms):
        proposals, before = propose(view(recent, observed, at_ms), np.array([T]), before, at_ms)
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


@pytest.mark.parametrize(("later_ms", "cause"), [(1_999, Cause.KEPT), (2_000, Cause.TOGETHER_ABOVE)])
def test_a_move_must_last_before_it_is_answered(later_ms: int, cause: Cause) -> None:
    _, seen = propose(view([60.0, 50.0]), np.array([T]), state(T), NOW_MS)
    proposals, _ = propose(view([60.0, 50.0], at_ms=NOW_MS + later_ms), np.array([T]), seen, NOW_MS + later_ms)
    assert Cause(int(proposals.cause[0])) is cause


@pytest.mark.parametrize(("recent", "cause"), [([60.0, 60.0], Cause.KEPT), ([60.0, 60.1], Cause.TOGETHER_ABOVE)])
def test_what_is_far_above_is_answered_at_once(recent: list[float], cause: Cause) -> None:
    proposals, _ = propose(view(recent), np.array([T]), state(T), NOW_MS)
    assert Cause(int(proposals.cause[0])) is cause


@pytest.mark.parametrize(("since_ms", "cause"), [(9_999, Cause.KEPT), (10_000, Cause.TOGETHER_ABOVE)])
def test_an_entity_is_altered_at_most_every_ten_seconds(since_ms: int, cause: Cause) -> None:
    before = state(T, altered_at_ms=[NOW_MS + RULES.confirm_ms - since_ms])
    assert told(confirmed([90.0, 90.0], before))[1] is cause


def test_a_broker_that_throttles_is_unbounded_until_some_time_after_its_mute() -> None:
    # O = 60 at L = 50 over 10.999 s: muted for 2.2 s after the event. It then hides that it wants nothing any more.
    _, seen = propose(view([60.0, 10.0]), np.array([T]), state(50.0), NOW_MS)
    mute_ms = 2_200
    until_ms = NOW_MS - 10 + mute_ms + RULES.saturated_hold_ms
    for at_ms, unbounded in ((until_ms - 1, True), (until_ms, False)):
        proposals, _ = propose(view([0.0, 10.0], at_ms=at_ms, age_ms=2_000), np.array([T]), seen, at_ms)
        assert proposals.demand[0].tolist() == ([math.inf, 10.0] if unbounded else [0.0, 10.0])


@pytest.mark.parametrize(("observed", "unbounded"), [(48.49, False), (48.5, True)])
def test_a_broker_counts_as_throttling_from_97_percent_of_the_level_on(observed: float, unbounded: bool) -> None:
    proposals, _ = propose(view([10.0, 10.0], [observed, 10.0]), np.array([T]), state(50.0), NOW_MS)
    assert math.isinf(proposals.demand[0, 0]) is unbounded


def test_events_from_before_the_last_alter_do_not_say_who_throttles() -> None:
    before = state(50.0, altered_at_ms=[NOW_MS])
    proposals, _ = propose(view([80.0, 30.0], age_ms=1), np.array([T]), before, NOW_MS)
    assert proposals.demand[0].tolist() == [80.0, 30.0]
    proposals, _ = propose(view([80.0, 30.0], age_ms=0), np.array([T]), before, NOW_MS)
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
    proposals, _ = propose(view(recent), np.array([T]), replace(before, side=np.array([side])), NOW_MS)
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
    proposals, _ = propose(view([1.0] * brokers), np.array([T]), before, NOW_MS)
    assert told(proposals) == (round(expected[0], 6), expected[1])
    assert math.isinf(proposals.urgency[0]) is (expected[1] is Cause.OUT_OF_RANGE)


def test_the_worst_overshoot_is_the_most_urgent() -> None:
    sizes = [[65.0, 65.0], [90.0, 90.0], [10.0, 10.0]]
    brokers = view(sizes[0])
    stacked = replace(
        brokers,
        observed=np.array(sizes),
        recent=np.array(sizes),
        window_ms=np.full((3, 2), 10_999),
        last_ms=np.full((3, 2), NOW_MS),
    )
    never = np.full(3, NEVER_MS)
    before = LevelState.start(np.full(3, T), never, never, 2, NOW_MS)
    proposals, _ = propose(stacked, np.full(3, T), before, NOW_MS)
    assert proposals.urgency.round(6).tolist() == [0.8, 1.3, 0.0]


def test_the_example_of_the_page_goes_as_it_says() -> None:
    """docs/broker-levels.md, "An example", a period per second; O and the recent rate follow at once."""
    loads = [([600.0, 300.0, 900.0], 20), ([600.0, 300.0, 0.0], 20), ([100.0, 100.0, 0.0], 90)]
    before = state(1000.0, brokers=3)
    told_levels, at_ms = [], NOW_MS
    for wanted, seconds in loads:
        for _ in range(seconds):
            at_ms += 1_000
            passing = np.minimum(wanted, before.level[0]).tolist()
            proposals, before = propose(view(passing, at_ms=at_ms), np.array([1000.0]), before, at_ms)
            if proposals.cause[0]:
                told_levels.append(told(proposals))
                before = before.altered(np.array([0]), proposals.level, at_ms)
    assert told_levels == [
        (350.0, Cause.TOGETHER_ABOVE),
        (700.0, Cause.ROOM_LEFT),
        (333.333333, Cause.QUIET_OFFENDER),
    ]


STEPS = st.lists(
    st.tuples(st.integers(1, 20_000), st.lists(st.floats(0, 1000), min_size=3, max_size=3), st.floats(1.0, 1000.0)),
    min_size=1,
    max_size=30,
)


@given(steps=STEPS)
def test_no_level_is_ever_above_the_bound_or_below_an_even_share(
    steps: list[tuple[int, list[float], float]],
) -> None:
    at_ms, before = NOW_MS, state(steps[0][2], brokers=3)
    for pause_ms, recent, bound in steps:
        at_ms += pause_ms
        proposals, before = propose(view(recent, at_ms=at_ms), np.array([bound]), before, at_ms)
        before = before.altered(np.flatnonzero(proposals.cause), proposals.level[proposals.cause > 0], at_ms)
        assert bound / 3 * (1 - 1e-9) <= before.level[0] <= bound * (1 + 1e-9)


@given(steps=STEPS)
def test_the_same_periods_give_the_same_levels_alone_and_in_company(
    steps: list[tuple[int, list[float], float]],
) -> None:
    at_ms = NOW_MS
    alone, twice = (
        state(500.0, brokers=3),
        LevelState.start(np.full(2, 500.0), np.full(2, NEVER_MS), np.full(2, NEVER_MS), 3, NOW_MS),
    )
    for pause_ms, recent, bound in steps:
        at_ms += pause_ms
        one = view(recent, at_ms=at_ms)
        observed, rates_lately = (np.repeat(rates, 2, axis=0) for rates in (one.observed, one.recent))
        window_ms, last_ms = (np.repeat(times, 2, axis=0) for times in (one.window_ms, one.last_ms))
        two = BrokerView(at_ms, observed, window_ms, rates_lately, last_ms)
        single, alone = propose(one, np.array([bound]), alone, at_ms)
        double, twice = propose(two, np.full(2, bound), twice, at_ms)
        assert double.level.tolist() == single.level.tolist() * 2
        assert double.cause.tolist() == single.cause.tolist() * 2
        alone = alone.altered(np.flatnonzero(single.cause), single.level[single.cause > 0], at_ms)
        twice = twice.altered(np.flatnonzero(double.cause), double.level[double.cause > 0], at_ms)


def started(*levels: float) -> LevelState:
    never = np.full(len(levels), NEVER_MS)
    return LevelState.start(np.array(levels), never, never, 2, 1_000)


A_TOUCH = 1e-9
"""Bytes of a request of size 0: the simulated brokers have no other word for one."""


def recorded_sessions() -> list[dict[str, Any]]:
    shape = {"quota_type": "producer_byte_rate", "num_samples": 11, "sample_window_ms": 1000}
    return [one for one in read_sessions(RECORDED_SESSIONS) if all(one[name] == shape[name] for name in shape)]


@pytest.mark.parametrize("session", recorded_sessions(), ids=lambda session: str(session["seed"]))
def test_a_simulated_broker_mutes_as_long_as_kafkas_own_classes_did(session: dict[str, Any]) -> None:
    brokers: dict[tuple[str, ...], SimulatedBrokers] = {}
    compared = 0
    for step in session["steps"]:
        if step["op"] != "record":
            continue
        bound = np.inf if step["bound"] is None else step["bound"]
        broker = brokers.setdefault(tuple(step["sensor"]), SimulatedBrokers(1))
        broker.muted_until_ms[:] = 0  # the sessions record requests of muted clients, too
        broker.send(np.array([max(step["value"], A_TOUCH)]), np.array([bound]), step["t"])
        assert as_kafka_int(int(broker.muted_until_ms[0]) - step["t"]) == step["throttle_time_ms"]
        compared += 1
    assert compared > 0


CHOSEN = ("2, 90/10 → 10/90", "2, even → 99/1", "2, 99/1 → even", "3, even → one leaves", "3, even → one away for 5 s")


@pytest.fixture(scope="module")
def loads() -> list[Scenario]:
    return [load for load in scenarios((1.2, 5.0, 20.0)) if load.split in CHOSEN]


@pytest.fixture(scope="module")
def runs(loads: list[Scenario]) -> list[Run]:
    return run_all(loads, ByRule)


@pytest.fixture(scope="module")
def at_best(loads: list[Scenario]) -> list[Run]:
    return run_all(loads, ByKnowledge)


def test_the_sum_is_as_near_to_the_bound_as_with_the_level_known(runs: list[Run], at_best: list[Run]) -> None:
    far = {
        _name(run): (settled(run), settled(known))
        for run, known in zip(runs, at_best, strict=True)
        if outside(*settled(run), min(0.92, settled(known)[0]), max(1.1, settled(known)[1] + 1e-9))
    }
    assert far == {}


def test_the_sum_is_near_the_bound_from_ten_seconds_after_a_move(runs: list[Run]) -> None:
    assert {_name(run): after_move(run) for run in runs if not 0.7 <= after_move(run) <= 1.2} == {}


def test_no_level_leaves_its_range_and_no_entity_is_altered_twice_in_ten_seconds(runs: list[Run]) -> None:
    assert {_name(run): run.highest for run in runs if run.highest > 1} == {}
    assert {_name(run): run.lowest for run in runs if run.lowest < 1 - 1e-9} == {}
    in_place = [run for run in runs if "leaves" not in run.scenario.split and "away" not in run.scenario.split]
    assert {_name(run): run.alters for run in in_place if shortest_interval(run) < 10} == {}
    assert any(run.alters for run in in_place)


def test_one_broker_alone_is_not_within_five_percent_in_each_fifty_seconds() -> None:
    """Why the targets are compared with what Kafka itself makes of a bound."""
    alone = run_all(one_broker((20.0,)), ByKnowledge)[0]
    assert abs(outside(*settled(alone), 0.95, 1.05)) > 0.02


def _name(run: Run) -> str:
    return f"{run.scenario.split}, k {run.scenario.overload}"
