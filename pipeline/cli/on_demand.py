"""Commands that are loaded when they are used: one command does not wait for the modules of all others."""

import inspect
from collections import UserDict
from collections.abc import Callable, Mapping
from functools import wraps
from importlib import import_module
from typing import Any, NamedTuple

import typer
from typer.core import TyperGroup
from typer.main import get_command, get_group

from pipeline.cli.options import Bundle


class Place(NamedTuple):
    """Where the function of a command is: `module:function`; `.module` is in `pipeline.cli`.

    Attributes:
        context_settings: See `typer.Typer.command`.
    """

    path: str
    context_settings: dict[str, Any] | None = None


class Group(NamedTuple):
    """A group of commands: its help, and their places by their names."""

    help: str
    commands: "Places"


Places = Mapping[str, str | Place | Group]
"""A text is a `Place` without context settings."""


def group_of(places: Places) -> type[TyperGroup]:
    """The class of a group that has the commands in these places, by their names: for `typer.Typer(cls=…)`."""

    class OnDemand(TyperGroup):
        def __init__(self, **attributes: Any) -> None:
            super().__init__(**attributes)
            self.commands = _Commands(places)

    return OnDemand


class _Commands(UserDict[str, Any]):
    """The commands by name, each in its place until it is looked at."""

    def __getitem__(self, name: str) -> Any:
        if isinstance(self.data[name], str | Place | Group):
            self.data[name] = _load(name, self.data[name])
        return self.data[name]


def _load(name: str, place: str | Place | Group) -> Any:
    if isinstance(place, Group):
        group = get_group(typer.Typer(cls=group_of(place.commands), help=place.help, no_args_is_help=True))
        group.name = name
        return group
    path, context_settings = Place(place) if isinstance(place, str) else place
    alone = typer.Typer(add_completion=False)
    alone.command(name, context_settings=context_settings)(_unbundled(_function(path)))
    return get_command(alone)


def _function(path: str) -> Callable[..., None]:
    module, _, name = path.partition(":")
    function: Callable[..., None] = getattr(import_module(module, "pipeline.cli"), name)
    return function


def _unbundled(command: Callable[..., None]) -> Callable[..., None]:
    """The command with the options of its bundles in the places of their parameters."""
    bundles: dict[str, Bundle] = {}
    parameters = [inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)]
    for name, own in inspect.signature(command).parameters.items():
        options: Mapping[str, tuple[Any, Any]] = {name: (own.annotation, own.default)}
        for bundle in getattr(own.annotation, "__metadata__", ()):
            if isinstance(bundle, Bundle):
                bundles[name], options = bundle, bundle.options
        parameters += [
            inspect.Parameter(option, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)
            for option, (annotation, default) in options.items()
        ]

    @wraps(command)
    def with_options(context: typer.Context, **given: Any) -> None:
        values = {
            name: bundle.read(context, {option: given.pop(option) for option in bundle.options})
            for name, bundle in bundles.items()
        }
        command(**given, **values)

    with_options.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    with_options.__annotations__ = {each.name: each.annotation for each in parameters}
    return with_options
