import pytest

from quota.entity import DEFAULT, Level, entity_at, level_of, may_apply


@pytest.mark.parametrize("level", list(Level))
def test_the_entity_of_a_level_is_at_that_level(level: Level) -> None:
    assert level_of(*entity_at(level, "alice", "etl")) is level


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
