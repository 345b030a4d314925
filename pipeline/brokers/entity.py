"""Quota entities as brokers know them, and how the quota table names the same ones."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Self

from quota.entity import DEFAULT, QUOTA_TYPES

_WORDS: Final = {"user": "user-principal"}
_SHOWN_FIRST: Final = ("user", "client-id")


@dataclass(frozen=True, slots=True)
class NativeEntity:
    """What a broker has quotas for: a user, a client-id, a pair of them, or an ip.

    Attributes:
        parts: Type (`user`, `client-id`, `ip`) and name of each part, sorted by type. The name None is the default;
            `<default>` is a name like any other. Make it with `of` or `of_row`.
    """

    parts: tuple[tuple[str, str | None], ...]

    @classmethod
    def of(cls, parts: Iterable[tuple[str, str | None]]) -> Self:
        """The entity with these parts, in any order; no type may be there twice."""
        return cls(tuple(sorted(parts, key=lambda part: part[0])))

    @classmethod
    def of_row(cls, user: str, client_id: str) -> Self:
        """The entity of a row of the quota table, where `<default>` is the default and "" is no part."""
        names = (("client-id", client_id), ("user", user))
        return cls(tuple((kind, None if name == DEFAULT else name) for kind, name in names if name))

    def row_names(self) -> tuple[str, str] | None:
        """User and client-id as a row of the quota table has them; None if no row can name this entity.

        The table has no ips. It can not name a user or client-id that is called `<default>`, or has an empty name.
        """
        names = {"user": "", "client-id": ""}
        for kind, name in self.parts:
            if kind not in names or name in {"", DEFAULT}:
                return None
            names[kind] = DEFAULT if name is None else name
        return (names["user"], names["client-id"]) if self.parts else None

    def __str__(self) -> str:
        """As Kafka's tools write it: `user-principal 'alice', the default client-id`."""
        last = len(_SHOWN_FIRST)
        shown = sorted(self.parts, key=lambda part: _SHOWN_FIRST.index(part[0]) if part[0] in _SHOWN_FIRST else last)
        named = ((_WORDS.get(kind, kind), name) for kind, name in shown)
        return ", ".join(f"the default {word}" if name is None else f"{word} '{name}'" for word, name in named)


@dataclass(frozen=True, slots=True)
class NativeQuota:
    """The quota that brokers have for one entity. It holds for each broker by itself.

    Attributes:
        entity: For whom.
        values: Key to value, as Kafka has them: bytes per second, or percent of one thread. Also keys that kquota does
            not have, as `controller_mutation_rate`, and values that it refuses, as NaN.
    """

    entity: NativeEntity
    values: Mapping[str, float]

    @property
    def bounds(self) -> dict[str, float]:
        """The values of kquota's own quota types."""
        return {key: value for key, value in self.values.items() if key in QUOTA_TYPES}

    @property
    def others(self) -> dict[str, float]:
        """The values that are none of kquota's."""
        return {key: value for key, value in self.values.items() if key not in QUOTA_TYPES}
