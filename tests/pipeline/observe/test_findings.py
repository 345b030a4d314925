"""Findings of clients whose usage is known: two brokers, bounds at their boundaries, no quota, no usage."""

import json
from dataclasses import replace

import pytest

from pipeline.cli.observe import HEADINGS, readable
from pipeline.observe.findings import findings_of
from pipeline.observe.observation import UNREACHABLE
from tests.pipeline.observe.observed import ALICE, BOUND, observation, observed, produced, quotas, second_of, send
from tests.quota.factories import quota_row

TENTH = BOUND // 10


def test_a_client_with_nine_tenths_on_each_of_two_brokers_gets_1_8_times_its_quota() -> None:
    (found,) = observed(ALICE, produced(9 * TENTH, "1", "2")).over_quota
    assert (found.user, found.client_id, found.quota_type) == ("alice", "", "producer_byte_rate")
    assert (found.bound, found.level) == (BOUND, 3)
    assert (found.observed, found.times) == (18 * TENTH, 1.8)
    assert found.by_broker == {"1": 9.0 * TENTH, "2": 9.0 * TENTH}
    assert (found.minutes_over, found.minutes) == (2, 2)
    assert found.reason == (
        "each broker allows 1.0 MB/s; 2 brokers gave 1.8 MB/s together (1: 900.0 kB/s, 2: 900.0 kB/s), in 2 of 2 "
        "minutes more than one quota"
    )


@pytest.mark.parametrize(
    ("on_each", "brokers", "is_exact", "is_found"),
    [
        (BOUND // 2 - 1, ("1", "2"), True, False),
        (BOUND // 2, ("1", "2"), True, False),
        (BOUND // 2 + 1, ("1", "2"), True, True),
        (BOUND // 2 + 1, ("1", "2"), False, False),
        (BOUND // 2 + BOUND // 40, ("1", "2"), False, False),
        (BOUND // 2 + BOUND // 40 + 1, ("1", "2"), False, True),
        (2 * BOUND, ("1",), True, False),
        (0, ("1", "2"), True, False),
    ],
)
def test_more_than_a_quota_is_a_sum_of_several_brokers_above_t(
    on_each: int, brokers: tuple[str, ...], is_exact: bool, is_found: bool
) -> None:
    found = observed(ALICE, produced(on_each, *brokers), is_exact=is_exact)
    assert bool(found.over_quota) == is_found


def test_those_that_share_a_quota_are_one_and_the_largest_comes_first() -> None:
    snapshot = quotas(
        quota_row("alice", producer_byte_rate=float(BOUND)), quota_row("bob", producer_byte_rate=float(BOUND))
    )
    rates = {
        **produced(4 * TENTH, "1", client_id="etl"),
        **produced(8 * TENTH, "2", client_id="app"),
        **produced(BOUND, "1", "2", user="bob"),
    }
    found = observed(snapshot, rates).over_quota
    assert [(one.user, one.client_id, one.times) for one in found] == [("bob", "", 2.0), ("alice", "", 1.2)]


def test_request_time_is_compared_in_percent_of_a_thread() -> None:
    snapshot = quotas(quota_row("alice", request_percentage=10.0))
    rates = {(broker, "alice", "etl"): {"io_time_ns": 60_000_000, "network_time_ns": 15_000_000} for broker in "12"}
    (found,) = observed(snapshot, rates).over_quota
    assert found.quota_type == "request_percentage"
    assert found.observed == pytest.approx(15)
    assert found.times == pytest.approx(1.5)


@pytest.mark.parametrize(("tenths", "share"), [(9, 0.0), (10, 0.0), (11, 0.09), (20, 0.5), (40, 0.75)])
def test_the_shadow_holds_a_client_for_the_share_that_leaves_it_its_quota(tenths: int, share: float) -> None:
    found = observed(ALICE, produced(tenths * TENTH // 2, "1", "2"), seconds=240).would_be_held
    assert sum(one.held_share for one in found) == pytest.approx(share, abs=0.08)
    assert [(one.user, one.client_id, one.bound) for one in found] == ([("alice", "etl", BOUND)] if share else [])


@pytest.mark.parametrize(
    ("request_bytes", "is_found"), [(BOUND - 1, False), (BOUND, False), (BOUND + 1, True), (3 * BOUND, True)]
)
def test_a_bound_below_one_request_is_too_small(request_bytes: int, is_found: bool) -> None:
    seen = observation(ALICE)
    send(seen, produced(request_bytes, "1"), 0, 1)
    send(seen, {}, 1, 60)
    found = findings_of(seen.figures()).too_small
    assert [(one.request_bytes, one.longest_wait_ms) for one in found] == ([(request_bytes, None)] if is_found else [])
    assert all(one.suggested >= request_bytes for one in found)


def test_many_requests_that_are_each_small_are_not_too_large() -> None:
    rates = {("1", "alice", "etl"): {"produced_bytes": 5 * BOUND, "request_count": 6}}
    assert [one.request_bytes for one in observed(ALICE, rates, seconds=2).too_small] == []


@pytest.mark.parametrize(("times", "wait_ms"), [(40, None), (42, 32_000)])
def test_a_wait_above_the_request_time_out_is_too_long(times: int, wait_ms: int | None) -> None:
    rates = {("1", "alice", "etl"): {"produced_bytes": times * BOUND, "request_count": 1_000}}
    seen = observation(ALICE)
    send(seen, rates, 0, 1)
    send(seen, {}, 1, 60)
    found = findings_of(seen.figures()).too_small
    assert [one.longest_wait_ms for one in found] == ([] if wait_ms is None else [pytest.approx(wait_ms, abs=1_000)])
    for one in found:
        patient = quotas(quota_row("alice", producer_byte_rate=one.suggested))
        again = observation(patient)
        send(again, rates, 0, 1)
        send(again, {}, 1, 60)
        assert findings_of(again.figures()).too_small == []


def test_a_client_without_a_quota_gets_a_suggestion_from_its_minutes() -> None:
    found = observed(ALICE, produced(5 * TENTH, "1", user="carol", client_id="ui"), seconds=125)
    (one,) = found.no_quota
    assert (one.user, one.client_id, one.p99, one.minutes) == ("carol", "ui", 5 * TENTH, 2)
    assert one.suggested == 600_000
    assert one.reason == "p99 of 2 minutes is 500.0 kB/s, and 20 %; observed for no longer"
    assert (found.over_quota, found.would_be_held, found.too_small) == ([], [], [])
    assert replace(one, minutes=1).reason.startswith("p99 of 1 minute is ")


@pytest.mark.parametrize("bound", [UNREACHABLE[0], 1e15])
def test_a_bound_that_only_makes_brokers_measure_is_no_quota(bound: float) -> None:
    metering = quotas(quota_row("<default>", "<default>", producer_byte_rate=bound))
    found = observed(metering, produced(9 * TENTH, "1", "2"))
    assert [(one.user, one.client_id) for one in found.no_quota] == [("alice", "etl")]
    assert found.over_quota == []


def test_a_request_of_no_bytes_and_no_usage_at_all_find_nothing() -> None:
    nothing = observed(ALICE, produced(0, "1", "2"))
    assert (nothing.clients, nothing.seconds) == (1, 70)
    assert (nothing.over_quota, nothing.would_be_held, nothing.too_small, nothing.no_quota) == ([], [], [], [])
    never = observed(ALICE, {})
    assert (never.clients, never.seconds, never.over_quota) == (0, 0, [])


def test_a_source_that_went_away_adds_nothing_to_later_minutes() -> None:
    seen = observation(ALICE)
    send(seen, produced(9 * TENTH, "1", "2"), 0, 60)
    send(seen, produced(9 * TENTH, "1"), 60, 180)
    (found,) = findings_of(seen.figures()).over_quota
    assert (found.times, found.minutes_over, found.minutes) == (1.8, 1, 3)


def test_what_comes_late_is_in_the_sums() -> None:
    seen = observation(ALICE)
    rates = produced(9 * TENTH, "1", "2")
    for second in range(70):
        send(seen, produced(9 * TENTH, "1"), second, second + 1)
        if second >= 5:
            seen.add(second_of(produced(9 * TENTH, "2"), second - 5))
    (found,) = findings_of(seen.figures()).over_quota
    assert found.times == 1.8
    assert set(found.by_broker) == {name for name, *_ in rates}


def test_what_comes_late_is_in_the_shadow() -> None:
    seen = observation(ALICE)
    for second in range(40):
        send(seen, produced(TENTH, "1", user="bob"), second, second + 1)
        if second:
            seen.add(second_of(produced(3 * BOUND, "1"), second - 1))
    assert [one.user for one in findings_of(seen.figures()).would_be_held] == ["alice"]


def test_the_bound_that_was_read_last_counts() -> None:
    seen = observation(ALICE)
    send(seen, produced(9 * TENTH, "1", "2"), 0, 60)
    seen.load(quotas(quota_row("alice", producer_byte_rate=2.0 * BOUND)))
    send(seen, produced(9 * TENTH, "1", "2"), 60, 120)
    found = findings_of(seen.figures())
    assert found.over_quota == []
    assert [one.bound for one in found.would_be_held] == [2.0 * BOUND]
    assert found.would_be_held[0].held_seconds < 60


def test_document_and_rows_have_every_finding() -> None:
    snapshot = quotas(quota_row("alice", producer_byte_rate=float(BOUND)))
    rates = {**produced(9 * TENTH, "1", "2"), **produced(3 * BOUND, "1", user="carol", client_id="ui")}
    found = observed(snapshot, rates)
    document = json.loads(json.dumps(found.to_document()))
    assert document["over_quota"][0]["times"] == 1.8
    assert document["no_quota"][0]["reason"] == found.no_quota[0].reason
    for name in HEADINGS:
        assert all(set(row) == set(readable(found, name)[0]) for row in readable(found, name))
