"""Rows of the table `tenants`: the edit of one tenant, what an edit warns of, and a tenant in words.

`pipeline.tables.quotas.table` has the table itself.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from pipeline.command_line import command_text
from pipeline.tables.quotas.edit import (
    LABELS,
    MEMBER,
    QuotaValues,
    RowKind,
    edit_refused,
    with_changes,
)
from quota.entity import QUOTA_TYPES
from quota.errors import InvalidQuotas
from quota.units import Mistake, Mistakes, counted, exact_text, parse_bound, parse_double, rate_text
from schemas.rows import TenantRow

if TYPE_CHECKING:
    from quota.tenants import Tenant

USERS: Final = "user_patterns"
CLIENT_IDS: Final = "client_id_patterns"
PATTERNS: Final = {USERS: "user", CLIENT_IDS: "client-id"}
"""The columns with patterns, and what their names are names of."""

TENANT_MODES: Final = ("enforce", "shadow")
MEMBER_BOUNDS: Final = tuple(f"{MEMBER}{name}" for name in QUOTA_TYPES)
TENANT_COLUMNS: Final = tuple(TenantRow.model_fields)
_DOTTED: Final = "member."
_TRUTHS: Final = {"true": True, "false": False}
_UNSET: Final = {USERS: (), CLIENT_IDS: (), "lend": False, "mode": "enforce"}


def read_tenants(rows: Iterable[Mapping[str, object]], version: int) -> "tuple[Tenant, ...]":
    """See `quota.tenants`, which needs numpy: it is not loaded to print a command's help."""
    from quota import tenants  # noqa: PLC0415

    return tenants.read_tenants(rows, version)


def _problems(rows: Sequence[QuotaValues]) -> list[str]:
    found = [
        f"tenant {row['tenant']!r}: {MEMBER}{name} has no effect without {name}"
        for row in rows
        for name in QUOTA_TYPES
        if row[name] is None and row[f"{MEMBER}{name}"] is not None
    ]
    try:
        read_tenants(rows, 0)
    except InvalidQuotas as exc:
        found += exc.problems
    return found


def _label(tenant: str) -> str:
    return f"tenant '{tenant}'"


TENANT_ROWS: Final = RowKind(
    table="tenants",
    model=TenantRow,
    columns=TENANT_COLUMNS,
    keys=("tenant",),
    settings=(*PATTERNS, *QUOTA_TYPES, *MEMBER_BOUNDS, "lend", "ceiling", *LABELS),
    bounds={name: name.removeprefix(MEMBER) for name in (*QUOTA_TYPES, *MEMBER_BOUNDS)},
    unset=_UNSET,
    label=_label,
    nameless="a row without a tenant",
    problems=_problems,
    valid_edit="a tenant has patterns of users or client-ids and a bound, as producer_byte_rate=10MB/s",
)


def tenant_column(name: str) -> str:
    """The column of a setting, as it was typed: `member.producer_byte_rate` is `member_producer_byte_rate`."""
    return f"{MEMBER}{name.removeprefix(_DOTTED)}" if name.startswith(_DOTTED) else name


def parse_setting(column: str, given: object, mistakes: Mistakes) -> Any:
    """A bound, `lend` or `ceiling` as it was typed; None if it cannot be read, which is added to `mistakes`."""
    if column == "lend":
        value = _TRUTHS.get(str(given).lower())
        if value is None:
            mistakes.add(f"lend is {given}, not true or false")
        return value
    if column == "ceiling":
        try:
            return parse_double(str(given))
        except ValueError:
            mistakes.add(f"ceiling is {given}, not a number of times a member's own bound")
            return None
    with mistakes.bound():
        return parse_bound(column.removeprefix(MEMBER), given)
    return None


@dataclass(frozen=True, slots=True)
class TenantChange:
    """One change to one tenant, which is made if there is none of that name.

    Attributes:
        values: columns to set, but for patterns; None removes a bound.
        added: patterns to add, by their column.
        removed: patterns to remove, by their column.
    """

    tenant: str
    values: QuotaValues = field(default_factory=dict)
    added: Mapping[str, Sequence[str]] = field(default_factory=dict)
    removed: Mapping[str, Sequence[str]] = field(default_factory=dict)


def altered_tenants(rows: Iterable[QuotaValues], changes: Iterable[TenantChange]) -> list[dict[str, Any]]:
    """The rows after the changes, applied in order; sorted by name.

    Raises:
        Refused: a pattern to remove is not there, or one to add is another tenant's.
    """
    changes = [*changes]
    after = with_changes(TENANT_ROWS, rows, [((one.tenant,), partial(_changed, one)) for one in changes])
    _refuse_taken(after, changes)
    return after


def _refuse_taken(rows: Sequence[QuotaValues], changes: Sequence[TenantChange]) -> None:
    taken = [
        (column, pattern, row["tenant"], change.tenant)
        for change in changes
        for column, patterns in change.added.items()
        for pattern in patterns
        for row in rows
        if row["tenant"] != change.tenant and pattern in row[column]
    ]
    mistakes, removed = [], dict[str, list[str]]()
    for column, pattern, owner, name in taken:
        one, other = sorted((owner, name))
        mistakes.append(Mistake(f"{PATTERNS[column]} pattern {pattern!r} is in the tenants {one!r} and {other!r}"))
        removed.setdefault(owner, []).extend((f"--remove-{PATTERNS[column]}", pattern))
    if mistakes:
        fix = "; ".join(command_text("tenants", "alter", owner, *words) for owner, words in removed.items())
        raise edit_refused(mistakes, fix, TENANT_ROWS)


def _changed(change: TenantChange, before: QuotaValues | None) -> QuotaValues:
    row = {**new_tenant(change.tenant), **(before or {}), **change.values}
    for column, part in PATTERNS.items():
        removed, known = change.removed.get(column, ()), row[column]
        if absent := [one for one in removed if one not in known]:
            fix = f"its {part} patterns are {', '.join(known)}" if known else f"it has no {part} pattern"
            text = f"{_label(change.tenant)} has no {part} pattern {', '.join(absent)}"
            raise edit_refused([Mistake(text)], fix, TENANT_ROWS)
        kept = [one for one in known if one not in removed]
        row[column] = tuple(dict.fromkeys([*kept, *change.added.get(column, ())]))
    return row


def new_tenant(name: str) -> dict[str, Any]:
    """A row in which nothing is set but the name."""
    return {**dict.fromkeys(TENANT_COLUMNS), **_UNSET, "tenant": name}


def new_patterns(before: Iterable[QuotaValues], after: Iterable[QuotaValues]) -> list[tuple[str, str]]:
    """The patterns that an edit adds: each as one of users and one of client-ids, of which one is empty."""
    old = {row["tenant"]: row for row in before}
    return [
        (pattern, "") if column == USERS else ("", pattern)
        for row in after
        for column in PATTERNS
        for pattern in row[column]
        if pattern not in old.get(row["tenant"], {}).get(column, ())
    ]


def pattern_warnings(before: Iterable[QuotaValues], after: Iterable[QuotaValues]) -> list[str]:
    """What to know of the patterns that an edit adds, a sentence each."""
    old = {row["tenant"]: row for row in before}
    found = []
    for row in after:
        name = _label(row["tenant"])
        new = new_patterns([one for one in [old.get(row["tenant"])] if one], [row])
        found += [
            f"{name}: {part} pattern * matches every {part}, so all clients are members that no more specific pattern "
            "puts into another tenant"
            for part, pattern in zip(PATTERNS.values(), (("*", ""), ("", "*")), strict=True)
            if pattern in new
        ]
        if client_ids := [client_id for _, client_id in new if client_id]:
            found.append(
                f"{name}: client-id pattern {', '.join(client_ids)} matches pairs and clients without a quota, never "
                "the quota of a user alone: that needs a pattern of the user"
            )
    return found


def tenants_text(count: int) -> str:
    """How many tenants there are; "" for none."""
    return counted(count, "tenant") if count else ""


_VERBS: Final = dict(zip(QUOTA_TYPES, ("produce", "fetch", "use"), strict=True))
_MEMBER_SHARE: Final = 0.1


def tenant_text(row: QuotaValues) -> str:
    """A tenant in one line: its members, what they may use together and each, and whether they lend."""
    members = " and ".join(f"{part}s {', '.join(row[column])}" for column, part in PATTERNS.items() if row[column])
    parts = [f"{row['tenant']}: {members} may {_bounds_text(row)} together"]
    own = {name: row[f"{MEMBER}{name}"] or row[name] * _MEMBER_SHARE for name in QUOTA_TYPES if row[name] is not None}
    parts.append(f"each user without a quota of its own may {_bounds_text(own)}")
    if not row["lend"]:
        parts.append("no member gets more than its own bound")
    elif row["ceiling"] is None:
        parts.append("what one leaves the others may use")
    else:
        parts.append(f"what one leaves the others may use, up to {exact_text(row['ceiling'])} times their own bound")
    if row["mode"] == "shadow":
        parts.append("shadow: throttles no client")
    return "; ".join([*parts, *(f"{name} {row[name]}" for name in ("owner", "note") if row[name])])


def _bounds_text(bounds: QuotaValues) -> str:
    found = ((name, bounds.get(name)) for name in QUOTA_TYPES)
    return ", ".join(f"{_VERBS[name]} {rate_text(name, bound)}" for name, bound in found if bound is not None) or "-"
