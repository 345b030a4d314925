"""Findings and present rates of clients with known usage: two brokers, bounds at their boundaries, no quota, no use."""

from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa
import pytest

from pipeline.observe.findings import Findings, findings_of
from pipeline.observe.observation import UNREACHABLE, Observation
from pipeline.tables.quotas.source import Scope
from quota.snapshot import QuotaSnapshot
from tests.quota.factories import quota_row, table, usage_row

T0_MS: Final = 1_700_000_000_000
BOUND: Final = 1_000_000
Rates = Mapping[tuple[str, str, str], Mapping[str, int]]
"""(broker-id, user, client-id) -> measure -> amount in each second."""


def quotas(*rows: dict[str, Any]) -> QuotaSnapshot:
    return QuotaSnapshot.from_rows(rows, 1)


ALICE: Final = quotas(quota_row("alice", producer_byte_rate=float(BOUND)))


def produced(rate: int, *brokers: str, user: str = "alice", client_id: str = "etl") -> Rates:
    """The same rate on each broker, in one request a second."""
    return {(broker, user, client_id): {"produced_bytes": rate, "request_count": 1} for broker in brokers}


def second_of(rates: Rates, second: int) -> pa.Table:
    at_ms = T0_MS + second * 1000 + 500
    used = table(
        [
            usage_row(at_ms, broker_id=broker, user=user, client_id=client_id, **amounts)
            for (broker, user, client_id), amounts in rates.items()
        ]
    )
    requests = pa.array([amounts.get("request_count") for amounts in rates.values()], pa.int64())
    return used.append_column("request_count", requests)


def observation(snapshot: QuotaSnapshot, *, is_exact: bool = True, scope: Scope = "cluster") -> Observation:
    return Observation(snapshot, 1_000, is_exact, scope)


def send(seen: Observation, rates: Rates, begin: int, end: int) -> None:
    """Each second is read a moment after its end."""
    for second in range(begin, end):
        seen.add(second_of(rates, second))
        seen.settle(T0_MS + (second + 2) * 1000)


def observed(snapshot: QuotaSnapshot, rates: Rates, seconds: int = 70, *, is_exact: bool = True) -> Findings:
    seen = observation(snapshot, is_exact=is_exact)
    send(seen, rates, 0, seconds)
    return findings_of(seen.figures())


TENTH = BOUND // 10


def test_a_client_with_nine_tenths_on_each_of_two_brokers_gets_1_8_times_its_quota() -> None:
    (found,) = observed(ALICE, produced(9 * TENTH, "1", "2")).over_quota or ()
    assert (found.user, found.client_id, found.quota_type) == ("alice", "", "producer_byte_rate")
    assert (found.bound, found.level) == (BOUND, 3)
    assert (found.observed, found.times) == (18 * TENTH, 1.8)
    assert found.by_broker == {"1": 9.0 * TENTH, "2": 9.0 * TENTH}
    assert (found.minutes_over, found.minutes) == (2, 2)
    assert found.reason.endswith("(1: 900.0 kB/s, 2: 900.0 kB/s), in 2 of 2 minutes more than one quota")


@pytest.mark.parametrize(
    ("on_each", "brokers", "is_exact", "is_found"),
    [
        (BOUND // 2, ("1", "2"), True, False),
        (BOUND // 2 + 1, ("1", "2"), True, True),
        (BOUND // 2 + BOUND // 40, ("1", "2"), False, False),
        (BOUND // 2 + BOUND // 40 + 1, ("1", "2"), False, True),
        (2 * BOUND, ("1",), True, False),
    ],
)
def test_more_than_a_quota_is_a_sum_of_several_brokers_above_t(
    on_each: int, brokers: tuple[str, ...], is_exact: bool, is_found: bool
) -> None:
    found = observed(ALICE, produced(on_each, *brokers), is_exact=is_exact)
    assert bool(found.over_quota) == is_found


def test_request_time_is_compared_in_percent_of_a_thread() -> None:
    snapshot = quotas(quota_row("alice", request_percentage=10.0))
    rates = {(broker, "alice", "etl"): {"io_time_ns": 60_000_000, "network_time_ns": 15_000_000} for broker in "12"}
    (found,) = observed(snapshot, rates).over_quota or ()
    assert found.quota_type == "request_percentage"
    assert [found.observed, found.times] == pytest.approx([15, 1.5])


@pytest.mark.parametrize(("tenths", "share"), [(10, 0.0), (11, 0.09), (40, 0.75)])
def test_the_shadow_holds_a_client_for_the_share_that_leaves_it_its_quota(tenths: int, share: float) -> None:
    found = observed(ALICE, produced(tenths * TENTH // 2, "1", "2"), seconds=240).would_be_held or ()
    assert sum(one.held_share for one in found) == pytest.approx(share, abs=0.08)
    assert [(one.user, one.client_id, one.bound) for one in found] == ([("alice", "etl", BOUND)] if share else [])


def test_the_shadow_holds_a_users_client_ids_but_those_with_their_own_sensor() -> None:
    own = quota_row("alice", "web", consumer_byte_rate=100.0 * BOUND)
    seen = observation(quotas(quota_row("alice", consumer_byte_rate=float(BOUND)), own))
    send(seen, {("1", "alice", "etl"): {"fetched_bytes": 40 * BOUND}}, 0, 1)
    send(seen, {("1", "alice", name): {"fetched_bytes": 1} for name in ("new", "web")}, 1, 20)
    found = findings_of(seen.figures()).would_be_held or ()
    assert {(one.client_id, one.quota_type, one.held_seconds > 10) for one in found} == {
        ("etl", "consumer_byte_rate", True),
        ("new", "consumer_byte_rate", True),
    }


def after_one_second(snapshot: QuotaSnapshot, rates: Rates) -> Findings:
    seen = observation(snapshot)
    send(seen, rates, 0, 1)
    send(seen, {}, 1, 60)
    return findings_of(seen.figures())


@pytest.mark.parametrize(
    ("request_bytes", "is_found"), [(BOUND - 1, False), (BOUND, False), (BOUND + 1, True), (3 * BOUND, True)]
)
def test_a_bound_below_one_request_is_too_small(request_bytes: int, is_found: bool) -> None:
    found = after_one_second(ALICE, produced(request_bytes, "1")).too_small
    assert [(one.request_bytes, one.longest_wait_ms) for one in found] == ([(request_bytes, None)] if is_found else [])
    assert all(one.suggested >= request_bytes for one in found)


@pytest.mark.parametrize(("times", "wait_ms"), [(40, None), (42, 32_000)])
def test_a_wait_above_the_request_time_out_is_too_long(times: int, wait_ms: int | None) -> None:
    rates = {("1", "alice", "etl"): {"produced_bytes": times * BOUND, "request_count": 1_000}}
    found = after_one_second(ALICE, rates).too_small
    assert [one.longest_wait_ms for one in found] == ([] if wait_ms is None else [pytest.approx(wait_ms, abs=1_000)])
    for one in found:
        patient = quotas(quota_row("alice", producer_byte_rate=one.suggested))
        assert after_one_second(patient, rates).too_small == []


def test_a_client_without_a_quota_gets_a_suggestion_from_its_minutes() -> None:
    found = observed(ALICE, produced(5 * TENTH, "1", user="carol", client_id="ui"), seconds=125)
    (one,) = found.no_quota
    assert (one.user, one.client_id, one.p99, one.minutes, one.suggested) == ("carol", "ui", 5 * TENTH, 2, 600_000)
    assert (found.over_quota, found.would_be_held, found.too_small) == ([], [], [])


def test_a_bound_is_missed_for_each_quota_type_by_itself_and_not_by_who_is_exempt() -> None:
    snapshot = quotas(quota_row("alice", producer_byte_rate=4.0 * BOUND), quota_row("vip", mode="exempt"))
    used = {"produced_bytes": TENTH, "fetched_bytes": 2 * TENTH}
    found = observed(snapshot, {("1", user, "etl"): used for user in ("alice", "vip")})
    assert [(one.user, one.quota_type, one.p99) for one in found.no_quota] == [
        ("alice", "consumer_byte_rate", 2 * TENTH)
    ]


def test_who_is_over_quota_and_held_is_left_to_the_job_that_manages_the_cluster() -> None:
    seen = observation(ALICE)
    send(seen, {**produced(42 * BOUND, "1", "2"), **produced(TENTH, "1", user="carol")}, 0, 70)
    by_job, own = (findings_of(seen.figures(), is_of_job=one) for one in (True, False))
    document = by_job.to_document()
    assert [document["over_quota"], document["would_be_held"]] == [None, None], "not looked for is not none found"
    assert own.over_quota
    assert own.would_be_held
    assert (by_job.too_small, by_job.no_quota) == (own.too_small, own.no_quota)
    assert [one for one in by_job.not_known if "the job decides it" in one]


@pytest.mark.parametrize(
    ("scope", "longest_ms", "where"), [("cluster", 19_000, "in the sum"), ("broker", 31_000, "on a broker")]
)
def test_the_shadow_holds_by_the_scope_of_the_quotas(scope: Scope, longest_ms: int, where: str) -> None:
    seen = observation(ALICE, scope=scope)
    for begin, rates in ((0, produced(30 * BOUND, "1")), (3, produced(42 * BOUND, "2"))):
        send(seen, rates, begin, begin + 1)
        send(seen, {}, begin + 1, begin + 3)
    found = findings_of(seen.figures())
    (held,) = found.would_be_held or ()
    assert held.longest_wait_ms == pytest.approx(longest_ms, abs=1_000), "what it sends while it is held is not sent"
    assert where in held.reason
    assert (found.over_quota is None) == (scope == "broker"), "each broker has its own"


@pytest.mark.parametrize("bound", [UNREACHABLE[0], 1e15])
def test_a_bound_that_only_makes_brokers_measure_is_no_quota(bound: float) -> None:
    metering = quotas(quota_row("<default>", "<default>", producer_byte_rate=bound))
    found = observed(metering, produced(9 * TENTH, "1", "2"))
    assert [(one.user, one.client_id) for one in found.no_quota] == [("alice", "etl")]
    assert found.over_quota == []


@pytest.mark.parametrize(("rates", "clients"), [(produced(0, "1", "2"), 1), ({}, 0)], ids=["no bytes", "no usage"])
def test_a_request_of_no_bytes_and_no_usage_at_all_find_nothing(rates: Rates, clients: int) -> None:
    found = observed(ALICE, rates)
    assert (found.clients, found.seconds) == (clients, 70 * clients)
    assert (found.over_quota, found.would_be_held, found.too_small, found.no_quota) == ([], [], [], [])


def test_a_source_that_went_away_adds_nothing_to_later_minutes() -> None:
    seen = observation(ALICE)
    send(seen, produced(9 * TENTH, "1", "2"), 0, 60)
    send(seen, produced(9 * TENTH, "1"), 60, 180)
    (found,) = findings_of(seen.figures()).over_quota or ()
    assert (found.times, found.minutes_over, found.minutes) == (1.8, 1, 3)


def test_what_comes_late_is_in_the_sums_and_in_the_shadow() -> None:
    seen = observation(ALICE)
    for second in range(70):
        send(seen, produced(9 * TENTH, "1"), second, second + 1)
        if second >= 5:
            seen.add(second_of(produced(9 * TENTH, "2"), second - 5))
    found = findings_of(seen.figures())
    assert [(one.times, set(one.by_broker)) for one in found.over_quota or ()] == [(1.8, {"1", "2"})]
    assert [one.user for one in found.would_be_held or ()] == ["alice"]


@pytest.mark.parametrize("seconds", [1, 9, 10, 11])
def test_a_rate_is_right_from_the_first_second_on(seconds: int) -> None:
    seen = observation(ALICE)
    send(seen, produced(BOUND, "1", "2"), 0, seconds)
    (line,) = seen.lines(T0_MS + seconds * 1_000)
    assert (line.by_broker, line.observed, line.used) == ({"1": BOUND, "2": BOUND}, 2 * BOUND, 2.0)
    assert line.sensor.level == 3


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


@pytest.mark.parametrize(("silent_seconds", "least"), [(1, BOUND), (5, 1), (15, None)])
def test_a_broker_that_reports_late_keeps_its_rate_until_it_went_away(silent_seconds: int, least: int | None) -> None:
    seen = observation(ALICE)
    send(seen, produced(BOUND, "1", "2"), 0, 20)
    send(seen, produced(BOUND, "1"), 20, 20 + silent_seconds)
    (line,) = seen.lines(T0_MS + (20 + silent_seconds) * 1_000)
    by_broker = dict(line.by_broker)
    silent = by_broker.pop("2", None)
    assert by_broker == {"1": BOUND}
    assert silent is None if least is None else silent is not None and least <= silent <= BOUND
