"""Findings at their boundaries, of states made by hand."""

from typing import Any

import pytest

from pipeline.alerts.judging import AT_BOUND, NEAR_BOUND, STALLED, THROTTLED, TIME_AHEAD, Finding, facts_of, shown
from pipeline.dashboard.live_rates import RunningThrottle
from pipeline.dashboard.state import State, health
from pipeline.settings.model import AlertsSettings
from quota.current_rates import SensorRate, SensorRates

NOW_MS = 1_700_000_000_000
RULES = AlertsSettings()


def state(*sensors: SensorRate, age_ms: int | None = 100, failure: str | None = None, **others: Any) -> State:
    batch = None if age_ms is None else {"processed_at_ms": NOW_MS - age_ms, "evaluated_at_ms": NOW_MS - age_ms}
    found = health(NOW_MS, batch, "7", was_seen=True, failure=failure)
    return State(now_ms=NOW_MS, seq=1, health=found, sensors=SensorRates.of(sensors), **others)


def sensor(used: float, mode: str = "enforce", user: str = "alice", owner: str | None = "data") -> SensorRate:
    observed = used * 100_000.0
    return SensorRate("producer_byte_rate", user, "etl", user, "", "", 1, observed, 1e5, 3, mode, (user, ""), owner)


def found(state: State, name: str, is_idle: bool = False) -> list[Finding]:
    return [one for one in facts_of(state, 0, is_idle, RULES).findings if one.key[0] == name]


@pytest.mark.parametrize(
    ("used", "near", "at"),
    [
        (0.7499, [], []),
        (0.7501, [False], []),
        (0.7999, [False], []),
        (0.8, [True], []),
        (0.8999, [True], []),
        (0.9001, [True], [False]),
        (0.9499, [True], [False]),
        (0.95, [True], [True]),
        (7.0, [True], [True]),
    ],
)
def test_a_sensor_is_at_a_threshold_nearly_at_it_or_below(used: float, near: list[bool], at: list[bool]) -> None:
    seen = state(sensor(used))
    assert [one.is_so for one in found(seen, NEAR_BOUND)] == near
    assert [one.is_so for one in found(seen, AT_BOUND)] == at


def test_a_shadow_sensor_hides_none_behind_it() -> None:
    seen = state(sensor(2.0, "shadow", "ml"), sensor(1.5), sensor(0.5, user="web"))
    assert [one.words().labels["user"] for one in found(seen, AT_BOUND)] == ["alice"]


@pytest.mark.parametrize(
    ("age_ms", "is_idle", "pending_ms"),
    [(60_000, False, None), (60_001, False, 0), (60_001, True, None), (None, False, 60_000), (None, True, None)],
)
def test_a_pipeline_without_batches_is_stalled_unless_it_waits(
    age_ms: int | None, is_idle: bool, pending_ms: int | None
) -> None:
    findings = found(state(age_ms=age_ms), STALLED, is_idle)
    assert [one.pending_ms for one in findings] == ([] if pending_ms is None else [pending_ms])


@pytest.mark.parametrize(("ahead_ms", "is_found"), [(0, False), (5_000, False), (5_001, True), (3_600_000, True)])
def test_a_batch_dated_ahead_of_the_wall_clock_alerts_when_it_lasts(ahead_ms: int, is_found: bool) -> None:
    batch = {"processed_at_ms": NOW_MS + ahead_ms, "evaluated_at_ms": NOW_MS + ahead_ms}
    seen = State(now_ms=NOW_MS, seq=1, health=health(NOW_MS, batch, "7", was_seen=True))
    assert [one.pending_ms for one in found(seen, TIME_AHEAD)] == ([30_000] if is_found else [])


def test_tables_that_can_not_be_read_leave_all_else_unknown_even_if_the_job_waits() -> None:
    facts = facts_of(state(sensor(2.0), failure="'usage' is damaged"), 3, True, RULES)
    (stalled,) = facts.findings
    assert (stalled.key, stalled.pending_ms) == ((STALLED,), 60_000)
    assert stalled.words().annotations["description"] == "'usage' is damaged"
    assert "KquotaDeadLetters" in facts.unknown
    assert {NEAR_BOUND, AT_BOUND, THROTTLED} < facts.unknown


@pytest.mark.parametrize(
    ("age_ms", "is_idle", "count", "unknown"),
    [(15_000, False, 1, False), (15_001, False, 0, True), (15_001, True, 0, False)],
)
def test_rates_of_an_old_batch_are_unknown_and_of_an_idle_cluster_nothing(
    age_ms: int, is_idle: bool, count: int, unknown: bool
) -> None:
    facts = facts_of(state(sensor(2.0), age_ms=age_ms), 0, is_idle, RULES)
    assert len([one for one in facts.findings if one.key[0] == AT_BOUND]) == count
    assert (AT_BOUND in facts.unknown) is unknown


def test_a_throttle_whose_bound_is_gone_and_whose_owner_is_unknown_has_words_too() -> None:
    row = {
        "broker_id": "2", "user": "alice", "client_id": "", "quota_type": "request_percentage", "observed": 12.5,
        "bound": None, "decision_id": "0123456789ab",
    }  # fmt: skip
    (finding,) = found(state(running=[RunningThrottle(row, NOW_MS, 1)]), THROTTLED)
    assert finding.key == (THROTTLED, "2", "alice", "")
    assert finding.words().labels == {
        "alertname": THROTTLED, "severity": "warning", "user": "alice", "broker_id": "2",
        "quota_type": "request_percentage",
    }  # fmt: skip
    assert finding.words().annotations["summary"] == "alice/* is throttled for its request_percentage: 12.5 %"
    assert finding.words().annotations["action"].endswith("throttles explain 01234567")


@pytest.mark.parametrize(("length", "expected"), [(99, "x" * 99), (100, "x" * 100), (101, "x" * 99 + "…")])
def test_a_name_is_cut_only_if_it_must_be(length: int, expected: str) -> None:
    assert shown("x" * length) == expected


def test_what_escaping_makes_longer_is_cut_too() -> None:
    assert shown("\n" * 100) == r"\n" * 49 + "\\…"
