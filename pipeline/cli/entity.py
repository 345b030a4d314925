"""Which quota entity or client a command is for: the flags of kafka-configs, with its rules and errors.

The spelling of kquota is --user and --client-id; the others mean the same. Long forms of kafka-configs are matched by
their position on the command line: the first `--entity-name` or `--entity-default` belongs to the first
`--entity-type`. Short forms cannot be mixed with them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from typing import Annotated, Any, Final, NamedTuple

import typer

from pipeline.cli.options import Bundle
from pipeline.errors import UsageError
from pipeline.tables.quotas.edit import FORGIVEN, bracketed
from quota.entity import DEFAULT, OTHER, QUOTA_TYPES, label

_NAMES: Final = "kquota.entity_names"
_COLUMN_OF: Final = {"users": "user", "clients": "client_id"}


@dataclass(frozen=True, slots=True)
class EntityFilter:
    """The entities that a command is for.

    Attributes:
        names: entity type (`users`, `clients`) to name, in the order given; None = every name and the default.
            Empty = all entities.
        with_forgiven: Also what rows forgive, and rows that are there only for that.
    """

    names: Mapping[str, str | None]
    with_forgiven: bool = False

    @property
    def user(self) -> str:
        """Name of the user; "" if it is not part of the entity."""
        return self.names.get("users") or ""

    @property
    def client_id(self) -> str:
        """Name of the client-id; "" if it is not part of the entity."""
        return self.names.get("clients") or ""

    def matches(self, row: Mapping[str, object]) -> bool:
        """Whether a row of `quotas` is one of them; `users` alone finds no pair."""
        return not self.names or all(
            (bool(row[column]) and self.names[kind] in {None, row[column]}) if kind in self.names else not row[column]
            for kind, column in _COLUMN_OF.items()
        )

    def completed(self) -> str:
        """What kafka-configs prints after an edit. It names the first entity type only."""
        kind, name = next(iter(self.names.items()))
        if name == DEFAULT:
            return f"Completed updating default config for {kind} in the cluster."
        return f"Completed updating config for {kind[:-1]} {name}."


class ClientNames(NamedTuple):
    """The names that were given for clients. None = not given; a client-id may be empty."""

    user: str | None
    client_id: str | None


def _entity(context: typer.Context, given: Mapping[str, Any], *, exact: bool) -> EntityFilter:
    """Read the flags. `exact`: exactly one entity must be named, as for an edit."""
    long_names: list[str] = context.meta.get(_NAMES, [])
    types, named = given["entity_type"], _short_forms(given)
    if named and (types or long_names):
        msg = "--entity-{type,name,default} should not be used in conjunction with specific entity flags"
        raise UsageError(msg, "use --user, --client-id, --user-defaults and --client-defaults alone")
    kinds = [kind for kind, _ in named] or list(types or ())
    names = [name for _, name in named] or long_names
    _refuse_types(kinds, needed=exact or bool(names))
    _refuse_names(kinds, names, exact=exact)
    padded = [*(name or DEFAULT for name in names), *([None] * (len(kinds) - len(names)))]
    return EntityFilter(dict(zip(kinds, padded, strict=True)), given["all_configs"])


def _client(_context: typer.Context, given: Mapping[str, Any]) -> ClientNames:
    for option, name in (("--user", "user"), ("--client-id", "client_id")):
        _refuse_twice(option, given[name])
    refuse_empty("--user", given["user"])
    return ClientNames(*(next(iter(given[name] or ()), None) for name in ClientNames._fields))


def _refuse_twice(option: str, values: Sequence[str] | None) -> None:
    if values and len(values) > 1:
        name = option.removeprefix("--").removesuffix("-id")
        msg = f"Found multiple arguments for option {name}, but you asked for only one"
        raise UsageError(msg, f"repeat the command for each: {', '.join(values)}")


def refuse_empty(option: str, names: Sequence[str] | None, of_default: str | None = None) -> None:
    """Refuse an empty name. A shell makes one of a variable that is not set, and Kafka takes it for the default."""
    if names and not all(names):
        msg, instead = f"{option} is empty", f"; the default is {of_default}" if of_default else ""
        raise UsageError(msg, f'see whether the variable in {option} "$NAME" is set{instead}')


def _short_forms(given: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Type and name of each short form, clients first, as kafka-configs goes through them."""
    users, clients = given["user"] or (), given["client_id"] or ()
    refuse_empty("--user", users, "--user-defaults")
    refuse_empty("--client-id", clients, "--client-defaults")
    _refuse_twice("--user", users)
    _refuse_twice("--client-id", clients)
    return [
        *(("clients", name) for name in clients),
        *(("users", name) for name in users),
        *([("clients", "")] if given["client_defaults"] else []),
        *([("users", "")] if given["user_defaults"] else []),
    ]


def _refuse_types(kinds: Sequence[str], *, needed: bool) -> None:
    if needed and not kinds:
        msg = "At least one entity type must be specified"
        raise UsageError(msg, "name one: --user, --client-id, --user-defaults, --client-defaults")
    for kind in kinds:
        if kind not in _COLUMN_OF:
            msg = f"Invalid entity type {kind}, the entity type must be one of users, clients"
            raise UsageError(msg, "kquota has quotas of users and client-ids; use kafka-configs for the others")
    if len(set(kinds)) != len(kinds):
        twice = ",".join(sorted({kind for kind in kinds if kinds.count(kind) > 1}))
        msg = f"Duplicate entity type(s) specified: {twice}"
        raise UsageError(msg, "an entity is one user, one client-id, or a pair: repeat the command for each entity")


def _refuse_names(kinds: Sequence[str], names: Sequence[str], *, exact: bool) -> None:
    if exact and not names:
        msg = "An entity-name or default entity must be specified with --alter of users, clients"
        raise UsageError(msg, "name it: --user NAME, --client-id NAME, --user-defaults or --client-defaults")
    if not exact and len(names) > len(kinds):
        msg = "More entity names specified than entity types"
        raise UsageError(msg, "give an --entity-type before each --entity-name")
    if exact and len(names) != len(kinds):
        msg = "An entity name must be specified for every entity type"
        raise UsageError(msg, "give an --entity-name or --entity-default after each --entity-type")
    if OTHER in names:
        msg = f"{OTHER} is reserved for the client-ids of a user beyond the limit of new ones; no entity can have it"
        raise UsageError(msg, "give the quota to the user")
    if DEFAULT in names:
        msg = f"{DEFAULT} is reserved for the default entity; --entity-name cannot have it"
        raise UsageError(msg, "give --entity-default, --user-defaults or --client-defaults")


def _keep_names(context: typer.Context, names: list[str] | None) -> list[str] | None:
    refuse_empty("--entity-name", names, "--entity-default")
    context.meta.setdefault(_NAMES, []).extend(names or [])
    return names


def _keep_defaults(context: typer.Context, count: int) -> int:
    # Called before or after `_keep_names`, in the order of the flags on the command line, so the order is kept.
    context.meta.setdefault(_NAMES, []).extend([""] * count)
    return count


def _texts(*flags: str, metavar: str, help: str, panel: str | None = None, callback: Any = None) -> tuple[Any, None]:  # noqa: A002 - as Typer names it
    option = typer.Option(*flags, metavar=metavar, help=help, rich_help_panel=panel, callback=callback)
    return Annotated[list[str] | None, option], None


_AS_KAFKA: Final = "As in kafka-configs"
_USER: Final = _texts("--user", metavar="NAME", help="The user.")
_CLIENT_ID: Final = _texts("--client-id", "--client", metavar="NAME", help="The client-id.")
_DEFAULTS: Final = typer.Option(
    metavar="",
    help="The default entity, in place of a name.",
    count=True,
    callback=_keep_defaults,
    show_default=False,
    rich_help_panel=_AS_KAFKA,
)
_ENTITY: Final = {
    "user": _USER,
    "client_id": _CLIENT_ID,
    "user_defaults": (Annotated[bool, typer.Option("--user-defaults", help="The default user.")], False),
    "client_defaults": (Annotated[bool, typer.Option("--client-defaults", help="The default client-id.")], False),
    "entity_type": _texts(
        "--entity-type", metavar="users|clients", help="Once for each part of the entity.", panel=_AS_KAFKA
    ),
    "entity_name": _texts(
        "--entity-name",
        metavar="NAME",
        help="Name for the --entity-type in the same place.",
        panel=_AS_KAFKA,
        callback=_keep_names,
    ),
    "entity_default": (Annotated[int, _DEFAULTS], 0),
    "all_configs": (
        Annotated[bool, typer.Option("--all", help="Also debts that are forgiven.", rich_help_panel=_AS_KAFKA)],
        False,
    ),
}

OneEntity = Annotated[EntityFilter, Bundle(_ENTITY, partial(_entity, exact=True))]
Entities = Annotated[EntityFilter, Bundle(_ENTITY, partial(_entity, exact=False))]
Client = Annotated[ClientNames, Bundle({"user": _USER, "client_id": _CLIENT_ID}, _client)]


# Prints quotas as the lines of kafka-configs.

_BOUNDS: Final = tuple(sorted(QUOTA_TYPES))


def described_line(row: Mapping[str, Any]) -> str:
    """`Quota configs for user-principal 'alice' are producer_byte_rate=1024.0`.

    Bounds are in alphabetical order. A mode other than enforce, an owner and a note follow; a quota without them prints
    exactly as in Kafka.
    """
    values = [f"{name}={java_double(row[name])}" for name in _BOUNDS if row[name] is not None]
    if row["mode"] != "enforce":
        values.append(f"mode={row['mode']}")
    values += [f"{name}={bracketed(row[name])}" for name in ("owner", "note") if row[name] is not None]
    values += [f"{FORGIVEN}={row[FORGIVEN]}"] if row.get(FORGIVEN) is not None else []
    return f"Quota configs for {label(row['user'], row['client_id'])} are {', '.join(values)}"


def java_double(value: float) -> str:
    """A double as Java prints it: `1024.0`, `1.0E7`, `1.0E-4`; the fewest digits that read as the same number."""
    if 1e-3 <= abs(value) < 1e7 or value == 0:
        return format(Decimal(repr(value)), "f") if "e" in repr(value) else repr(value)
    shortest, nearest = (Decimal(text).normalize() for text in (repr(value), f"{value:.1e}"))
    # Java wants two digits at least: of those that read as the same number the nearest, which may end with 0.
    if len(shortest.as_tuple().digits) == 1 and float(nearest) == value:
        shortest = nearest
    sign, digits, exponent = shortest.as_tuple()
    text = "".join(map(str, digits))
    power = len(text) - 1 + int(exponent)
    return f"{'-' if sign else ''}{text[0]}.{text[1:] or '0'}E{power}"
