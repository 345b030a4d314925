"""The rows of `broker_quotas` that say what kquota owns on the brokers, as they are stored."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from pipeline.tables.port import Condition
from pipeline.tables.reading.table_rows import Row, TableRows

NAME: Final = "broker_quotas"
KEY: Final = ("user", "client_id", "quota_type")
PENDING: Final = "pending"
APPLIED: Final = "applied"
NOT_APPLIED: Final = "not applied"

OF_A_CHANGE: Final = (*KEY, "old", "new", "bound", "kind", "demand", "cause", "before", "over_at_ms")
"""The columns that are fields of a change, or of its key."""

_COLUMNS: Final = ("cluster", "at_ms", *(name for name in OF_A_CHANGE if name != "demand"), "result")


def newest_changes(table: TableRows, cluster: str | None = None, where: Sequence[Condition] = ()) -> list[Row]:
    """The newest step that was applied of each key, and the newest one of all if that is pending; in order, no demand.

    Args:
        table: `broker_quotas`.
        cluster: Only of this one; None = of all.
        where: Further conditions, on the columns of a key.
    """
    conditions = [*([] if cluster is None else [("cluster", "=", cluster)]), *where]
    keys = ["cluster", *KEY]
    applied = table.newest_of_each(keys, "seq", _COLUMNS, [*conditions, ("result", "=", APPLIED)])
    newest = table.newest_of_each(keys, "seq", _COLUMNS, conditions)
    rows = [*applied, *(row for row in newest if row["result"] == PENDING)]
    return sorted(rows, key=lambda row: int(row["seq"]))


def demands(table: TableRows, rows: Iterable[Mapping[str, Any]]) -> dict[int, dict[str, float | None]]:
    """The column `demand` of rows of `broker_quotas`, by `seq`. It is read by itself: to sort by it takes a second.

    Args:
        table: `broker_quotas`.
        rows: As `newest_changes` returns them. To read few that were written together takes less.
    """
    wanted = [row["seq"] for row in rows]
    if not wanted:
        return {}
    found = table.read(["seq", "demand"], [("seq", ">=", min(wanted)), ("seq", "<=", max(wanted))])
    by_seq = {row["seq"]: row["demand"] for row in found}
    return {seq: dict(by_seq[seq]) for seq in wanted if seq in by_seq}
