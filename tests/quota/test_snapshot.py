"""Which rows can be quotas, and which are refused."""

import math
from typing import Any

import pytest

from quota.entity import DEFAULT, Level, Owners, entity_at, level_of, may_apply
from quota.errors import InvalidQuotas
from quota.resolution import held_one_by_one
from quota.snapshot import QuotaSnapshot
from tests.quota.factories import quota_row


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        (
            quota_row(producer_byte_rate=0),
            "row 1 (user 'u', client-id ''): producer_byte_rate is 0, not a finite number above 0",
        ),
        (
            quota_row(consumer_byte_rate=-1.5),
            "row 1 (user 'u', client-id ''): consumer_byte_rate is -1.5, not a finite number above 0",
        ),
        (
            quota_row(request_percentage=math.nan),
            "row 1 (user 'u', client-id ''): request_percentage is nan, not a finite number above 0",
        ),
        (
            quota_row(request_percentage=math.inf),
            "row 1 (user 'u', client-id ''): request_percentage is inf, not a finite number above 0",
        ),
        (
            quota_row(producer_byte_rate="1000"),
            "row 1 (user 'u', client-id ''): producer_byte_rate is '1000', not a finite number above 0",
        ),
        (
            quota_row(producer_byte_rate=True),
            "row 1 (user 'u', client-id ''): producer_byte_rate is True, not a finite number above 0",
        ),
        (
            quota_row(mode="off"),
            "row 1 (user 'u', client-id ''): unknown mode 'off'; known are enforce, shadow, exempt",
        ),
        (quota_row("", ""), "row 1: neither a user nor a client-id is given"),
        ({"user": 7, "client_id": "c"}, "row 1: user is 7, not text"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_row_that_can_not_be_a_quota_is_refused_with_the_reason(row: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidQuotas) as refused:
        QuotaSnapshot.from_rows([row], version=3)
    assert refused.value.problems == (problem,)
    assert str(refused.value) == f"quotas v3: {problem}"


def test_all_problems_are_reported_at_once() -> None:
    rows = [
        quota_row(producer_byte_rate=0, consumer_byte_rate=-1),
        quota_row("a", "b"),
        quota_row("", ""),
        quota_row("a", "b", mode="x"),
        quota_row("a", "b", producer_byte_rate=1),
    ]
    with pytest.raises(InvalidQuotas) as refused:
        QuotaSnapshot.from_rows(rows, version=1)
    assert [problem.split(":")[0] for problem in refused.value.problems] == [
        "row 1 (user 'u', client-id '')",
        "row 1 (user 'u', client-id '')",
        "row 3",
        "row 4 (user 'a', client-id 'b')",
        "row 5",
    ]
    assert "user 'a', client-id 'b' is in row 2 too" in refused.value.problems[-1]


def test_a_long_list_of_problems_is_cut_in_the_message_only() -> None:
    with pytest.raises(InvalidQuotas, match=r"and 2 more$") as refused:
        QuotaSnapshot.from_rows([quota_row(f"u{i}", producer_byte_rate=0) for i in range(12)], version=1)
    assert len(refused.value.problems) == 12


def test_missing_columns_and_nulls_are_no_bound_and_enforce() -> None:
    (quota,) = QuotaSnapshot.from_rows([{"user": None, "client_id": "c", "mode": None, "owner": "x"}], 1).quotas
    assert (quota.user, quota.client_id, quota.bounds, quota.mode) == ("", "c", (None, None, None), "enforce")


def test_a_table_in_shadow_mode_enforces_nothing_and_still_exempts() -> None:
    rows = [quota_row("a"), quota_row("b", mode="shadow"), quota_row("c", mode="exempt")]
    snapshot = QuotaSnapshot.from_rows(rows, 1, mode="shadow")
    assert [quota.mode for quota in snapshot.quotas] == ["shadow", "shadow", "exempt"]


def test_a_quota_names_at_least_one_part() -> None:
    with pytest.raises(ValueError, match="neither a user nor a client-id"):
        level_of("", "")


@pytest.mark.parametrize(
    ("level", "entity"),
    [
        (Level.USER_CLIENT, ("alice", "etl")),
        (Level.USER_DEFAULT_CLIENT, ("alice", "<default>")),
        (Level.USER, ("alice", "")),
        (Level.DEFAULT_USER_CLIENT, ("<default>", "etl")),
        (Level.DEFAULT_USER_DEFAULT_CLIENT, ("<default>", "<default>")),
        (Level.DEFAULT_USER, ("<default>", "")),
        (Level.CLIENT, ("", "etl")),
        (Level.DEFAULT_CLIENT, ("", "<default>")),
    ],
)
def test_each_level_names_its_parts(level: Level, entity: tuple[str, str]) -> None:
    assert entity_at(level, "alice", "etl") == entity
    assert level_of(*entity) is level


ROWS = [
    {"user": user, "client_id": client_id}
    for user in ("alice", "bob", DEFAULT, "")
    for client_id in (DEFAULT, "etl", "web", "")
    if user or client_id
]


@pytest.mark.parametrize(
    ("user", "client_id", "found"),
    [
        ("alice", "etl", ["alice/etl", "alice/D", "alice/", "D/etl", "D/D", "D/", "/etl", "/D"]),
        (
            "alice",
            "",
            [*("alice/etl", "alice/web", "alice/D", "alice/"), *("D/etl", "D/web", "D/D", "D/", "/etl", "/web", "/D")],
        ),
        ("", "web", ["alice/web", "bob/web", "alice/D", "bob/D", "alice/", "bob/", "D/web", "D/D", "D/", "/web", "/D"]),
        ("eve", "new", ["D/D", "D/", "/D"]),
    ],
)
def test_what_may_apply_is_found_the_most_specific_first(user: str, client_id: str, found: list[str]) -> None:
    rows = may_apply(ROWS, user, client_id)
    assert ["/".join(name.replace(DEFAULT, "D") for name in row.values()) for row in rows] == found


def row(user: str, client_id: str, owner: str | None) -> dict[str, str | None]:
    return {"user": user, "client_id": client_id, "owner": owner}


LEVELS = [
    ("alice", "etl"),
    ("alice", "<default>"),
    ("alice", ""),
    ("<default>", "etl"),
    ("<default>", "<default>"),
    ("<default>", ""),
    ("", "etl"),
    ("", "<default>"),
]


@pytest.mark.parametrize("first", range(8))
def test_the_most_specific_row_that_names_an_owner_decides(first: int) -> None:
    rows = [row(*entity, f"owner {place}") for place, entity in enumerate(LEVELS) if place >= first]
    assert Owners(rows).of("alice", "etl") == f"owner {first}"


@pytest.mark.parametrize("nobody", [None, ""])
def test_a_row_without_an_owner_is_passed_over(nobody: str | None) -> None:
    owners = Owners([row("alice", "etl", nobody), row("alice", "", "dana")])
    assert (owners.of("alice", "etl"), owners.of("bob", "etl")) == ("dana", None)


def test_a_client_without_a_name_is_covered_by_no_row_that_names_a_client() -> None:
    assert Owners([row("", "etl", "one"), row("alice", "etl", "two")]).of("alice", "") is None
    assert Owners([row("", "<default>", "all"), row("alice", "etl", "two")]).of("alice", "") == "all"


def test_all_client_ids_of_a_user_have_the_owner_of_the_user() -> None:
    of_clients = [row("alice", "etl", "one"), row("alice", "<default>", "two"), row("", "<default>", "three")]
    assert Owners(of_clients).of("alice", None) is None
    assert Owners([*of_clients, row("<default>", "", "dana")]).of("alice", None) == "dana"


@pytest.mark.parametrize(
    ("rows", "users"),
    [
        ([("alice", "", "enforce")], []),
        ([("alice", "", "enforce"), ("alice", "etl", "enforce")], []),
        ([("alice", "", "enforce"), ("alice", "<default>", "enforce")], ["alice"]),
        ([("alice", "", "enforce"), ("alice", "<default>", "exempt")], ["alice"]),
        ([("alice", "", "enforce"), ("alice", "<default>", "shadow")], []),
        ([("alice", "", "enforce"), ("<default>", "<default>", "enforce")], []),
        ([("<default>", "", "enforce"), ("<default>", "<default>", "enforce")], ["<default>"]),
        ([("alice", "<default>", "enforce")], []),
    ],
)
def test_clients_are_held_one_by_one_where_a_default_client_id_gives_each_a_sensor(
    rows: list[tuple[str, str, str]], users: list[str]
) -> None:
    quotas = [
        {
            "user": user,
            "client_id": client_id,
            "mode": mode,
            **({} if mode == "exempt" else {"producer_byte_rate": 1.0}),
        }
        for user, client_id, mode in rows
    ]
    assert held_one_by_one(QuotaSnapshot.from_rows(quotas, version=1)) == users
