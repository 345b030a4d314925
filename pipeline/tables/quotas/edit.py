"""Edits of the quota table as functions of rows: apply changes, and check the result before it is stored."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pydantic import ValidationError

from pipeline.command_line import command_text
from pipeline.errors import Refused
from quota.entity import DEFAULT, QUOTA_TYPES, label
from quota.units import Mistake, Mistakes, bound_mistake, exact_text
from schemas.rows import QuotaRow

LABELS: Final = ("mode", "owner", "note")
"""Columns of a quota that Kafka does not have."""

_UNSET: Final = {"mode": "enforce"}
"""The value of a column that was not set. Columns that are not named here are null then."""

QuotaValues = Mapping[str, Any]
"""A row of `quotas` by column, but for `FORGIVEN`."""

FORGIVEN: Final = "forgiven_until_ms"
QUOTA_COLUMNS: Final = tuple(name for name in QuotaRow.model_fields if name != FORGIVEN)
_FORGIVEN_FOR_MS: Final = 24 * 3_600_000

Forgiven = Mapping[tuple[str, str], int]
"""`forgiven_until_ms` of each row, by user and client-id, that forgives the debts of the sensor with these tags."""


def still_forgiven(forgiven: Forgiven, entities: Iterable[tuple[str, str]], now_ms: int) -> dict[tuple[str, str], int]:
    """What an edit leaves, and adds: these entities until now. What was forgiven more than 24 h ago goes."""
    kept = {entity: until_ms for entity, until_ms in forgiven.items() if until_ms > now_ms - _FORGIVEN_FOR_MS}
    return kept | dict.fromkeys(entities, max(now_ms, max(forgiven.values(), default=0) + 1))


@dataclass(frozen=True, slots=True)
class QuotaChange:
    """One change to the quota of one entity.

    Attributes:
        user: "" = not part of the entity, `<default>` = the default user.
        client_id: likewise, for the client-id.
        values: columns to set (bounds, `mode`, `owner`, `note`); None removes a bound.
        remove: remove the whole row; `values` must be empty then.
    """

    user: str
    client_id: str
    values: QuotaValues = field(default_factory=dict)
    remove: bool = False


def alter_command(user: str, client_id: str, values: QuotaValues) -> str:
    """The command that sets bounds or the mode of an entity. As text, like `command_text`."""
    words = ["quotas", "alter"]
    for name, flag in ((user, "--user"), (client_id, "--client-id")):
        if name:
            words += [f"{flag.replace('-id', '')}-defaults"] if name == DEFAULT else [flag, name]
    added = [f"{key}={one if isinstance(one, str) else exact_text(one)}" for key, one in values.items()]
    return command_text(*words, "--add-config", ",".join(added))


def bracketed(text: str) -> str:
    """A text in the form `--add-config` reads: in square brackets if it has commas or equals signs."""
    return f"[{text}]" if "," in text or "=" in text else text


def altered(rows: Iterable[QuotaValues], changes: Iterable[QuotaChange]) -> list[dict[str, Any]]:
    """The rows after the changes, applied in order; sorted by entity. An entity without a row gets one.

    A row that a change leaves without bounds is removed, as in Kafka, unless its mode is `exempt`: such a row has an
    effect without a bound. Rows that no change names stay, also without bounds.
    """
    by_entity: dict[tuple[str, str], dict[str, Any]] = {}
    repeated: list[dict[str, Any]] = []
    changes = list(changes)
    touched = {(change.user, change.client_id) for change in changes}
    for row in rows:
        entity = (row["user"], row["client_id"])
        # Only other writers can have stored two rows for one entity. An edit of the entity keeps one of them.
        if entity in by_entity and entity not in touched:
            repeated.append(dict(row))
        else:
            by_entity[entity] = dict(row)
    for change in changes:
        _change(by_entity, change)
    return sorted([*by_entity.values(), *repeated], key=lambda row: (row["user"], row["client_id"]))


_A_VALID_EDIT: Final = "set values like producer_byte_rate=1MB/s, request_percentage=50% or mode=shadow"


def edit_refused(mistakes: Sequence[Mistake], fix: str = _A_VALID_EDIT) -> Refused:
    """The error of an edit that would leave invalid rows; it names all mistakes, each with its place if it has one."""
    return Refused(f"quotas were not changed: {'; '.join(map(str, mistakes))}", fix)


def refuse_absent(rows: Iterable[QuotaValues], user: str, client_id: str, columns: Iterable[str]) -> None:
    """Refuse (`Refused`) to remove columns that are not set, as kafka-configs does; the controller would accept it."""
    row = next((row for row in rows if (row["user"], row["client_id"]) == (user, client_id)), {})
    is_set = {column for column in (*QUOTA_TYPES, *LABELS) if row.get(column) not in {None, _UNSET.get(column)}}
    absent = [column for column in columns if column not in is_set]
    if absent:
        fix = f"name only what is set: {', '.join(sorted(is_set))}" if is_set else "it has no quota to delete from"
        raise edit_refused([Mistake(f"Invalid config(s): {','.join(absent)}")], fix)


def validated(rows: Sequence[QuotaValues], before: Iterable[QuotaValues] = ()) -> list[dict[str, Any]]:
    """The rows with all of `QUOTA_COLUMNS`.

    * `before`: rows that are or were stored. These need not follow Kafka's rules for bounds: SQL may set a fraction of
      a byte, and then an edit of another entity, or a rollback, must still be possible.

    Raises:
        Refused: rows are not valid, or an entity has two rows. Names all mistakes at once.
    """
    stored: dict[tuple[str, str], list[QuotaValues]] = defaultdict(list)
    for row in before:
        stored[row["user"], row["client_id"]].append(row)
    mistakes = Mistakes()
    complete: list[dict[str, Any]] = []
    for row in rows:
        problems = [] if row in stored[row["user"], row["client_id"]] else _bound_mistakes(row)
        try:
            complete.append(QuotaRow.model_validate(row).model_dump(include={*QUOTA_COLUMNS}))
        except ValidationError as exc:
            refused = {column for column, _ in problems}
            problems += [one for one in map(_mistake, exc.errors(include_url=False)) if one[0] not in refused]
        for _, text in problems:
            mistakes.at(label(row["user"], row["client_id"]) or "a row without user and client-id").add(text)
    entities = Counter((row["user"], row["client_id"]) for row in rows)
    for entity, count in entities.items():
        if count > 1:
            mistakes.add(f"{label(*entity)} has {count} rows, not one")
    if mistakes.found:
        raise edit_refused(mistakes.found)
    return complete


def _change(by_entity: dict[tuple[str, str], dict[str, Any]], change: QuotaChange) -> None:
    entity = (change.user, change.client_id)
    if change.remove:
        by_entity.pop(entity, None)
        return
    row = by_entity.get(entity) or {"user": change.user, "client_id": change.client_id, "mode": "enforce"}
    row = {**row, **change.values}
    if row["mode"] != "exempt" and all(row.get(bound) is None for bound in QUOTA_TYPES):
        by_entity.pop(entity, None)
    else:
        by_entity[entity] = row


def _bound_mistakes(row: QuotaValues) -> list[tuple[str, str]]:
    """Column and message of each bound that Kafka's controller would refuse."""
    given = ((name, row.get(name)) for name in QUOTA_TYPES)
    numbers = ((name, value) for name, value in given if isinstance(value, int | float) and not isinstance(value, bool))
    refusals = ((name, value, bound_mistake(name, float(value))) for name, value in numbers)
    return [(name, f"{mistake}; got {value}") for name, value, mistake in refusals if mistake]


def _mistake(error: Any) -> tuple[str, str]:
    column = ".".join(map(str, error["loc"]))
    if not column:
        return "", error["msg"].removeprefix("Value error, ")
    return column, f"'{column}': {error['msg']}; got {error['input']!r}"
