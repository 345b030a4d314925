"""The quota table in a catalog, read version by version through Spark. SQL writes it, not this class."""

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from pipeline.settings.catalog import CatalogRoot
from pipeline.tables.errors import TableMissing, TableUnreadable
from pipeline.tables.quotas.table import QuotaTableState
from pipeline.tables.spark.table import SparkTable, reading_by_spark
from schemas.rows import QuotaRow

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_DEFAULTS: Final = {"kquota.scope": "cluster", "kquota.mode": "enforce"}


class SparkQuotas:
    """`QuotaVersions` of a table in a catalog. It may be shared between threads.

    Args:
        spark: A classic session with Delta.
        root: Root of the tables.

    Raises:
        TableMissing: There is no table.
    """

    def __init__(self, spark: "SparkSession", root: CatalogRoot) -> None:
        self.uri: str = root.table("quotas")
        self._table = SparkTable(spark, self.uri)

    def version(self) -> int:
        """The newest version. Takes about 0.1 s."""
        return self._table.version()

    def read(self, version: int | None = None) -> QuotaTableState:
        """The table at a version; None = the newest.

        Raises:
            TableMissing: The version does not exist, or no longer exists: its log entry or a file was cleaned away.
            TableUnreadable: The table can not be read.
        """
        commits = self._table.history()
        newest = int(commits[0]["version"])
        at = newest if version is None else version
        properties = properties_at(commits, self._table.detail()["properties"], at)
        return QuotaTableState(
            version=at, rows=self._rows(at, newest), scope=properties["kquota.scope"], mode=properties["kquota.mode"]
        )

    def _rows(self, version: int, newest: int) -> tuple[dict[str, Any], ...]:
        columns = [f"`{name}`" for name in QuotaRow.model_fields]
        try:
            with reading_by_spark(self.uri):
                rows = [row.asDict() for row in self._table.rows_at(version).select(columns).collect()]
        except (TableMissing, TableUnreadable) as exc:
            if isinstance(exc, TableUnreadable) and not exc.is_file_missing:
                raise
            raise TableMissing(self.uri, version, newest) from exc
        return tuple(sorted(rows, key=lambda row: (row["user"], row["client_id"])))


def properties_at(commits: Sequence[Any], newest: Mapping[str, str], version: int) -> dict[str, str]:
    """Scope and mode at a version. Spark tells the properties of the newest version only; the history has the changes.

    Args:
        commits: Rows of `DESCRIBE HISTORY`, newest first.
        newest: The properties at the newest version.
        version: The version that is asked for.

    Returns:
        `kquota.scope` and `kquota.mode`. Where the log no longer has the commit that set one, and a later one has
        changed it, that is the default.
    """
    found = {}
    for name, default in _DEFAULTS.items():
        changes = [(commit["version"], value) for commit in commits if (value := _set_by(commit, name)) is not None]
        before = [value for at, value in changes if at <= version]
        found[name] = before[0] if before else default if changes else newest.get(name, default)
    return found


def _set_by(commit: Any, name: str) -> str | None:
    """What a commit has set a property to; None if it has not."""
    parameters = commit["operationParameters"] or {}
    try:
        properties = json.loads(parameters.get("properties") or "{}")
    except ValueError:
        return None
    if "UNSET" in commit["operation"]:
        return _DEFAULTS[name] if name in properties else None
    value = properties.get(name) if isinstance(properties, dict) else None
    return None if value is None else str(value)
