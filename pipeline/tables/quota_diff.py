"""What two versions of the quota table differ in, as functions of their rows."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

from pipeline.tables.quota_edit import LABELS
from quota.entity import QUOTA_TYPES

Action = Literal["add", "alter", "remove"]

COLUMNS: Final = (*QUOTA_TYPES, *LABELS)


@dataclass(frozen=True, slots=True)
class QuotaDifference:
    """One column of one entity that differs.

    Attributes:
        action: whether the entity's row is new, altered or gone.
        user: "" = not part of the entity, `<default>` = the default user.
        client_id: likewise.
        column: which value; of a new or removed row those that are set.
        old: before; None = not set.
        new: after; None = not set.
    """

    action: Action
    user: str
    client_id: str
    column: str
    old: float | str | None
    new: float | str | None

    def as_row(self) -> dict[str, Any]:
        """The fields by name, for programs."""
        return asdict(self)

    def value_text(self) -> str:
        """`producer_byte_rate 1024.0 → 2048.0`."""
        old, new = ("none" if value is None else value for value in (self.old, self.new))
        return f"{self.column} {old} → {new}"


def differences(before: Iterable[Mapping[str, Any]], after: Iterable[Mapping[str, Any]]) -> list[QuotaDifference]:
    """Every difference, by entity and then in the order of `COLUMNS`.

    A row whose entity another row has too (SQL can write such) counts only once, as the last of them.
    """
    old = {(row["user"], row["client_id"]): row for row in before}
    new = {(row["user"], row["client_id"]): row for row in after}
    found: list[QuotaDifference] = []
    for entity in sorted(old.keys() | new.keys()):
        was, now = old.get(entity), new.get(entity)
        if was != now:
            found += _row_differences(entity, was, now)
    return found


def _row_differences(
    entity: tuple[str, str], was: Mapping[str, Any] | None, now: Mapping[str, Any] | None
) -> list[QuotaDifference]:
    action: Action = "add" if was is None else "remove" if now is None else "alter"
    pairs = {column: (_value(was, column), _value(now, column)) for column in COLUMNS}
    changed = {column: pair for column, pair in pairs.items() if pair[0] != pair[1]}
    # A plain quota's mode goes without saying, unless there is nothing else to tell of it.
    if action != "alter" and len(changed) > 1 and "enforce" in changed.get("mode", ()):
        del changed["mode"]
    return [QuotaDifference(action, *entity, column, *pair) for column, pair in changed.items()]


def _value(row: Mapping[str, Any] | None, column: str) -> float | str | None:
    return None if row is None else row.get(column)
