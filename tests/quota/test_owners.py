import pytest

from quota.entity import Owners


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
