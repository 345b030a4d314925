import pytest

from quota.entity import Level, entity_at, level_of


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
