"""Edits of an edited table as functions of rows: apply changes, and check the result before it is stored.

`RowKind` says what the rows of a table are. All else here holds for each of them, or is of quotas.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, Literal

from pydantic import BaseModel, ValidationError

from pipeline.command_line import command_text
from pipeline.errors import Refused
from quota.entity import DEFAULT, QUOTA_TYPES, label
from quota.units import Mistake, Mistakes, bound_mistake, bound_text, exact_text
from schemas.rows import QuotaRow

LABELS: Final = ("mode", "owner", "note")
"""Columns of a quota that Kafka does not have."""

QuotaValues = Mapping[str, Any]
"""A row by column; of `quotas` but for `FORGIVEN`."""

FORGIVEN: Final = "forgiven_until_ms"
QUOTA_COLUMNS: Final = tuple(name for name in QuotaRow.model_fields if name != FORGIVEN)

Key = tuple[str, ...]
"""What names a row: the values of the columns `RowKind.keys`."""


def _no_problems(_rows: Sequence[QuotaValues]) -> Sequence[str]:
    return ()


@dataclass(frozen=True, slots=True)
class RowKind:
    """What the rows of a table are that operators edit.

    Attributes:
        table: its name; `kquota TABLE history` shows its versions.
        model: of a row.
        columns: what an edit reads and writes.
        keys: the columns that name a row.
        settings: the columns that an edit can set, in the order in which changes are listed.
        bounds: each column that holds a bound, and the quota type it bounds.
        unset: the value of a column that was not set. Columns that are not named here are null then.
        label: a row in words, by its key.
        nameless: what a row without a name is called.
        problems: what is wrong with all rows together, if each of them is valid.
        valid_edit: how to correct an edit that was refused.
    """

    table: Literal["quotas", "tenants"]
    model: type[BaseModel]
    columns: tuple[str, ...]
    keys: tuple[str, ...]
    settings: tuple[str, ...]
    bounds: Mapping[str, str]
    unset: Mapping[str, Any]
    label: Callable[..., str]
    nameless: str
    valid_edit: str
    problems: Callable[[Sequence[QuotaValues]], Sequence[str]] = _no_problems

    def key(self, row: QuotaValues) -> Key:
        """What names a row."""
        return tuple(row[column] for column in self.keys)


QUOTA_ROWS: Final = RowKind(
    table="quotas",
    model=QuotaRow,
    columns=QUOTA_COLUMNS,
    keys=("user", "client_id"),
    settings=(*QUOTA_TYPES, *LABELS),
    bounds={name: name for name in QUOTA_TYPES},
    unset={"mode": "enforce"},
    label=label,
    nameless="a row without user and client-id",
    valid_edit="set values like producer_byte_rate=1MB/s, request_percentage=50% or mode=shadow",
)

MEMBER: Final = "member_"
"""What the columns begin with that hold the bounds of a tenant's members."""


def shown(column: str, value: Any) -> str | None:
    """A value as people read it: a bound exactly and with its unit, an instant in UTC, other values as they are."""
    if column == FORGIVEN and value is not None:
        return datetime.fromtimestamp(int(value) // 1000, UTC).isoformat()
    if isinstance(value, list | tuple):
        return ", ".join(value) or None
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float | int):
        quota_type = column.removeprefix(MEMBER)
        return bound_text(quota_type, value) if quota_type in QUOTA_TYPES else exact_text(value)
    return None if value is None else str(value)


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
    pairs = [((change.user, change.client_id), partial(_changed, change)) for change in changes]
    return with_changes(QUOTA_ROWS, rows, pairs)


RowChange = Callable[[QuotaValues | None], QuotaValues | None]
"""Makes a row of a row; None stands for no row."""


def with_changes(
    kind: RowKind, rows: Iterable[QuotaValues], changes: Sequence[tuple[Key, RowChange]]
) -> list[dict[str, Any]]:
    """The rows after changes of single rows, applied in order; sorted by key."""
    by_key: dict[Key, dict[str, Any]] = {}
    repeated: list[dict[str, Any]] = []
    touched = {key for key, _ in changes}
    for row in rows:
        key = kind.key(row)
        # Only other writers can have stored two rows of one key. An edit of the key keeps one of them.
        if key in by_key and key not in touched:
            repeated.append(dict(row))
        else:
            by_key[key] = dict(row)
    for key, change in changes:
        after = change(by_key.pop(key, None))
        if after is not None:
            by_key[key] = dict(after)
    return sorted([*by_key.values(), *repeated], key=kind.key)


def edit_refused(mistakes: Sequence[Mistake], fix: str | None = None, kind: RowKind = QUOTA_ROWS) -> Refused:
    """The error of an edit that would leave invalid rows; it names all mistakes, each with its place if it has one."""
    return Refused(f"{kind.table} were not changed: {'; '.join(map(str, mistakes))}", fix or kind.valid_edit)


def refuse_absent(kind: RowKind, row: QuotaValues, columns: Iterable[str]) -> None:
    """Refuse (`Refused`) to remove columns that are not set, as kafka-configs does; the controller would accept it."""
    is_set = {column for column in kind.settings if row.get(column) not in {None, (), kind.unset.get(column)}}
    absent = [column for column in columns if column not in is_set]
    if absent:
        fix = f"name only what is set: {', '.join(sorted(is_set))}" if is_set else "it has nothing to delete from"
        raise edit_refused([Mistake(f"Invalid config(s): {','.join(absent)}")], fix, kind)


def validated(
    rows: Sequence[QuotaValues], before: Iterable[QuotaValues] = (), kind: RowKind = QUOTA_ROWS
) -> list[dict[str, Any]]:
    """The rows with all columns of their kind.

    * `before`: rows that are or were stored. These need not follow Kafka's rules for bounds: SQL may set a fraction of
      a byte, and then an edit of another row, or a rollback, must still be possible.

    Raises:
        Refused: rows are not valid, alone or together, or a key has two rows. Names all mistakes at once.
    """
    stored: dict[Key, list[QuotaValues]] = defaultdict(list)
    for row in before:
        stored[kind.key(row)].append(row)
    mistakes = Mistakes()
    complete: list[dict[str, Any]] = []
    for row in rows:
        problems = [] if row in stored[kind.key(row)] else _bound_mistakes(kind, row)
        try:
            complete.append(kind.model.model_validate(row).model_dump(include={*kind.columns}))
        except ValidationError as exc:
            refused = {column for column, _ in problems}
            problems += [one for one in map(_mistake, exc.errors(include_url=False)) if one[0] not in refused]
        for _, text in problems:
            mistakes.at(kind.label(*kind.key(row)) if any(kind.key(row)) else kind.nameless).add(text)
    for key, count in Counter(map(kind.key, rows)).items():
        if count > 1:
            mistakes.add(f"{kind.label(*key)} has {count} rows, not one")
    if not mistakes.found:
        for text in kind.problems(complete):
            mistakes.add(text)
    if mistakes.found:
        raise edit_refused(mistakes.found, kind=kind)
    return complete


def _changed(change: QuotaChange, before: QuotaValues | None) -> QuotaValues | None:
    if change.remove:
        return None
    row = {**(before or {"user": change.user, "client_id": change.client_id, "mode": "enforce"}), **change.values}
    is_empty = row["mode"] != "exempt" and all(row.get(bound) is None for bound in QUOTA_TYPES)
    return None if is_empty else row


def _bound_mistakes(kind: RowKind, row: QuotaValues) -> list[tuple[str, str]]:
    """Column and message of each bound that Kafka's controller would refuse."""
    given = ((name, row.get(name)) for name in kind.bounds)
    numbers = ((name, value) for name, value in given if isinstance(value, int | float) and not isinstance(value, bool))
    refusals = ((name, value, bound_mistake(kind.bounds[name], float(value))) for name, value in numbers)
    return [(name, f"{mistake}; got {value}") for name, value, mistake in refusals if mistake]


def _mistake(error: Any) -> tuple[str, str]:
    column = ".".join(map(str, error["loc"]))
    if not column:
        return "", error["msg"].removeprefix("Value error, ")
    return column, f"'{column}': {error['msg']}; got {error['input']!r}"
