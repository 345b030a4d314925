"""Resolution row by row: which quota applies, and to which sensor usage goes. It shares nothing with `quota`."""

from collections.abc import Iterable, Mapping
from typing import Any

DEFAULT = "<default>"
Row = Mapping[str, Any]


class QuotaRows:
    """The rows of a quota table."""

    def __init__(self) -> None:
        self.rows: dict[tuple[str, str], Row] = {}

    def load_quotas(self, rows: Iterable[Row], mode: str = "enforce") -> None:
        """Replace all quotas. With `mode` "shadow" every `enforce` row becomes a `shadow` row."""
        self.rows = {}
        for row in rows:
            own = row.get("mode") or "enforce"
            own = "shadow" if mode == "shadow" and own == "enforce" else own
            self.rows[row.get("user") or "", row.get("client_id") or ""] = {**row, "mode": own}

    def seen(self, side: str, quota_type: str) -> dict[tuple[str, str], Row]:
        """The rows that one side sees for a type."""
        return {
            entity: row
            for entity, row in self.rows.items()
            if row["mode"] == "exempt"
            or (row.get(quota_type) is not None and (side == "shadow" or row["mode"] == "enforce"))
        }

    def records(self, side: str, quota_type: str) -> bool:
        """True if usage of the type is recorded on this side at all."""
        wanted = "enforce" if side == "enforced" else "shadow"
        return any(row["mode"] == wanted and row.get(quota_type) is not None for row in self.rows.values())

    def tags(self, side: str, quota_type: str, user: str, client: str) -> tuple[str, str]:
        """The tags of the sensor to which the usage of an entity goes."""
        rows = self.seen(side, quota_type)
        kinds = {(bool(row_user), bool(row_client)) for row_user, row_client in rows}
        if len(kinds) != 1:
            first = next((e for e in levels(user, client).values() if e in rows), ("", "client"))
            kinds = {(bool(first[0]), bool(first[1]))}
        ((has_user, has_client),) = kinds
        return user if has_user else "", client if has_client else ""

    def quota_of(self, side: str, quota_type: str, tags: tuple[str, str]) -> tuple[int, Row] | None:
        """Level and row that bound a sensor, found by its tags. Only rows that name the same parts count."""
        rows = self.seen(side, quota_type)
        for level, entity in levels(*tags).items():
            if entity in rows and (bool(entity[0]), bool(entity[1])) == (bool(tags[0]), bool(tags[1])):
                return level, rows[entity]
        return None

    def bound_of(self, side: str, quota_type: str, tags: tuple[str, str]) -> float | None:
        """T of a sensor; None if there is no quota, if it is exempt, and if the type is not recorded."""
        quota = self.quota_of(side, quota_type, tags)
        if quota is None or quota[1]["mode"] == "exempt" or not self.records(side, quota_type):
            return None
        return float(quota[1][quota_type])


def levels(user: str, client: str) -> dict[int, tuple[str, str]]:
    """Per level the entity that a quota row must name to match. An empty or reserved name has no row of its own."""
    own_user = user if user not in {"", DEFAULT} else "no such user\0"
    own_client = client if client not in {"", DEFAULT} else "no such client\0"
    return {
        1: (own_user, own_client),
        2: (own_user, DEFAULT),
        3: (own_user, ""),
        4: (DEFAULT, own_client),
        5: (DEFAULT, DEFAULT),
        6: (DEFAULT, ""),
        7: ("", own_client),
        8: ("", DEFAULT),
    }
