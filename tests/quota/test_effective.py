"""Which quotas hold for a client, and what a lower bound would do to clients as they are."""

from collections.abc import Collection
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from quota.effective import (
    Effective,
    bound_warnings,
    effective,
    large_requests,
    lending_text,
    name_warnings,
    sharing_text,
    standing_changes,
)
from quota.snapshot import QuotaSnapshot
from quota.tenants import Tenant
from tests.quota.factories import loaded, quota_row, table, usage_row


def answer_of(*rows: dict[str, Any], others: tuple[tuple[str, str], ...] = ()) -> Effective:
    seen = table([{"user": user, "client_id": client_id} for user, client_id in others])
    return effective(QuotaSnapshot.from_rows(rows, 1), "alice", "etl", seen)


def test_all_eight_levels_are_listed_and_each_quota_type_matches_a_row_of_its_own() -> None:
    rows = (
        quota_row("alice", "etl", producer_byte_rate=1.0),
        quota_row("alice", "", consumer_byte_rate=2.0),
        quota_row("", "etl", producer_byte_rate=3.0),
    )
    answer = answer_of(*rows)
    assert [int(row.level) for row in answer.levels] == list(range(1, 9))
    assert {int(row.level): (row.user, row.client_id, row.matched) for row in answer.levels if row.quota} == {
        1: ("alice", "etl", ("producer_byte_rate",)),
        3: ("alice", "", ("consumer_byte_rate",)),
        7: ("", "etl", ()),
    }
    assert [(one.level, one.bound) for one in answer.by_type] == [(1, 1.0), (3, 2.0), (None, None)]


def test_other_clients_that_count_in_the_same_sensor_are_named() -> None:
    rows = (quota_row("alice", "", producer_byte_rate=1.0), quota_row("alice", "own", producer_byte_rate=1.0))
    others = (("alice", "etl"), ("alice", "web"), ("alice", "own"), ("bob", "etl"))
    producer, _, _ = answer_of(*rows, others=others).by_type
    assert (producer.sensor_user, producer.sensor_client_id) == ("alice", "")
    assert producer.shared_with == (("alice", "web"),)


NOW_MS = 1_700_000_000_000
RATE = {"producer_byte_rate": 1_000.0}
LESS = "1.1 s of its producer_byte_rate 285.0 B/s: raise the quota to 300.0 B/s"
EXPIRE, LEAVES = "requests expire at 30 s", "at 30 s, and a consumer leaves its group at 5 min"


def after_many_small(request_count: int = 0, **used: int) -> pa.Table:
    """Usage of so many requests, nine seconds after many small ones, which would hide a large one in an average."""
    small = usage_row(NOW_MS - 9_000, produced_bytes=1, fetched_bytes=1)
    return table([small, usage_row(NOW_MS, **used)]).append_column("request_count", pa.array([100, request_count]))


@pytest.mark.parametrize(
    ("old", "new", "used", "ends"),
    [
        ({}, {"producer_byte_rate": 286.0}, {"produced_bytes": 900, "request_count": 3}, ""),
        ({}, {"producer_byte_rate": 285.0}, {"produced_bytes": 900, "request_count": 3}, LESS),
        ({}, RATE, {"produced_bytes": 39_999}, ""),
        ({}, RATE, {"produced_bytes": 42_000}, EXPIRE),
        ({}, {"consumer_byte_rate": 1_000.0}, {"fetched_bytes": 309_999}, EXPIRE),
        ({}, {"consumer_byte_rate": 1_000.0}, {"fetched_bytes": 312_000}, LEAVES),
        ({}, {**RATE, "mode": "shadow"}, {"produced_bytes": 42_000}, ""),
        ({}, {**RATE, "mode": "exempt"}, {"produced_bytes": 42_000}, ""),
        ({"producer_byte_rate": 999.0}, RATE, {"produced_bytes": 42_000}, ""),
        ({"producer_byte_rate": 1_001.0}, RATE, {"produced_bytes": 42_000}, EXPIRE),
    ],
)
def test_a_bound_that_stops_a_client_as_it_is_is_warned_of(
    old: dict[str, Any], new: dict[str, Any], used: dict[str, int], ends: str
) -> None:
    usage = after_many_small(**used)
    before, after = (QuotaSnapshot.from_rows([quota_row(**row)] if row else [], 0) for row in (old, new))
    moved = standing_changes(table([usage_row(NOW_MS)]), before, after)
    found = bound_warnings(moved, usage, loaded(quota_row(**new)))
    assert [one for one in found if not ends or not one.endswith(ends)] == []
    assert bool(found) == bool(ends)


@pytest.mark.parametrize(
    ("bound", "mode", "request_count", "is_found"),
    [
        (100_000.0, "enforce", 1, True),
        (500_000.0, "enforce", 1, False),
        (100_000.0, "enforce", 5, False),
        (100_000.0, "enforce", 0, False),
        (100_000.0, "shadow", 1, False),
    ],
    ids=["above the bound", "equal to it", "five small ones", "scraped", "in shadow mode"],
)
def test_a_request_of_more_than_a_second_of_the_bound_is_named_with_what_to_do(
    bound: float, mode: str, request_count: int, is_found: bool
) -> None:
    scraped = after_many_small(fetched_bytes=900_000)
    usage = pa.concat_tables([after_many_small(request_count, fetched_bytes=500_000), scraped])
    quotas = QuotaSnapshot.from_rows([quota_row(consumer_byte_rate=bound, mode=mode)], 1)
    told = (
        "one fetch of u/c had at least 500.0 kB, 5.0 s of its consumer_byte_rate 100.0 kB/s: set fetch.max.bytes "
        "and max.partition.fetch.bytes to at most 100000, or raise the quota to 500.0 kB/s"
    )
    assert large_requests(usage, quotas) == ([told] if is_found else [])


@pytest.mark.parametrize(
    ("entity", "found"),
    [
        (("alice", ""), []),
        (("alice", "etl"), []),
        (("<default>", "<default>"), []),
        (("alcie", ""), ["user 'alcie' was never seen; did you mean alice?"]),
        (("", "elt"), ["client-id 'elt' was never seen; did you mean etl?"]),
        (("zoe", "etl"), ["user 'zoe' was never seen"]),
    ],
)
def test_a_name_that_no_client_has_is_warned_of(entity: tuple[str, str], found: list[str]) -> None:
    assert name_warnings(entity, [("alice", "etl"), ("bob", "app")]) == found


BYTES = "producer_byte_rate"


@pytest.mark.parametrize(
    ("whole", "own", "in_force", "is_at_rest", "text"),
    [
        (10e6, 1e6, 3.6e6, False, "10.0 MB/s; 3.6 × its own 1.0 MB/s while others are idle"),
        (10e6, 1e6, 10e6, True, "10.0 MB/s; up to 10.0 MB/s while others are idle"),
        (10e6, 1e6, 1e6, True, "10.0 MB/s; at most its own 1.0 MB/s"),
        (10e6, 1e6, 1e6, False, "10.0 MB/s; at most its own 1.0 MB/s"),
        (10e6, 1e6, 0.5e6, False, "10.0 MB/s; 0.5 × its own 1.0 MB/s, because its members want more than it has"),
        (1e6, 4e6, 1e6, True, "1.0 MB/s; at most 1.0 MB/s, not its own 4.0 MB/s"),
        (None, 1e6, 2e6, False, "bound; 2.0 × its own 1.0 MB/s while others are idle"),
    ],
)
def test_what_a_member_may_use_of_its_tenant_is_one_sentence(
    whole: float | None, own: float, in_force: float, is_at_rest: bool, text: str
) -> None:
    found = sharing_text("alice", BYTES, "team-a", whole, own, in_force, is_at_rest)
    assert found == f"alice shares team-a's {text}"


def member(name: str, used: float, own: float, bound: float = 9e6) -> dict[str, Any]:
    sensor = {"level": 3, "sensor_user": name, "sensor_client_id": ""}
    return {**sensor, "observed": used, "own_bound": own, "bound": bound}


@pytest.mark.parametrize(
    ("members", "text"),
    [
        ([("a", 1.0, 1.0), ("b", 0.5, 1.0)], None),
        ([("a", 1_099_999.0, 1e6), ("b", 5e5, 1e6)], None),
        ([("a", 1.1e6, 1e6), ("b", 5e5, 1e6)], "a 100.0 kB/s that b leaves free: it uses 1.1 × its own 1.0 MB/s"),
        ([("a", 3e6, 1e6), ("b", 5e5, 1e6)], "a 2.0 MB/s that b leaves free: it uses 3.0 × its own 1.0 MB/s"),
        ([("a", 3e6, 1e6, 1e6), ("b", 5e5, 1e6)], None),
        ([("a", 3e6, 1e6)], "a 2.0 MB/s that others leave free: it uses 3.0 × its own 1.0 MB/s"),
        (
            [("a", 3e6, 1e6), ("b", 4e6, 1e6), ("c", 0.0, 1e6), ("d", 0.0, 2e6), ("e", 0.0, 3e6)],
            "b and a 5.0 MB/s that e, d and 1 more leave free",
        ),
    ],
)
def test_who_borrows_and_who_leaves_that_free_is_one_sentence(members: list[tuple[Any, ...]], text: str | None) -> None:
    assert lending_text("t", BYTES, [member(*one) for one in members]) == (text and f"t lends {text}")


TEAM = Tenant("team-a", ("alice",), (), (10.0, None, 50.0), (2.0, None, 5.0), lend=True, ceiling=4.0)


def test_a_tenant_in_shadow_mode_is_named_by_what_its_member_would_share() -> None:
    shadow = Tenant("trial", ("alice", "bob"), (), (4e6, None, None), (4e5, None, None), lend=True, mode="shadow")
    enforced = Tenant("team-a", ("al*",), (), (3e6, None, None), (3e5, None, None))
    quotas = QuotaSnapshot.from_rows([{"user": "alice", "client_id": "", BYTES: 1e6}], 1)

    def sharing(user: str, *tenants: Tenant) -> str | None:
        return effective(replace(quotas, tenants=tenants), user, "etl", table([])).by_type[0].sharing

    would = "alice would share trial's 4.0 MB/s; up to 4.0 MB/s while others are idle"
    assert sharing("alice", shadow) == would
    assert sharing("alice", enforced, shadow) == f"alice shares team-a's 3.0 MB/s; at most its own 1.0 MB/s; {would}"
    assert sharing("bob", shadow) == "bob without a quota of its own would share " + would.partition("share ")[2]
    assert sharing("eve", shadow) is sharing("alice") is None


def test_a_member_s_bound_in_force_follows_the_level_of_its_tenant() -> None:
    asked = list[set[str]]()

    def levels_of(tenants: Collection[str]) -> dict[tuple[str, str, str], float]:
        asked.append({*tenants})
        return {("team-a", BYTES, "enforce"): 3.6}

    rows = [quota_row("alice", "", producer_byte_rate=1.0), quota_row("bob", "", producer_byte_rate=1.0)]
    quotas = replace(QuotaSnapshot.from_rows(rows, 1), tenants=(TEAM,))
    at_level, without, own = effective(quotas, "alice", "etl", table([]), levels_of).by_type
    at_rest, *_ = effective(quotas, "alice", "etl", table([])).by_type
    assert (at_level.bound, at_level.tenant_level, at_level.own_bound) == (3.6, 3.6, 1.0)
    assert at_level.sharing == "alice shares team-a's 10.0 B/s; 3.6 × its own 1.0 B/s while others are idle"
    assert (at_rest.bound, at_rest.tenant_level) == (4.0, None)
    assert at_rest.sharing == "alice shares team-a's 10.0 B/s; up to 4.0 B/s while others are idle"
    assert (without.sharing, own.level) == (None, 9)
    told = "alice without a quota of its own shares team-a's 50.0 %; up to 20.0 % while others are idle"
    assert own.sharing == told
    assert [one.tenant for one in effective(quotas, "bob", "etl", table([]), levels_of).by_type] == [None] * 3
    assert asked == [{"team-a"}]
