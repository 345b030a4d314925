"""Who is responsible for a client: the owner of the most specific row of the quota table that covers it and names one.

A row counts whatever its bounds and its mode are: also an `exempt` row says whose client it is. A row without an owner
is passed over, so an owner given to a user holds for all clients of that user but those with an owner of their own.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from quota.entity import Level, entity_at

_NAMES_THE_CLIENT = frozenset({Level.USER_CLIENT, Level.DEFAULT_USER_CLIENT, Level.CLIENT})


class Owners:
    """The owners that one version of the quota table names. Answers are kept; for one thread.

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
