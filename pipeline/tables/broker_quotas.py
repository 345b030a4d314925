"""The table `broker_quotas`: every change of the brokers' own quotas, and what kquota owns there.

Only `kquota quotas sync` writes it. Its epoch is recorded under one app id for all syncs, whatever their jobs are
called: two of them on the same tables are never both right.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, write_deltalake

from pipeline.errors import TableMissing
from pipeline.process import holder_of
from pipeline.tables.delta_rs import NO_CLEANING, DeltaRsWriter, committed
from pipeline.tables.opening import keep_on_disk
from pipeline.tables.port import Condition, checked_epoch, local_file, table_uri
from pipeline.tables.queries import Row, StoredTable, predicates, rows_of
from pipeline.tables.upkeep import rows_before
from quota.broker_levels.entries import EntryKey, EntryKind
from quota.broker_levels.writes import Change, Owned
from quota.entity import Level, entity_at, level_of
from schemas.arrow import arrow_schema, conform
from schemas.rows import BrokerQuotaRow

NAME: Final = "broker_quotas"
KEY: Final = ("user", "client_id", "quota_type")
PENDING: Final = "pending"
APPLIED: Final = "applied"
NOT_APPLIED: Final = "not applied"
OF_A_CHANGE: Final = (*KEY, "old", "new", "bound", "kind", "demand", "cause", "before", "over_at_ms")
"""The columns that are fields of a change, or of its key."""

_KEYS: Final = ("cluster", *KEY)
# Metering may be switched off on the brokers without a row: a sync knows it when it sees it there.
_IS_A_QUOTA: Final[Sequence[Condition]] = (("kind", "is not", None), ("kind", "!=", EntryKind.METERING.value))


def newest_changes(table: StoredTable, cluster: str) -> list[Row]:
    """The newest applied step of each key, and the newest of all if that is pending; in order."""
    where: list[Condition] = [("cluster", "=", cluster)]
    applied = table.last_of_each(_KEYS, "seq", [*where, ("result", "=", APPLIED)])
    pending = table.last_of_each(_KEYS, "seq", where, [("result", "=", PENDING)])
    return sorted([*rows_of(applied), *rows_of(pending)], key=lambda row: int(row["seq"]))


def change_of(row: Mapping[str, Any]) -> Change:
    """The change that a row is a step of."""
    key = EntryKey(*(row[name] for name in KEY))
    kind = None if row["kind"] is None else EntryKind(row["kind"])
    rest = {name: row[name] for name in OF_A_CHANGE if name not in {*KEY, "kind", "demand"}}
    return Change(key=key, kind=kind, demand=dict(row["demand"]), **rest)


_APP_ID: Final = "broker-quotas"
_SEQ_APP_ID: Final = f"{_APP_ID}:seq"


class BrokerQuotasTable:
    """The writer of the table, for the brokers of one cluster. One caller at a time."""

    def __init__(self, root: str, cluster: str) -> None:
        self.uri = table_uri(root, NAME)
        self._table = DeltaRsWriter(self.uri, _APP_ID)
        self._cluster = cluster
        self._epoch = 0
        self._next_seq = 0

    def take_over(self) -> None:
        """Fence an earlier sync, before the first append; `Conflict` if another one started just now."""
        self._epoch = 1 + (self._table.recorded_version(_APP_ID) or 0)
        self._table.raise_epoch(self._epoch)
        self._next_seq = 1 + self._newest_seq()

    def append(self, steps: Iterable[tuple[Change, str]], at_ms: int) -> None:
        """Append changes with their results in one commit, in their order; `Conflict` if another sync has taken over.

        A result is `PENDING`, `APPLIED`, `NOT_APPLIED` or the words of a refusal.
        """
        rows = [_row(change, result) for change, result in steps]
        while rows:
            last_seq = self._next_seq + len(rows) - 1
            schema = pa.schema([field for field in arrow_schema(BrokerQuotaRow) if field.name in {*rows[0], "seq"}])
            numbered = pa.Table.from_pylist(
                [{**row, "seq": seq} for seq, row in enumerate(rows, self._next_seq)], schema
            )
            table = conform(numbered, BrokerQuotaRow, cluster=self._cluster, sync_epoch=self._epoch, at_ms=at_ms)
            is_appended = self._table.append(table, {_SEQ_APP_ID: last_seq}, {})
            # An append that failed may have stored its rows after all. These are others, and come after them.
            self._next_seq = 1 + (last_seq if is_appended else self._newest_seq())
            if is_appended:
                # What a power loss takes from this table stays at the brokers, and kquota would not know it as its own.
                keep_on_disk(self.uri)
                return

    def state(self) -> tuple[dict[EntryKey, Owned], list[Change]]:
        """See `state_of`, of this cluster."""
        return state_of(StoredTable(self.uri), self._cluster)

    def refuse_fenced(self) -> None:
        """Raise `Conflict` if another sync has taken over."""
        checked_epoch(self.uri, self._epoch, self._table.recorded_version(_APP_ID))

    def _newest_seq(self) -> int:
        found = (self._table.recorded_version(_SEQ_APP_ID), self._table.newest_value("seq"))
        return max(-1 if seq is None else seq for seq in found)


def state_of(table: StoredTable, cluster: str) -> tuple[dict[EntryKey, Owned], list[Change]]:
    """What kquota owns in one cluster, by the newest change of a key that was applied, and the changes after that.

    These are undecided, in order: their outcome at the brokers is not stored.
    """
    owned: dict[EntryKey, Owned] = {}
    undecided: list[Change] = []
    for row in newest_changes(table, cluster):
        change = change_of(row)
        if row["result"] == PENDING:
            undecided.append(change)
        elif (ours := change.owned(row["at_ms"])) is not None:
            owned[change.key] = ours
    return owned, undecided


def _row(change: Change, result: str) -> dict[str, Any]:
    values = {name: getattr(change, name) for name in OF_A_CHANGE if name not in KEY}
    return {**change.key._asdict(), **values, "demand": list(change.demand.items()), "result": result}


def trim_changes(uri: str, before_ms: int) -> int:
    """Delete the rows of before an instant, but not those that say what kquota owns; returns how many it deleted."""
    old = rows_before("at_ms", before_ms)

    def delete(table: DeltaTable) -> int:
        rows = StoredTable(table).read(None, old)
        if not len(rows):
            return 0
        kept = rows.filter(pc.is_in(rows["seq"], pa.array(_needed(StoredTable(table)), pa.int64())))
        if len(kept) < len(rows):
            # One commit that puts the rows that stay in place of all the old ones. A delete whose condition named them
            # one by one has crashed delta-rs 1.6.6 (30 000 of them).
            replaced = predicates(old)
            write_deltalake(table, kept, mode="overwrite", predicate=replaced, post_commithook_properties=NO_CLEANING)
        return len(rows) - len(kept)

    return committed(uri, delete)


def _needed(table: StoredTable) -> list[int]:
    """`seq` of each key's newest applied row, if a quota is owned, and of its newest row of all, if that is pending."""
    owned = table.last_of_each(_KEYS, "seq", [("result", "=", APPLIED)], _IS_A_QUOTA)
    pending = table.last_of_each(_KEYS, "seq", [], [("result", "=", PENDING)])
    return [*owned["seq"].to_pylist(), *pending["seq"].to_pylist()]


# What the brokers enforce for a client because `kquota quotas sync` wrote it.

_NAMED_CLIENT: Final = frozenset({Level.USER_CLIENT, Level.DEFAULT_USER_CLIENT, Level.CLIENT})


@dataclass(frozen=True, slots=True)
class Enforced:
    """A value that holds on the brokers since `at_ms`."""

    change: Change
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
    applied: list[Condition] = [("user", "in", users), ("client_id", "in", client_ids), ("result", "=", APPLIED)]
    try:
        table = StoredTable(table_uri(root, NAME))
    except TableMissing:
        return []
    found = rows_of(table.last_of_each(_KEYS, "seq", applied, _IS_A_QUOTA))
    rows = [row for row in found if (row["user"], row["client_id"]) in entities]
    # Of each type the most specific level comes last, and of a level the newest row.
    rows.sort(key=lambda row: (-level_of(row["user"], row["client_id"]), row["seq"]))
    best = {row["quota_type"]: row for row in rows}
    wanted = [best[name] for name in quota_types if name in best]
    return [Enforced(change_of(row), row["at_ms"], row["cluster"]) for row in wanted]


# The lock of a sync, next to the tables.


def sync_lock_file(tables_root: str) -> Path | None:
    """The lock file of the sync of these tables; None where they are in no local folder that exists."""
    return local_file(tables_root, ".kquota-sync.lock")


def running_sync(tables_root: str) -> str | None:
    """The process of this machine that holds the lock, as text; None if none does."""
    path = sync_lock_file(tables_root)
    return None if path is None else holder_of(path)
