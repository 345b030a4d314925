"""What the brokers enforce for a client because `kquota quotas sync` wrote it: read from `broker_quotas`."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pipeline.errors import TableMissing
from pipeline.process import holder_of
from pipeline.tables.address import local_folder, table_uri
from pipeline.tables.port import Condition
from pipeline.tables.queries import Row, TableRows
from quota.entity import Level, entity_at, level_of

if TYPE_CHECKING:
    from quota.broker_levels.writes import Change

# The rows of `broker_quotas` that say what kquota owns on the brokers, as they are stored.

NAME: Final = "broker_quotas"
KEY: Final = ("user", "client_id", "quota_type")
PENDING: Final = "pending"
APPLIED: Final = "applied"
NOT_APPLIED: Final = "not applied"
OF_A_CHANGE: Final = (*KEY, "old", "new", "bound", "kind", "demand", "cause", "before", "over_at_ms")
"""The columns that are fields of a change, or of its key."""

_KEYS: Final = ("cluster", *KEY)
_COLUMNS: Final = ("cluster", "at_ms", *(name for name in OF_A_CHANGE if name != "demand"), "result")


def newest_changes(table: TableRows, cluster: str) -> list[Row]:
    """The newest applied step of each key, and the newest of all if that is pending; in order, without demand."""
    where: list[Condition] = [("cluster", "=", cluster)]
    newest = table.newest_of_each(_KEYS, "seq", _COLUMNS, where)
    rows = [*_newest_applied(table, where), *(row for row in newest if row["result"] == PENDING)]
    return sorted(rows, key=lambda row: int(row["seq"]))


def _newest_applied(table: TableRows, where: Sequence[Condition]) -> list[Row]:
    return table.newest_of_each(_KEYS, "seq", _COLUMNS, [*where, ("result", "=", APPLIED)])


def demands(table: TableRows, rows: Iterable[Mapping[str, Any]]) -> dict[int, dict[str, float | None]]:
    """The column `demand` of rows of `broker_quotas`, by `seq`. It is read by itself: to sort by it takes a second."""
    wanted = [row["seq"] for row in rows]
    if not wanted:
        return {}
    found = table.read(["seq", "demand"], [("seq", ">=", min(wanted)), ("seq", "<=", max(wanted))])
    by_seq = {row["seq"]: row["demand"] for row in found}
    return {seq: dict(by_seq[seq]) for seq in wanted if seq in by_seq}


def change_of(row: Mapping[str, Any], demand: dict[str, float | None]) -> "Change":
    """The change that a row is a step of, with its demand."""
    # With the arithmetic of levels, which most clients' answers do not need.
    from quota.broker_levels.entries import EntryKey, EntryKind  # noqa: PLC0415
    from quota.broker_levels.writes import Change  # noqa: PLC0415

    key = EntryKey(*(row[name] for name in KEY))
    kind = None if row["kind"] is None else EntryKind(row["kind"])
    rest = {name: row[name] for name in OF_A_CHANGE if name not in {*KEY, "kind", "demand"}}
    return Change(key=key, kind=kind, demand=demand, **rest)


_NAMED_CLIENT: Final = frozenset({Level.USER_CLIENT, Level.DEFAULT_USER_CLIENT, Level.CLIENT})


@dataclass(frozen=True, slots=True)
class Enforced:
    """A value that holds on the brokers since `at_ms`."""

    change: "Change"
    at_ms: int
    cluster: str


def enforced_for(root: str, user: str, client_id: str, quota_types: Iterable[str]) -> list[Enforced]:
    """For each quota type the most specific value that kquota owns on the brokers and that concerns a client.

    Values that others wrote are not in the table. One of these, at a more specific level, goes before it.

    * `client_id`: Its client-id; "" for none.
    * `quota_types`: Which types, in which order. One without such a value is left out, without the table all are.
    """
    entities = {entity_at(level, user, client_id) for level in Level if client_id or level not in _NAMED_CLIENT}
    users, client_ids = (sorted(set(names)) for names in zip(*entities, strict=True))
    where: list[Condition] = [("user", "in", users), ("client_id", "in", client_ids)]
    try:
        table = TableRows(table_uri(root, NAME))
    except TableMissing:
        return []
    rows = [row for row in _newest_applied(table, where) if (row["user"], row["client_id"]) in entities]
    rows = [row for row in rows if row["kind"] is not None]
    if not rows:
        return []
    # Of each type the most specific level comes last, and of a level the newest row.
    rows.sort(key=lambda row: (-level_of(row["user"], row["client_id"]), row["seq"]))
    best = {row["quota_type"]: row for row in rows}
    wanted = [best[name] for name in quota_types if name in best]
    demand = demands(table, wanted)
    return [Enforced(change_of(row, demand.get(row["seq"], {})), row["at_ms"], row["cluster"]) for row in wanted]


# The lock of a sync, next to the tables.


def sync_lock_file(tables_root: str) -> Path | None:
    """The lock file of the sync of these tables; None where they are in no local folder that exists."""
    folder = local_folder(tables_root)
    return None if folder is None else folder / ".kquota-sync.lock"


def running_sync(tables_root: str) -> str | None:
    """The process of this machine that holds the lock, as text; None if none does."""
    path = sync_lock_file(tables_root)
    return None if path is None else holder_of(path)
