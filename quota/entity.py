"""Quota entities: the pairs a quota can be set on, Kafka's order among them, and who is responsible for a client."""

from collections.abc import Iterable, Mapping
from enum import IntEnum, IntFlag
from typing import Any, Final, get_args

from schemas.names import QuotaType

DEFAULT: Final = "<default>"
"""A reserved name: stands for every user (or client-id) that has no quota of its own."""

QUOTA_TYPES: Final[tuple[str, ...]] = get_args(QuotaType)
"""What is limited, in the order used everywhere."""

REQUEST: Final = 2
"""Position of `request_percentage` in `QUOTA_TYPES`: the only type that is measured in ns, not in bytes."""

TIE_ORDER: Final = (2, 0, 1)
"""Positions in `QUOTA_TYPES`, in the order that decides between equal throttle times: request first."""


class Level(IntEnum):
    """The eight levels at which a quota can be set, most specific first."""

    USER_CLIENT = 1
    USER_DEFAULT_CLIENT = 2
    USER = 3
    DEFAULT_USER_CLIENT = 4
    DEFAULT_USER_DEFAULT_CLIENT = 5
    DEFAULT_USER = 6
    CLIENT = 7
    DEFAULT_CLIENT = 8


class LevelKind(IntFlag):
    """Which parts of `<user, client-id>` a level names. These parts are the tags of its sensors."""

    NONE = 0
    CLIENT = 1
    USER = 2
    USER_CLIENT = 4


KIND_OF_LEVEL: Final = {
    Level.USER_CLIENT: LevelKind.USER_CLIENT,
    Level.USER_DEFAULT_CLIENT: LevelKind.USER_CLIENT,
    Level.USER: LevelKind.USER,
    Level.DEFAULT_USER_CLIENT: LevelKind.USER_CLIENT,
    Level.DEFAULT_USER_DEFAULT_CLIENT: LevelKind.USER_CLIENT,
    Level.DEFAULT_USER: LevelKind.USER,
    Level.CLIENT: LevelKind.CLIENT,
    Level.DEFAULT_CLIENT: LevelKind.CLIENT,
}


def level_of(user: str, client_id: str) -> Level:
    """The level of a quota row. Each of its two parts is a name, the default, or absent ("").

    Args:
        user: a user, `DEFAULT`, or "" for a row without a user part.
        client_id: a client-id, `DEFAULT`, or "" for a row without a client-id part.

    Raises:
        ValueError: both parts are "".
    """
    if not user and not client_id:
        message = "neither a user nor a client-id is given"
        raise ValueError(message)
    if not user:
        return Level.DEFAULT_CLIENT if client_id == DEFAULT else Level.CLIENT
    if user == DEFAULT:
        if not client_id:
            return Level.DEFAULT_USER
        return Level.DEFAULT_USER_DEFAULT_CLIENT if client_id == DEFAULT else Level.DEFAULT_USER_CLIENT
    if not client_id:
        return Level.USER
    return Level.USER_DEFAULT_CLIENT if client_id == DEFAULT else Level.USER_CLIENT


def label(user: str, client_id: str) -> str:
    """A quota entity, written as Kafka's tools do: `user-principal 'alice', the default client-id`."""
    parts = ((user, "user-principal"), (client_id, "client-id"))
    return ", ".join(f"the default {word}" if name == DEFAULT else f"{word} '{name}'" for name, word in parts if name)


def entity_at(level: Level, user: str, client_id: str) -> tuple[str, str]:
    """The quota entity of a `<user, client-id>` at a level: the inverse of `level_of`.

    Args:
        level: the level.
        user: the user; used if the level names it.
        client_id: the client-id; used if the level names it.

    Returns:
        User and client-id as in the quota table. Each can be a name, `DEFAULT` or "".
    """
    users = {Level.USER_CLIENT: user, Level.USER_DEFAULT_CLIENT: user, Level.USER: user}
    clients = {Level.USER_CLIENT: client_id, Level.DEFAULT_USER_CLIENT: client_id, Level.CLIENT: client_id}
    of_user = users.get(level, "" if level >= Level.CLIENT else DEFAULT)
    return of_user, clients.get(level, "" if level in {Level.USER, Level.DEFAULT_USER} else DEFAULT)


def may_apply(rows: Iterable[Mapping[str, Any]], user: str, client_id: str) -> list[Mapping[str, Any]]:
    """The rows of the quota table that can hold for a client, the most specific first, then by name.

    Args:
        rows: rows of `quotas`.
        user: the client's user; "" = any.
        client_id: its client-id; "" = any.
    """
    given = ((row, row["user"], row["client_id"]) for row in rows)
    found = [row for row, *names in given if _may_be(names[0], user) and _may_be(names[1], client_id)]
    return sorted(found, key=lambda row: (level_of(row["user"], row["client_id"]), row["user"], row["client_id"]))


def _may_be(part: str, name: str) -> bool:
    """Whether a part of a row, "" or `DEFAULT` among them, can be met by a name; "" is any name."""
    return not name or part in {name, DEFAULT, ""}


_NAMES_THE_CLIENT = frozenset({Level.USER_CLIENT, Level.DEFAULT_USER_CLIENT, Level.CLIENT})


class Owners:
    """Who is responsible for a client: the owner of the most specific row that covers it and names one.

    A row counts whatever its bounds and its mode are: an `exempt` row, too, says whose client it is. A row without an
    owner is passed over, so the owner of a user holds for all clients of that user but those with an owner of their
    own. Answers are kept; for one thread.

    Args:
        rows: Rows of `quotas`: user, client_id and owner. An owner that is null or empty is none.
    """

    def __init__(self, rows: Iterable[Mapping[str, Any]]) -> None:
        self._by_entity = {(row["user"], row["client_id"]): row["owner"] for row in rows if row.get("owner")}
        self._by_client: dict[tuple[str, str], str | None] = {}

    def __eq__(self, other: object) -> bool:
        """Whether both name the same owners for the same entities."""
        return isinstance(other, Owners) and self._by_entity == other._by_entity

    __hash__ = None  # type: ignore[assignment] # compared, never a key

    def of(self, user: str, client_id: str) -> str | None:
        """The owner of a client; None if no row that covers it names one."""
        client = user, client_id
        if client not in self._by_client:
            self._by_client[client] = self._found(user, client_id)
        return self._by_client[client]

    def _found(self, user: str, client_id: str) -> str | None:
        if not self._by_entity:
            return None
        for level in Level:
            # An empty client-id has no name that a row could give.
            if not client_id and level in _NAMES_THE_CLIENT:
                continue
            owner: str | None = self._by_entity.get(entity_at(level, user, client_id))
            if owner:
                return owner
        return None
