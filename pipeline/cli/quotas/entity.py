"""Which quota entity a command is for: the flags of kafka-configs, with its rules and its error messages.

Long forms are matched by their position on the command line: the first `--entity-name` or `--entity-default` belongs
to the first `--entity-type`. Short forms cannot be mixed with them.
"""

import csv
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import wraps
from typing import Annotated, Any, Final, NamedTuple

import typer

from pipeline.errors import UsageError
from quota.entity import DEFAULT, QUOTA_TYPES, label

_NAMES: Final = "kquota.entity_names"
_PANEL: Final = "As in kafka-configs"
_COLUMNS: Final = {"users": "user", "clients": "client_id"}


def _keep_names(context: typer.Context, names: list[str] | None) -> list[str] | None:
    refuse_empty("--entity-name", names, "--entity-default")
    context.meta.setdefault(_NAMES, []).extend(names or [])
    return names


def _keep_defaults(context: typer.Context, count: int) -> int:
    # Called before or after `_keep_names`, in the order of the flags on the command line, so the order is kept.
    context.meta.setdefault(_NAMES, []).extend([""] * count)
    return count


EntityTypes = Annotated[
    list[str] | None,
    typer.Option(
        "--entity-type",
        metavar="users|clients",
        help="Once for each part of the entity.",
        show_default=False,
        rich_help_panel=_PANEL,
    ),
]
EntityNames = Annotated[
    list[str] | None,
    typer.Option(
        "--entity-name",
        metavar="NAME",
        help="Name for the --entity-type in the same place.",
        callback=_keep_names,
        show_default=False,
        rich_help_panel=_PANEL,
    ),
]
EntityDefaults = Annotated[
    int,
    typer.Option(
        "--entity-default",
        metavar="",
        help="The default entity, in place of a name.",
        count=True,
        callback=_keep_defaults,
        show_default=False,
        rich_help_panel=_PANEL,
    ),
]
User = Annotated[list[str] | None, typer.Option("--user", metavar="NAME", help="The user.", show_default=False)]
Client = Annotated[
    list[str] | None,
    typer.Option("--client-id", "--client", metavar="NAME", help="The client-id.", show_default=False),
]
UserDefaults = Annotated[bool, typer.Option("--user-defaults", help="The default user.")]
ClientDefaults = Annotated[bool, typer.Option("--client-defaults", help="The default client-id.")]


@dataclass(frozen=True, slots=True)
class EntityFilter:
    """The entities that a command is for.

    Attributes:
        names: entity type (`users`, `clients`) to name, in the order given; None = every name and the default.
            Empty = all entities.
        is_strict: Whether an entity with further parts does not match.
    """

    names: Mapping[str, str | None]
    is_strict: bool = True

    @property
    def user(self) -> str:
        """Name of the user; "" if it is not part of the entity."""
        return self.names.get("users") or ""

    @property
    def client_id(self) -> str:
        """Name of the client-id; "" if it is not part of the entity."""
        return self.names.get("clients") or ""

    def matches(self, row: Mapping[str, object]) -> bool:
        """Whether a row of `quotas` is one of them. With a strict filter `users` alone finds no pair."""
        return not self.names or all(
            (bool(row[column]) and self.names[kind] in {None, row[column]})
            if kind in self.names
            else not (row[column] and self.is_strict)
            for kind, column in _COLUMNS.items()
        )

    def completed(self) -> str:
        """What kafka-configs prints after an edit. It names the first entity type only."""
        kind, name = next(iter(self.names.items()))
        if name == DEFAULT:
            return f"Completed updating default config for {kind} in the cluster."
        return f"Completed updating config for {kind[:-1]} {name}."


def entity_filter(
    context: typer.Context,
    types: Sequence[str] | None,
    short: tuple[Sequence[str] | None, Sequence[str] | None, bool, bool],
    rpk: Sequence[tuple[str, str | None]] = (),
    *,
    exact: bool,
    is_strict: bool = True,
) -> EntityFilter:
    """Read the flags.

    Args:
        context: Holds the names of `--entity-name` and `--entity-default` in their order.
        types: Values of `--entity-type`.
        short: `--user`, `--client-id`, `--user-defaults`, `--client-defaults`.
        rpk: The flags of rpk, see `rpk_parts`.
        exact: Whether exactly one entity must be named, as for an edit.
        is_strict: Whether the flags of rpk are for entities without other parts only; those of Kafka always are.

    Raises:
        UsageError: They name no entity, or contradict each other.
    """
    long_names: list[str] = context.meta.get(_NAMES, [])
    named = _short_forms(*short)
    if named and (types or long_names):
        msg = "--entity-{type,name,default} should not be used in conjunction with specific entity flags"
        raise UsageError(msg, "use --user, --client-id, --user-defaults and --client-defaults alone")
    if rpk:
        if named or types or long_names:
            msg = "--name, --default and --any cannot be mixed with other flags that name an entity"
            raise UsageError(msg, "use --user and --client-id alone")
        _refuse_types([kind for kind, _ in rpk], needed=True)
        return EntityFilter(dict(rpk), is_strict=is_strict or exact)
    kinds = [kind for kind, _ in named] if named else list(types or ())
    names = [name for _, name in named] if named else long_names
    _refuse_types(kinds, needed=exact or bool(names))
    _refuse_names(kinds, names, exact=exact)
    padded = [*(name or DEFAULT for name in names), *([None] * (len(kinds) - len(names)))]
    return EntityFilter(dict(zip(kinds, padded, strict=True)))


def refuse_empty(option: str, names: Sequence[str] | None, of_default: str) -> None:
    """Refuse an empty name. A shell makes one of a variable that is not set, and Kafka takes it for the default.

    Args:
        names: The names; None = none.

    Raises:
        UsageError: A name is empty.
    """
    if names and not all(names):
        msg = f"{option} is empty"
        raise UsageError(msg, f'see whether the variable in {option} "$NAME" is set; the default is {of_default}')


def _short_forms(
    users: Sequence[str] | None, clients: Sequence[str] | None, user_defaults: bool, client_defaults: bool
) -> list[tuple[str, str]]:
    """Type and name of each short form, clients first, as kafka-configs goes through them."""
    refuse_empty("--user", users, "--user-defaults")
    refuse_empty("--client-id", clients, "--client-defaults")
    for option, values in (("user", users), ("client", clients)):
        if values and len(values) > 1:
            msg = f"Found multiple arguments for option {option}, but you asked for only one"
            raise UsageError(msg, f"repeat the command for each: {', '.join(values)}")
    return [
        *(("clients", name) for name in clients or ()),
        *(("users", name) for name in users or ()),
        *([("clients", "")] if client_defaults else []),
        *([("users", "")] if user_defaults else []),
    ]


def _refuse_types(kinds: Sequence[str], *, needed: bool) -> None:
    if needed and not kinds:
        msg = "At least one entity type must be specified"
        raise UsageError(msg, "name one: --user, --client-id, --user-defaults, --client-defaults")
    for kind in kinds:
        if kind not in _COLUMNS:
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
    if DEFAULT in names:
        msg = f"{DEFAULT} is reserved for the default entity; --entity-name cannot have it"
        raise UsageError(
            msg,
            "give --entity-default, --user-defaults or --client-defaults",
        )


# The flags that `rpk cluster quotas` names entities with: `--name user=alice`, `--default client-id`, `--any user`.
#
# Each may be repeated, and may hold several values with commas between them, in quotes if they have commas themselves.

_PANEL_RPK_FLAGS: Final = "As in rpk"
_KINDS: Final = {"user": "users", "client-id": "clients"}

RpkNames = Annotated[
    list[str] | None,
    typer.Option("--name", metavar="TYPE=NAME", help="user=NAME, client-id=NAME.", rich_help_panel=_PANEL_RPK_FLAGS),
]
RpkDefaults = Annotated[
    list[str] | None,
    typer.Option("--default", metavar="TYPE", help="The default user or client-id.", rich_help_panel=_PANEL_RPK_FLAGS),
]
RpkAny = Annotated[
    list[str] | None,
    typer.Option(
        "--any", metavar="TYPE", help="Every user or client-id, and the default.", rich_help_panel=_PANEL_RPK_FLAGS
    ),
]
RpkStrict = Annotated[
    bool,
    typer.Option(
        "--strict", help="With these: no entities that have other parts too.", rich_help_panel=_PANEL_RPK_FLAGS
    ),
]


def rpk_parts(given: Mapping[str, Any]) -> list[tuple[str, str | None]]:
    """Read the flags.

    Args:
        given: Values of `name`, `default` and `any`, as far as the command has them; None = not given.

    Returns:
        Entity type (`users`, `clients`) and name; None = every name and the default.

    Raises:
        UsageError: A value does not name a part of an entity.
    """
    parts: list[tuple[str, str | None]] = []
    for value in _values(given.get("name")):
        kind, equals, name = value.partition("=")
        if not equals or not name or name == DEFAULT:
            message = f"cannot read --name {value}; write user=NAME or client-id=NAME"
            raise UsageError(message, "name the default entity with --default user or --default client-id")
        parts.append((_kind("--name", kind), name))
    parts += [(_kind("--default", value), DEFAULT) for value in _values(given.get("default"))]
    parts += [(_kind("--any", value), None) for value in _values(given.get("any"))]
    return parts


def _values(texts: Sequence[str] | None) -> Iterator[str]:
    for text in texts or ():
        yield from next(csv.reader([text]), [""])


def _kind(option: str, given: str) -> str:
    if given not in _KINDS:
        message = f"unknown entity type {option} {given}; use {', '.join(_KINDS)}"
        raise UsageError(message, "Kafka has quotas of users and client-ids only")
    return _KINDS[given]


# Gives a command the flags that name a quota entity or a client, the same ones everywhere.
#
# The spelling of kquota is --user and --client-id. The spellings of kafka-configs and of rpk mean the same.

Flags = Mapping[str, tuple[Any, Any]]
"""Name of a parameter -> its annotation and its default."""

_CLIENT: Final[Flags] = {
    "user_flag": (User, None),  # a command may have arguments `user` and `client_id`
    "client_id_flag": (Client, None),
    "entity_type": (EntityTypes, None),
    "entity_name": (EntityNames, None),
    "name": (RpkNames, None),
}
_ENTITY: Final[Flags] = {
    "user": (User, None),
    "client_id": (Client, None),
    "user_defaults": (UserDefaults, False),
    "client_defaults": (ClientDefaults, False),
    "entity_type": (EntityTypes, None),
    "entity_name": (EntityNames, None),
    "entity_default": (EntityDefaults, 0),
    "name": (RpkNames, None),
    "default": (RpkDefaults, None),
}
_SEVERAL: Final[Flags] = {"any": (RpkAny, None), "strict": (RpkStrict, False)}


class ClientNames(NamedTuple):
    """The names that were given for clients. None = not given; a client-id may be empty."""

    user: str | None
    client_id: str | None

    def or_arguments(self, user: str | None, client_id: str | None) -> "ClientNames":
        """The names, of which some were given as arguments in place of flags.

        Raises:
            UsageError: A name was given as both, or the user is empty, as of a variable that is not set.
        """
        if user == "":
            message = "USER is empty"
            raise UsageError(message, 'see whether the variable in "$NAME" is set')
        given = (("USER", "--user", user, self.user), ("CLIENT_ID", "--client-id", client_id, self.client_id))
        for argument, flag, first, second in given:
            if first is not None and second is not None:
                message = f"{argument} is given twice: {first}, and {second} with {flag}"
                raise UsageError(message, f"leave out {flag}")
        return ClientNames(self.user if user is None else user, self.client_id if client_id is None else client_id)


def for_entity(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the flags of exactly one quota entity; it gets them as `entity`, an `EntityFilter`.

    The flags stand where the command's signature has `entity`.
    """
    return _with_flags(command, "entity", _ENTITY, lambda context, given: _entity(context, given, exact=True))


def for_entities(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the flags of any number of quota entities; otherwise as `for_entity`."""
    flags = {**_ENTITY, **_SEVERAL}
    return _with_flags(command, "entity", flags, lambda context, given: _entity(context, given, exact=False))


def for_client(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the flags of a client; it gets them as `client`, a `ClientNames`.

    A client has names, so flags for default entities are not among them.
    """
    return _with_flags(command, "client", _CLIENT, _client)


def _entity(context: typer.Context, given: Mapping[str, Any], *, exact: bool) -> EntityFilter:
    short = given["user"], given["client_id"], given.get("user_defaults", False), given.get("client_defaults", False)
    is_strict = given.get("strict", True)
    return entity_filter(context, given["entity_type"], short, rpk_parts(given), exact=exact, is_strict=is_strict)


def _client(context: typer.Context, given: Mapping[str, Any]) -> ClientNames:
    users, clients = given["user_flag"], given["client_id_flag"]
    if "" in (users or ()):
        message = "--user is empty"
        raise UsageError(message, 'see whether the variable in --user "$NAME" is set')
    is_nameless = clients == [""]  # a client-id may be empty, and then it is not the default
    named = {**given, "user": users, "client_id": None if is_nameless else clients}
    names = _entity(context, named, exact=False).names
    if None in names.values() or DEFAULT in names.values():
        message = "there are fewer names than types: each --entity-type needs an --entity-name"
        raise UsageError(message, "name the client with --user and --client-id")
    return ClientNames(names.get("users"), "" if is_nameless else names.get("clients"))


def _with_flags(
    command: Callable[..., None],
    parameter: str,
    flags: Flags,
    read: Callable[[typer.Context, Mapping[str, Any]], Any],
) -> Callable[..., None]:
    """The command with flags in place of a parameter, whose value is read from them."""

    @wraps(command)
    def with_flags(context: typer.Context, **given: Any) -> None:
        named = read(context, {name: given.pop(name) for name in flags})
        command(**given, **{parameter: named})

    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = [inspect.Parameter("context", keyword, annotation=typer.Context)]
    for name, own in inspect.signature(command).parameters.items():
        if name == parameter:
            parameters += [
                inspect.Parameter(flag, keyword, annotation=annotation, default=default)
                for flag, (annotation, default) in flags.items()
            ]
        else:
            parameters.append(own.replace(kind=keyword))
    with_flags.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    with_flags.__annotations__ = {each.name: each.annotation for each in parameters}
    return with_flags


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
    return f"Quota configs for {label(row['user'], row['client_id'])} are {', '.join(values)}"


def bracketed(text: str) -> str:
    """A text in the form `--add-config` reads: in square brackets if it has commas or equals signs."""
    return f"[{text}]" if "," in text or "=" in text else text


def java_double(value: float) -> str:
    """A double as Java prints it: `1024.0`, `1.0E7`, `1.0E-4`; the fewest digits that read as the same number."""
    if 1e-3 <= abs(value) < 1e7 or value == 0:
        return format(Decimal(repr(value)), "f") if "e" in repr(value) else repr(value)
    sign, digits, exponent = Decimal(repr(value)).normalize().as_tuple()
    text = "".join(map(str, digits))
    power = len(text) - 1 + int(exponent)
    return f"{'-' if sign else ''}{text[0]}.{text[1:] or '0'}E{power}"
