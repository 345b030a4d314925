"""Which quota entity a command is for: the flags of kafka-configs, with its rules and its error messages.

Long forms are matched by their position on the command line: the first `--entity-name` or `--entity-default` belongs
to the first `--entity-type`. Short forms can not be mixed with them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Final

import typer

from pipeline.cli.quotas.errors import QuotaUsage
from quota.entity import DEFAULT

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
        is_strict: Whether an entity that has other parts too is none of them.
    """

    names: Mapping[str, str | None]
    is_strict: bool = True

    @property
    def user(self) -> str:
        """Name of the user; "" if it is no part of the entity."""
        return self.names.get("users") or ""

    @property
    def client_id(self) -> str:
        """Name of the client-id; "" if it is no part of the entity."""
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
        QuotaUsage: They name no entity, or contradict each other.
    """
    long_names: list[str] = context.meta.get(_NAMES, [])
    named = _short_forms(*short)
    if named and (types or long_names):
        msg = "--entity-{type,name,default} should not be used in conjunction with specific entity flags"
        raise QuotaUsage(msg, "use --user, --client-id, --user-defaults and --client-defaults alone")
    if rpk:
        if named or types or long_names:
            msg = "'--name', '--default' and '--any' must not be mixed with other flags that name an entity"
            raise QuotaUsage(msg, "use --user and --client-id alone")
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
        option: The option that the names were given with.
        names: The names; None = none.
        of_default: The option that means the default entity.

    Raises:
        QuotaUsage: A name is empty.
    """
    if names and not all(names):
        msg = f"'{option}' must not be empty; got ''"
        raise QuotaUsage(msg, f'see whether the variable in {option} "$NAME" is set; the default is {of_default}')


def _short_forms(
    users: Sequence[str] | None, clients: Sequence[str] | None, user_defaults: bool, client_defaults: bool
) -> list[tuple[str, str]]:
    """Type and name of each short form, clients first, as kafka-configs goes through them."""
    refuse_empty("--user", users, "--user-defaults")
    refuse_empty("--client-id", clients, "--client-defaults")
    for option, values in (("user", users), ("client", clients)):
        if values and len(values) > 1:
            msg = f"Found multiple arguments for option {option}, but you asked for only one"
            raise QuotaUsage(msg, f"repeat the command for each: {', '.join(values)}")
    return [
        *(("clients", name) for name in clients or ()),
        *(("users", name) for name in users or ()),
        *([("clients", "")] if client_defaults else []),
        *([("users", "")] if user_defaults else []),
    ]


def _refuse_types(kinds: Sequence[str], *, needed: bool) -> None:
    if needed and not kinds:
        msg = "At least one entity type must be specified"
        raise QuotaUsage(msg, "name one: --user, --client-id, --user-defaults, --client-defaults")
    for kind in kinds:
        if kind not in _COLUMNS:
            msg = f"Invalid entity type {kind}, the entity type must be one of users, clients"
            raise QuotaUsage(msg, "kquota has quotas of users and client-ids; use kafka-configs for the others")
    if len(set(kinds)) != len(kinds):
        twice = ",".join(sorted({kind for kind in kinds if kinds.count(kind) > 1}))
        msg = f"Duplicate entity type(s) specified: {twice}"
        raise QuotaUsage(msg, "an entity is one user, one client-id, or a pair: repeat the command for each entity")


def _refuse_names(kinds: Sequence[str], names: Sequence[str], *, exact: bool) -> None:
    if exact and not names:
        msg = "An entity-name or default entity must be specified with --alter of users, clients"
        raise QuotaUsage(msg, "name it: --user NAME, --client-id NAME, --user-defaults or --client-defaults")
    if not exact and len(names) > len(kinds):
        msg = "More entity names specified than entity types"
        raise QuotaUsage(msg, "give an --entity-type before each --entity-name")
    if exact and len(names) != len(kinds):
        msg = "An entity name must be specified for every entity type"
        raise QuotaUsage(msg, "give an --entity-name or --entity-default after each --entity-type")
    if DEFAULT in names:
        msg = f"'--entity-name' must not be {DEFAULT}, which is reserved for the default entity; got {DEFAULT}"
        raise QuotaUsage(
            msg,
            "say --entity-default, --user-defaults or --client-defaults",
        )
