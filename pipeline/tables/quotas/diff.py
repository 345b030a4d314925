"""The differences between two versions of the quota table, computed from their rows."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

from pipeline.tables.quotas.edit import LABELS
from quota.entity import QUOTA_TYPES, label
from quota.units import bound_text

Action = Literal["add", "alter", "remove"]

COLUMNS: Final = (*QUOTA_TYPES, *LABELS)


@dataclass(frozen=True, slots=True)
class QuotaDifference:
    """A difference in one column of one entity.

    Attributes:
        action: whether the entity's row was added, altered or removed.
        user: "" = not part of the entity, `<default>` = the default user.
        client_id: likewise, for the client-id.
        column: the column. Of an added or removed row there is one difference per column that is set.
        old: value before; None = not set.
        new: value after; None = not set.
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
        """`producer_byte_rate 1024 (1.0 kB/s) → 2048 (2.0 kB/s)`."""
        old, new = (shown(self.column, value) or "none" for value in (self.old, self.new))
        return f"{self.column} {old} → {new}"


def shown(column: str, value: float | str | None) -> str | None:
    """A value as people read it: a bound exactly and with its unit, other values as they are."""
    return bound_text(column, value) if isinstance(value, float | int) else value


def differences(before: Iterable[Mapping[str, Any]], after: Iterable[Mapping[str, Any]]) -> list[QuotaDifference]:
    """Every difference, sorted by entity, then in the order of `COLUMNS`.

    If an entity has several rows (SQL can write them), only the last one counts.
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
    # The default mode of a row is left out, unless it is the only column that is set.
    if action != "alter" and len(changed) > 1 and "enforce" in changed.get("mode", ()):
        del changed["mode"]
    return [QuotaDifference(action, *entity, column, *pair) for column, pair in changed.items()]


def _value(row: Mapping[str, Any] | None, column: str) -> float | str | None:
    return None if row is None else row.get(column)


def entity_texts(changes: Iterable[QuotaDifference]) -> list[str]:
    """One text per entity, with its values: `user-principal 'bob': producer_byte_rate none → 999 B/s, mode …`."""
    values: dict[str, list[str]] = {}
    for change in changes:
        values.setdefault(label(change.user, change.client_id), []).append(change.value_text())
    return [f"{entity}: {', '.join(texts)}" for entity, texts in values.items()]
