"""The simulated brokers are Kafka's, and the levels hold the sum where it shall be."""

from functools import partial
from typing import Any

import numpy as np
import pytest

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


def test_an_entity_that_was_never_over_its_bound_begins_at_the_bound() -> None:
    run = run_all([Scenario("2", 0.4, {0: (0.9, 0.1)})], partial(ByRule, over_before=False))[0]
    assert (run.alters, run.highest, run.lowest) == ((), 1.0, 2.0)


def test_one_broker_alone_is_not_within_five_percent_in_each_fifty_seconds() -> None:
    """Why the targets are compared with what Kafka itself makes of a bound."""
    alone = run_all(one_broker((20.0,)), ByKnowledge)[0]
    assert abs(outside(*settled(alone), 0.95, 1.05)) > 0.02


def _name(run: Run) -> str:
    return f"{run.scenario.split}, k {run.scenario.overload}"
