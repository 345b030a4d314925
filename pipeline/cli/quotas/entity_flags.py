"""Gives a command the flags that name a quota entity or a client, the same ones everywhere.

The spelling of kquota is --user and --client-id. The spellings of kafka-configs and of rpk mean the same.
"""

import inspect
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, Final, NamedTuple

import typer

from pipeline.cli.quotas.entity import (
    Client,
    ClientDefaults,
    EntityDefaults,
    EntityFilter,
    EntityNames,
    EntityTypes,
    User,
    UserDefaults,
    entity_filter,
)
from pipeline.cli.quotas.errors import QuotaUsage
from pipeline.cli.quotas.rpk_flags import RpkAny, RpkDefaults, RpkNames, RpkStrict, rpk_parts
from quota.entity import DEFAULT

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
            QuotaUsage: A name was given as both, or the user is empty, as of a variable that is not set.
        """
        if user == "":
            message = "'USER' must not be empty; got ''"
            raise QuotaUsage(message, 'see whether the variable in "$NAME" is set')
        given = (("USER", "--user", user, self.user), ("CLIENT_ID", "--client-id", client_id, self.client_id))
        for argument, flag, first, second in given:
            if first is not None and second is not None:
                message = f"'{argument}' must be given once; got {first}, and {second} with {flag}"
                raise QuotaUsage(message, f"leave out {flag}")
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
        message = "'--user' must not be empty; got ''"
        raise QuotaUsage(message, 'see whether the variable in --user "$NAME" is set')
    is_nameless = clients == [""]  # a client-id may be empty, and then it is not the default
    named = {**given, "user": users, "client_id": None if is_nameless else clients}
    names = _entity(context, named, exact=False).names
    if None in names.values() or DEFAULT in names.values():
        message = "'--entity-name' must be given for each --entity-type; got fewer names than types"
        raise QuotaUsage(message, "name the client with --user and --client-id")
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
