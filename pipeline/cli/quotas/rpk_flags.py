"""The flags that `rpk cluster quotas` names entities with: `--name user=alice`, `--default client-id`, `--any user`.

Each may be repeated, and may hold several values with commas between them, in quotes if they have commas themselves.
"""

import csv
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Final

import typer

from pipeline.cli.quotas.errors import QuotaUsage
from quota.entity import DEFAULT

_PANEL: Final = "As in rpk"
_KINDS: Final = {"user": "users", "client-id": "clients"}

RpkNames = Annotated[
    list[str] | None,
    typer.Option("--name", metavar="TYPE=NAME", help="user=NAME, client-id=NAME.", rich_help_panel=_PANEL),
]
RpkDefaults = Annotated[
    list[str] | None,
    typer.Option("--default", metavar="TYPE", help="The default user or client-id.", rich_help_panel=_PANEL),
]
RpkAny = Annotated[
    list[str] | None,
    typer.Option("--any", metavar="TYPE", help="Every user or client-id, and the default.", rich_help_panel=_PANEL),
]
RpkStrict = Annotated[
    bool, typer.Option("--strict", help="With these: no entities that have other parts too.", rich_help_panel=_PANEL)
]


def rpk_parts(given: Mapping[str, Any]) -> list[tuple[str, str | None]]:
    """Read the flags.

    Args:
        given: Values of `name`, `default` and `any`, as far as the command has them; None = not given.

    Returns:
        Entity type (`users`, `clients`) and name; None = every name and the default.

    Raises:
        QuotaUsage: A value does not name a part of an entity.
    """
    parts: list[tuple[str, str | None]] = []
    for value in _values(given.get("name")):
        kind, equals, name = value.partition("=")
        if not equals or not name or name == DEFAULT:
            message = f"'--name' must be user=NAME or client-id=NAME; got {value}"
            raise QuotaUsage(message, "name the default entity with --default user or --default client-id")
        parts.append((_kind("--name", kind), name))
    parts += [(_kind("--default", value), DEFAULT) for value in _values(given.get("default"))]
    parts += [(_kind("--any", value), None) for value in _values(given.get("any"))]
    return parts


def _values(texts: Sequence[str] | None) -> Iterator[str]:
    for text in texts or ():
        yield from next(csv.reader([text]), [""])


def _kind(option: str, given: str) -> str:
    if given not in _KINDS:
        message = f"'{option}' must be for one of {', '.join(_KINDS)}; got {given}"
        raise QuotaUsage(message, "Kafka has quotas of users and client-ids only")
    return _KINDS[given]
