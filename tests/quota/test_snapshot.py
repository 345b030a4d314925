"""Which rows can be quotas, and which are refused; which of them name a client."""

import math
from typing import Any

import pytest

from quota.entity import DEFAULT, Level, Owners, entity_at, level_of, may_apply
from quota.errors import InvalidQuotas
from quota.resolution import held_one_by_one
from quota.snapshot import QuotaSnapshot
from tests.quota.factories import quota_row

U = "row 1 (user 'u', client-id '')"


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        (quota_row(producer_byte_rate=0), f"{U}: producer_byte_rate is 0, not a finite number above 0"),
        (quota_row(consumer_byte_rate=-1.5), f"{U}: consumer_byte_rate is -1.5, not a finite number above 0"),
        (quota_row(request_percentage=math.nan), f"{U}: request_percentage is nan, not a finite number above 0"),
        (quota_row(request_percentage=math.inf), f"{U}: request_percentage is inf, not a finite number above 0"),
        (quota_row(producer_byte_rate="1000"), f"{U}: producer_byte_rate is '1000', not a finite number above 0"),
        (quota_row(producer_byte_rate=True), f"{U}: producer_byte_rate is True, not a finite number above 0"),
        (quota_row(mode="off"), f"{U}: unknown mode 'off'; known are enforce, shadow, exempt"),
        (quota_row("", ""), "row 1: neither a user nor a client-id is given"),
        ({"user": 7, "client_id": "c"}, "row 1: user is 7, not text"),
    ],
)
def test_a_row_that_can_not_be_a_quota_is_refused_with_the_reason(row: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidQuotas) as refused:
        QuotaSnapshot.from_rows([row, quota_row("a", "b"), quota_row("a", "b", producer_byte_rate=1)], version=3)
    assert refused.value.problems == (problem, "row 3: user 'a', client-id 'b' is in row 2 too")


def test_missing_columns_and_nulls_are_no_bound_and_enforce() -> None:
    (quota,) = QuotaSnapshot.from_rows([{"user": None, "client_id": "c", "mode": None, "owner": "x"}], 1).quotas
    assert (quota.user, quota.client_id, quota.bounds, quota.mode) == ("", "c", (None, None, None), "enforce")


def test_a_table_in_shadow_mode_enforces_nothing_and_still_exempts() -> None:
    rows = [quota_row("a"), quota_row("b", mode="shadow"), quota_row("c", mode="exempt")]
    snapshot = QuotaSnapshot.from_rows(rows, 1, mode="shadow")
    assert [quota.mode for quota in snapshot.quotas] == ["shadow", "shadow", "exempt"]


LEVELS = [
    ("alice", "etl"),
    ("alice", DEFAULT),
    ("alice", ""),
    (DEFAULT, "etl"),
    (DEFAULT, DEFAULT),
    (DEFAULT, ""),
    ("", "etl"),
    ("", DEFAULT),
]


def row(user: str, client_id: str, owner: str | None) -> dict[str, str | None]:
    return {"user": user, "client_id": client_id, "owner": owner}


@pytest.mark.parametrize("place", range(8))
def test_a_level_names_its_parts_and_the_most_specific_row_with_an_owner_decides(place: int) -> None:
    level, entity = Level(place + 1), LEVELS[place]
    assert entity_at(level, "alice", "etl") == entity
    assert level_of(*entity) is level
    rows = [row(*one, f"owner {number}" if number >= place else None) for number, one in enumerate(LEVELS)]
    assert Owners(rows).of("alice", "etl") == f"owner {place}"


@pytest.mark.parametrize(
    ("client_id", "rows", "owner"),
    [
        ("etl", [row("bob", "etl", "x")], None),
        ("etl", [row("alice", "etl", ""), row("alice", "", "dana")], "dana"),
        ("", [row("", "etl", "x"), row("alice", "etl", "x")], None),
        ("", [row("", DEFAULT, "all"), row("alice", "etl", "x")], "all"),
        (None, [row("alice", "etl", "x"), row("alice", DEFAULT, "x"), row("", DEFAULT, "x")], None),
        (None, [row("alice", "etl", "x"), row(DEFAULT, "", "dana")], "dana"),
    ],
    ids=["another", "a row without an owner", "no client-id", "a default client-id", "all client-ids", "of the user"],
)
def test_the_owner_of_a_client_or_of_all_client_ids_of_a_user(
    client_id: str | None, rows: list[dict[str, str | None]], owner: str | None
) -> None:
    assert Owners(rows).of("alice", client_id) == owner


ROWS = [
    {"user": user, "client_id": client_id}
    for user in ("alice", "bob", DEFAULT, "")
    for client_id in (DEFAULT, "etl", "web", "")
    if user or client_id
]


@pytest.mark.parametrize(
    ("user", "client_id", "found"),
    [
        ("alice", "etl", "alice/etl alice/D alice/ D/etl D/D D/ /etl /D"),
        ("alice", "", "alice/etl alice/web alice/D alice/ D/etl D/web D/D D/ /etl /web /D"),
        ("", "web", "alice/web bob/web alice/D bob/D alice/ bob/ D/web D/D D/ /web /D"),
        ("eve", "new", "D/D D/ /D"),
    ],
)
def test_what_may_apply_is_found_the_most_specific_first(user: str, client_id: str, found: str) -> None:
    rows = may_apply(ROWS, user, client_id)
    assert " ".join("/".join(row.values()).replace(DEFAULT, "D") for row in rows) == found


@pytest.mark.parametrize(
    ("rows", "users"),
    [
        ([("alice", "", "enforce")], []),
        ([("alice", "", "enforce"), ("alice", "etl", "enforce")], []),
        ([("alice", "", "enforce"), ("alice", DEFAULT, "enforce")], ["alice"]),
        ([("alice", "", "enforce"), ("alice", DEFAULT, "exempt")], ["alice"]),
        ([("alice", "", "enforce"), ("alice", DEFAULT, "shadow")], []),
        ([("alice", "", "enforce"), (DEFAULT, DEFAULT, "enforce")], []),
        ([(DEFAULT, "", "enforce"), (DEFAULT, DEFAULT, "enforce")], [DEFAULT]),
        ([("alice", DEFAULT, "enforce")], []),
    ],
)
def test_clients_are_held_one_by_one_where_a_default_client_id_gives_each_a_sensor(
    rows: list[tuple[str, str, str]], users: list[str]
) -> None:
    bound = {"enforce": 1.0, "shadow": 1.0, "exempt": None}
    quotas = [quota_row(user, client, mode=mode, producer_byte_rate=bound[mode]) for user, client, mode in rows]
    assert held_one_by_one(QuotaSnapshot.from_rows(quotas, version=1)) == users
