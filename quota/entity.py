"""Quota entities: the pairs a quota can be set on, Kafka's order among them, and who is responsible for a client."""

from collections.abc import Iterable, Mapping
from enum import IntEnum, IntFlag
from typing import Any, Final, get_args

from schemas.names import QuotaType

DEFAULT: Final = "<default>"  # a reserved name: stands for every user (or client-id) that has no quota of its own

OTHER: Final = "<other>"  # a reserved name, too: stands for the client-ids of a user beyond the limit of new ones

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


_NAMED: Final = "a name"
_PARTS: Final = {
    Level.USER_CLIENT: (_NAMED, _NAMED),
    Level.USER_DEFAULT_CLIENT: (_NAMED, DEFAULT),
    Level.USER: (_NAMED, ""),
    Level.DEFAULT_USER_CLIENT: (DEFAULT, _NAMED),
    Level.DEFAULT_USER_DEFAULT_CLIENT: (DEFAULT, DEFAULT),
    Level.DEFAULT_USER: (DEFAULT, ""),
    Level.CLIENT: ("", _NAMED),
    Level.DEFAULT_CLIENT: ("", DEFAULT),
}
_LEVEL_OF: Final = {parts: level for level, parts in _PARTS.items()}

NAMES_OF_LEVEL: Final = {level: (user == _NAMED, client_id == _NAMED) for level, (user, client_id) in _PARTS.items()}
"""Whether each level gives a user's name, and a client-id's."""

KIND_OF_LEVEL: Final = {
    level: LevelKind.CLIENT if not user else LevelKind.USER_CLIENT if client_id else LevelKind.USER
    for level, (user, client_id) in _PARTS.items()
}

LEVELS_OF_DEFAULTS: Final = frozenset(level for level, parts in _PARTS.items() if DEFAULT in parts)


def level_of(user: str, client_id: str) -> Level:
    """The level of a quota row. Each of its two parts is a name, the default, or absent ("").

    Raises:
        ValueError: both parts are "".
    """
    if not user and not client_id:
        message = "neither a user nor a client-id is given"
        raise ValueError(message)
    user, client_id = (part if part in {DEFAULT, ""} else _NAMED for part in (user, client_id))
    return _LEVEL_OF[user, client_id]


def label(user: str, client_id: str) -> str:
    """A quota entity, written as Kafka's tools do: `user-principal 'alice', the default client-id`."""
    parts = ((user, "user-principal"), (client_id, "client-id"))
    return ", ".join(f"the default {word}" if name == DEFAULT else f"{word} '{name}'" for name, word in parts if name)


def entity_at(level: Level, user: str, client_id: str) -> tuple[str, str]:
    """The quota entity of a `<user, client-id>` at a level, as in the quota table: the inverse of `level_of`."""
    of_user, of_client_id = _PARTS[level]
    return user if of_user == _NAMED else of_user, client_id if of_client_id == _NAMED else of_client_id


def can_name(level: Level, client_id: str) -> bool:
    """False for a level that names the client-id, if the client-id is empty: no row can give that name."""
    return bool(client_id) or not NAMES_OF_LEVEL[level][1]


def may_apply(rows: Iterable[Mapping[str, Any]], user: str, client_id: str) -> list[Mapping[str, Any]]:
    """The rows of the quota table that can hold for a client ("" is any), the most specific first, then by name."""
    found = [row for row in rows if _may_be(row["user"], user) and _may_be(row["client_id"], client_id)]
    return sorted(found, key=lambda row: (level_of(row["user"], row["client_id"]), row["user"], row["client_id"]))


def _may_be(part: str, name: str) -> bool:
    return not name or part in {name, DEFAULT, ""}


class Owners:
    """Who is responsible for a client, or a user: the owner of the most specific row that covers it and names one.

    A row counts whatever its bounds and its mode are: an `exempt` row, too, has an owner. A row without an
    owner is passed over, so the owner of a user holds for all clients of that user but those with an owner of their
    own. Answers are kept; for one thread.
    """

    def __init__(self, rows: Iterable[Mapping[str, Any]]) -> None:
        self._by_entity = {(row["user"], row["client_id"]): row["owner"] for row in rows if row.get("owner")}
        self._by_client: dict[tuple[str, str | None], str | None] = {}

    def of(self, user: str, client_id: str | None) -> str | None:
        """The owner of a client, or of all client-ids of a user (None); None if no row that covers them names one."""
        client = user, client_id
        if client not in self._by_client:
            self._by_client[client] = self._found(user, client_id)
        return self._by_client[client]

    def _found(self, user: str, client_id: str | None) -> str | None:
        of_user = (Level.USER, Level.DEFAULT_USER)
        levels = of_user if client_id is None else [level for level in Level if can_name(level, client_id)]
        owners = (self._by_entity.get(entity_at(level, user, client_id or "")) for level in levels)
        return next(filter(None, owners), None)
