"""Levels, the rows that may apply to a client, and who owns it."""

import pytest

from quota.entity import DEFAULT, Level, Owners, entity_at, level_of, may_apply


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


def test_versions_that_name_the_same_owners_are_equal() -> None:
    assert Owners([row("a", "", "x"), row("b", "", None)]) == Owners([row("a", "", "x")])
    assert Owners([row("a", "", "x")]) != Owners([row("a", "", "y")])
