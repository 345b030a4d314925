"""Edits of the quota table as functions of rows: what an alteration makes of them, and whether that may be stored."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pydantic import ValidationError

from pipeline.tables.errors import QuotaEditRefused
from schemas.quota_row import QuotaRow

BOUNDS: Final = ("producer_byte_rate", "consumer_byte_rate", "request_percentage")

QuotaValues = Mapping[str, Any]
"""A row of `quotas` by column."""


@dataclass(frozen=True, slots=True)
class QuotaChange:
    """One change to the quota of one entity.

    Attributes:
        user: "" = not part of the entity, `<default>` = the default user.
        client_id: likewise.
        values: columns to set (bounds, `mode`, `owner`, `note`); None takes a bound away.
        remove: take the whole row away; `values` must then be empty.
    """

    user: str
    client_id: str
    values: QuotaValues = field(default_factory=dict)
    remove: bool = False


def altered(rows: Iterable[QuotaValues], changes: Iterable[QuotaChange]) -> list[dict[str, Any]]:
    """The rows after the changes, in the order of the changes, sorted by entity.

    An entity without a row gets one. A row that is left without bounds goes, as it does in Kafka, unless it is
    `exempt`: such a row matches for its own sake. Rows of no change stay, without bounds or not.
    """
    by_entity: dict[tuple[str, str], dict[str, Any]] = {}
    repeated: list[dict[str, Any]] = []
    changes = list(changes)
    touched = {(change.user, change.client_id) for change in changes}
    for row in rows:
        entity = (row["user"], row["client_id"])
        # A second row of an entity can only come from other writers. An edit of the entity leaves one of them.
        if entity in by_entity and entity not in touched:
            repeated.append(dict(row))
        else:
            by_entity[entity] = dict(row)
    for change in changes:
        _change(by_entity, change)
    return sorted([*by_entity.values(), *repeated], key=lambda row: (row["user"], row["client_id"]))


def validated(rows: Sequence[QuotaValues]) -> list[dict[str, Any]]:
    """The rows with all columns of `QuotaRow`.

    Raises:
        QuotaEditRefused: a row is not valid or an entity has two; all mistakes at once.
    """
    mistakes: list[str] = []
    complete: list[dict[str, Any]] = []
    for row in rows:
        try:
            complete.append(QuotaRow.model_validate(row).model_dump())
        except ValidationError as exc:
            mistakes += [_mistake(row, error) for error in exc.errors(include_url=False)]
    entities = Counter((row["user"], row["client_id"]) for row in rows)
    mistakes += [f"{_label(*entity)} must have one row; got {count}" for entity, count in entities.items() if count > 1]
    if mistakes:
        raise QuotaEditRefused(mistakes)
    return complete


def _change(by_entity: dict[tuple[str, str], dict[str, Any]], change: QuotaChange) -> None:
    entity = (change.user, change.client_id)
    if change.remove:
        by_entity.pop(entity, None)
        return
    row = by_entity.get(entity) or {"user": change.user, "client_id": change.client_id, "mode": "enforce"}
    row = {**row, **change.values}
    if row["mode"] != "exempt" and all(row.get(bound) is None for bound in BOUNDS):
        by_entity.pop(entity, None)
    else:
        by_entity[entity] = row


def _mistake(row: QuotaValues, error: Any) -> str:
    where = ".".join(map(str, error["loc"]))
    column = f" '{where}'" if where else ""
    got = "" if not where else f"; got {error['input']!r}"
    return f"{_label(row.get('user'), row.get('client_id'))}{column}: {error['msg']}{got}"


def _label(user: object, client_id: object) -> str:
    return f"quota of <{user}, {client_id}>"
