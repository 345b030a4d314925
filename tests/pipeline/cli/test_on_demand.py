"""A group knows the names of all its commands, and loads those whose values are looked at."""

import sys
from typing import Any

from typer.main import get_command

from pipeline.cli.main import app
from pipeline.cli.on_demand import group_of
from tests.pipeline.cli.running import kquota


def ways(command: Any, path: str) -> list[str]:
    inner = getattr(command, "commands", None)
    return [path] if inner is None else [way for name in inner for way in ways(inner[name], f"{path} {name}")]


def test_every_command_is_where_it_is_said_to_be() -> None:
    found = ways(get_command(app), "kquota")
    assert len(found) == len(set(found))
    assert {"kquota status", "kquota what-if", "kquota quotas at", "kquota throttles list"} <= set(found)


def test_a_command_that_is_not_looked_at_is_not_loaded() -> None:
    made: Any = group_of({"one": "antigravity:fly", "two": "no.such.module:x"})(name="g")
    assert list(made.commands) == ["one", "two"]
    assert "one" in made.commands
    assert "three" not in made.commands
    assert made.get_command(None, "three") is None
    assert "antigravity" not in sys.modules


def test_a_mistyped_command_is_refused_and_the_nearest_is_named() -> None:
    answer = kquota("quotas", "descrbe")
    assert answer.exit_code == 2
    assert "Did you mean 'describe'" in answer.stderr
