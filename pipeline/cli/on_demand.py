"""Commands that are loaded when they are used: one command does not wait for the modules of all others."""

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any, NamedTuple

import typer
from typer.core import TyperGroup
from typer.main import get_command, get_group


class Place(NamedTuple):
    """Where a command is: a function, or a `typer.Typer` for a group of commands.

    Attributes:
        context_settings: Of a function: see `typer.Typer.command`.
    """

    module: str
    name: str
    context_settings: dict[str, Any] | None = None


def group_of(places: Mapping[str, Place]) -> type[TyperGroup]:
    """The class of a group that has the commands in these places, by their names: for `typer.Typer(cls=…)`."""

    class Group(TyperGroup):
        def __init__(self, **attributes: Any) -> None:
            super().__init__(**attributes)
            commands: Any = _Commands(places)
            self.commands = commands

    return Group


class _Commands(Mapping[str, Any]):
    """The commands by name. Those whose values are not looked at are not loaded."""

    def __init__(self, places: Mapping[str, Place]) -> None:
        self._places = places
        self._loaded: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._loaded:
            self._loaded[name] = _load(name, self._places[name])
        return self._loaded[name]

    def __contains__(self, name: object) -> bool:
        return name in self._places

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


def _load(name: str, place: Place) -> Any:
    found = getattr(import_module(place.module), place.name)
    if isinstance(found, typer.Typer):
        group = get_group(found)
        group.name = name
        return group
    alone = typer.Typer(add_completion=False)
    alone.command(name, context_settings=place.context_settings)(found)
    return get_command(alone)
