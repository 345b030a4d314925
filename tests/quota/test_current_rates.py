"""The current rate under each quota: of the sensor that is nearest to its bound, by the engine's own rate."""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quota.current_rates import QuotaKey, SensorRate, SensorRates, current_rates
from quota.engine import QuotaEngine
from quota.entity import QUOTA_TYPES
from quota.snapshot import QuotaSnapshot
from tests.quota.factories import quota_row, table, usage_row

AT_MS = 1_700_000_010_000
RATE = "producer_byte_rate"


def rates(quotas: list[dict[str, Any]], *usage: dict[str, Any], **engine: Any) -> dict[QuotaKey, list[SensorRate]]:
    snapshot = QuotaSnapshot.from_rows(quotas, 1)
    return current_rates(snapshot, table(usage), AT_MS, lambda: QuotaEngine(**engine))


def use(user: str, client_id: str, produced_bytes: int, **columns: Any) -> dict[str, Any]:
    return usage_row(AT_MS - 5, user=user, client_id=client_id, produced_bytes=produced_bytes, **columns)


def test_a_rate_is_that_of_the_engine_and_is_compared_with_the_bound() -> None:
    found = rates([quota_row("alice", producer_byte_rate=1000.0)], use("alice", "etl", 4_000), use("alice", "web", 998))
    engine = QuotaEngine()
    engine.load_quotas(QuotaSnapshot.from_rows([quota_row("alice", producer_byte_rate=1000.0)], 1))
    engine.record(table([use("alice", "etl", 4_998)]), AT_MS)
    expected = engine.evaluate(table([use("alice", "etl", 0)]), AT_MS).to_pylist()[0]["observed"]
    assert {quota: [(one.observed, one.used) for one in sensors] for quota, sensors in found.items()} == {
        QuotaKey("alice", "", RATE): [(expected, expected / 1000.0)]
    }


def test_of_a_defaults_clients_the_nearest_to_the_bound_is_shown_all_are_counted() -> None:
    quotas = [quota_row("<default>", producer_byte_rate=1000.0)]
    found = rates(quotas, use("a", "x", 10), use("b", "x", 30), use("c", "x", 20))[QuotaKey("<default>", "", RATE)]
    assert [one.sensor_user for one in found] == ["b", "c", "a"]


def test_each_quota_has_only_the_clients_it_holds_for_and_none_without_usage() -> None:
    quotas = [
        quota_row("alice", producer_byte_rate=1000.0),
        quota_row("alice", "etl", producer_byte_rate=1000.0),
        quota_row("bob", producer_byte_rate=1000.0),
        quota_row("carol", mode="exempt"),
    ]
    usage = use("alice", "etl", 10), use("alice", "web", 20), use("carol", "x", 30)
    found = rates(quotas, *usage)
    assert {(key.user, key.client_id): sensors[0].observed > 0 for key, sensors in found.items()} == {
        ("alice", ""): True,
        ("alice", "etl"): True,
    }
    assert found[QuotaKey("alice", "", RATE)][0].observed == 2 * found[QuotaKey("alice", "etl", RATE)][0].observed


@pytest.mark.parametrize("user", ["alice", "<default>", ""])
@pytest.mark.parametrize("client_id", ["etl", "<default>", ""])
def test_a_rate_belongs_to_the_quota_of_its_level(user: str, client_id: str) -> None:
    if not user and not client_id:
        return
    found = rates([quota_row(user, client_id, producer_byte_rate=1000.0)], use("alice", "etl", 10))
    assert [(key.user, key.client_id) for key in found] == [(user, client_id)]


def test_a_shadow_quota_is_seen_as_if_it_were_enforced_and_changes_no_other() -> None:
    quotas = [quota_row("alice", producer_byte_rate=1000.0)]
    alone = rates(quotas, use("alice", "etl", 100))
    shadow = quota_row("alice", "etl", producer_byte_rate=10.0, mode="shadow")
    both = rates([*quotas, shadow], use("alice", "etl", 100))
    assert both[QuotaKey("alice", "", RATE)] == alone[QuotaKey("alice", "", RATE)]
    assert both[QuotaKey("alice", "etl", RATE)][0].used == 100 * alone[QuotaKey("alice", "", RATE)][0].used


def test_in_broker_scope_the_busiest_broker_is_shown() -> None:
    usage = use("alice", "etl", 10, broker_id="1"), use("alice", "etl", 30, broker_id="2")
    found = rates([quota_row("alice", producer_byte_rate=1000.0)], *usage, scope="broker")
    assert [one.broker_id for one in found[QuotaKey("alice", "", RATE)]] == ["2", "1"]


def test_without_usage_there_is_no_rate() -> None:
    assert rates([quota_row("alice", producer_byte_rate=1000.0)]) == {}


NAMES = st.sampled_from(["", "a", "b"])
RATES = st.lists(
    st.builds(
        SensorRate,
        quota_type=st.sampled_from(QUOTA_TYPES),
        user=NAMES,
        client_id=NAMES,
        sensor_user=NAMES,
        sensor_client_id=NAMES,
        broker_id=st.sampled_from(["", "1"]),
        clients=st.integers(1, 3),
        observed=st.sampled_from([0.5, 1.0, 3.0]),
        bound=st.sampled_from([1.0, 2.0]),
        level=st.integers(1, 8),
        mode=st.sampled_from(["enforce", "shadow"]),
        entity=st.tuples(NAMES, NAMES),
    ),
    max_size=8,
)


@given(rates=RATES, first=st.integers(0, 8), last=st.integers(0, 8))
def test_rates_as_columns_are_those_that_went_in(rates: list[SensorRate], first: int, last: int) -> None:
    found = SensorRates.of(rates)
    assert [*found] == rates
    assert [found[at] for at in range(len(found))] == rates
    assert [*found[first:last]] == rates[first:last]
    assert found.used.tolist() == [one.used for one in rates]
    assert [*found.where(user="a", mode="enforce")] == [
        one for one in rates if (one.user, one.mode) == ("a", "enforce")
    ]


@given(rates=RATES, others=RATES)
def test_the_nearest_is_first_and_equal_ones_go_by_client_and_type(
    rates: list[SensorRate], others: list[SensorRate]
) -> None:
    found = [*SensorRates.of(rates).nearest_first(SensorRates.of(others))]
    keys = [(-one.used, one.user, one.client_id, one.quota_type) for one in found]
    assert keys == sorted(keys)
    assert Counter(found) == Counter([*rates, *others])


@given(rates=RATES)
def test_the_first_of_each_quota_and_client_are_found_in_order(rates: list[SensorRate]) -> None:
    found = SensorRates.of(rates)
    of_quotas = {one.quota: one for one in reversed(rates)}
    assert [*found.first_of_quotas()] == [one for one in rates if of_quotas[one.quota] is one]
    of_clients = {(one.user, one.client_id): one for one in reversed(rates)}
    assert found.used_by_client().to_pylist() == [
        {"user": one.user, "client_id": one.client_id, "used": one.used}
        for one in rates
        if of_clients[one.user, one.client_id] is one
    ]


@given(rates=RATES, shadow=st.sets(st.tuples(NAMES, NAMES), max_size=3))
def test_what_is_under_a_shadow_quota_is_in_shadow_mode(rates: list[SensorRate], shadow: set[tuple[str, str]]) -> None:
    found = [*SensorRates.of(rates).in_shadow(shadow)]
    assert found == [replace(one, mode="shadow") for one in rates if one.entity in shadow]
