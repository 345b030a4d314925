"""Every table the job and the command line create: rows, partition, properties, constraints.

The protocol stays plain, (1, 2), and (1, 3) where there are CHECK constraints, so that every reader of Delta
can read the tables.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError
from pydantic import BaseModel

from schemas.arrow import arrow_schema
from schemas.batch_row import BatchRow
from schemas.dead_letter_row import DeadLetterRow
from schemas.decision_row import DecisionRow
from schemas.quota_row import QuotaRow
from schemas.sensor_state_row import SensorStateRow
from schemas.throttle_event_row import ThrottleEventRow
from schemas.usage_by_second_row import UsageBySecondRow
from schemas.usage_row import UsageRow

_PLAIN: Final = {
    "delta.enableDeletionVectors": "false",
    "delta.columnMapping.mode": "none",
    "delta.checkpointPolicy": "classic",
}

# Up to 4 commits a second, and every append lists the log: at 14 400 entries it takes 56 ms, at 43 200 160 ms, with
# none 13 ms. So the log is kept for minutes. Files that compaction replaced stay for hours, for readers that began
# before. delta.setTransactionRetentionDuration stays unset: a forgotten app id would let a batch be written twice.
_HOT: Final = {
    **_PLAIN,
    "delta.checkpointInterval": "50",
    "delta.logRetentionDuration": "interval 10 minutes",
    "delta.deletedFileRetentionDuration": "interval 6 hours",
}

# About a commit a minute. The handle of the writer needs a checkpoint each 50 commits.
_ROLL_UP: Final = {
    **_PLAIN,
    "delta.checkpointInterval": "50",
    "delta.logRetentionDuration": "interval 2 days",
    "delta.deletedFileRetentionDuration": "interval 2 days",
}

# Decisions name quota versions; each must stay readable at least as long as they are kept.
_QUOTAS: Final = {
    **_PLAIN,
    "delta.checkpointInterval": "20",
    "delta.logRetentionDuration": "interval 400 days",
    "delta.deletedFileRetentionDuration": "interval 400 days",
    "kquota.scope": "cluster",
    "kquota.mode": "enforce",
}


def _bound_check(column: str) -> str:
    # A null must be let through by name: a check that comes to null counts as broken. The upper end stands
    # above Long.MAX_VALUE, Kafka's "unlimited", and below infinity and NaN, which both engines order last.
    return f"{column} IS NULL OR ({column} > 0 AND {column} < 1e19)"


_QUOTA_CONSTRAINTS: Final = {
    "producer_byte_rate_is_positive": _bound_check("producer_byte_rate"),
    "consumer_byte_rate_is_positive": _bound_check("consumer_byte_rate"),
    "request_percentage_is_positive": _bound_check("request_percentage"),
    "mode_is_known": "mode = 'enforce' OR mode = 'shadow' OR mode = 'exempt'",
    "entity_is_named": "user != '' OR client_id != ''",
}


@dataclass(frozen=True, slots=True)
class TableDefinition:
    """What a table is: its name under the root, its rows and how they are kept."""

    name: str
    model: type[BaseModel]
    stats_columns: tuple[str, ...] = ()
    partition_by: tuple[str, ...] = ("date",)
    properties: Mapping[str, str] = field(default_factory=lambda: _HOT)
    constraints: Mapping[str, str] = field(default_factory=dict)

    @property
    def configuration(self) -> dict[str, str]:
        """All table properties, the columns with statistics among them."""
        if not self.stats_columns:
            return dict(self.properties)
        return {**self.properties, "delta.dataSkippingStatsColumns": ",".join(self.stats_columns)}


TABLES: Final[Mapping[str, TableDefinition]] = {
    definition.name: definition
    for definition in (
        TableDefinition("quotas", QuotaRow, (), (), _QUOTAS, _QUOTA_CONSTRAINTS),
        TableDefinition("usage", UsageRow, ("batch_id", "sample_start_ms", "evaluated_at_ms")),
        TableDefinition("batches", BatchRow, ("batch_id", "evaluated_at_ms")),
        TableDefinition("decisions", DecisionRow, ("batch_id", "evaluated_at_ms", "decision_id")),
        TableDefinition(
            "throttle_events",
            ThrottleEventRow,
            ("batch_id", "evaluated_at_ms", "publish_seq", "throttled_until_ms", "decision_id"),
        ),
        TableDefinition("sensor_state", SensorStateRow, ("batch_id", "evaluated_at_ms")),
        TableDefinition("dead_letters", DeadLetterRow, ("batch_id", "appended_at_ms")),
        TableDefinition("usage_by_second", UsageBySecondRow, ("second_start_ms",), properties=_ROLL_UP),
    )
}


def table_uri(root: str, name: str) -> str:
    """Address of a table under a root (a folder, `s3://…`, `abfss://…`)."""
    return f"{root.rstrip('/')}/{name}"


def create_missing(
    root: str,
    definitions: Iterable[TableDefinition] = TABLES.values(),
    storage_options: Mapping[str, str] | None = None,
) -> list[str]:
    """Create the tables that are not there yet, with their properties and constraints.

    Safe to repeat, also after a creation that was cut short: missing constraints are added, existing tables,
    their rows and properties are left as they are.

    Returns:
        Names of the tables that were created, in the order given.
    """
    options = dict(storage_options) if storage_options else None
    return [
        definition.name for definition in definitions if _create(table_uri(root, definition.name), definition, options)
    ]


def _create(uri: str, definition: TableDefinition, options: dict[str, str] | None) -> bool:
    try:
        table, created = DeltaTable(uri, storage_options=options), False
    except TableNotFoundError:
        if "://" not in uri:
            Path(uri).mkdir(parents=True, exist_ok=True)
        table, created = _create_empty(uri, definition, options), True
    # As properties of a new table, constraints would be stored and not enforced: only this call raises the
    # protocol.
    present = {name.removeprefix("delta.constraints.") for name in table.metadata().configuration}
    missing = {name: rule for name, rule in definition.constraints.items() if name not in present}
    if missing:
        table.alter.add_constraint(missing)
    return created


def _create_empty(uri: str, definition: TableDefinition, options: dict[str, str] | None) -> DeltaTable:
    return DeltaTable.create(
        uri,
        arrow_schema(definition.model),
        mode="ignore",
        partition_by=list(definition.partition_by),
        name=definition.name,
        description=(definition.model.__doc__ or "").partition("\n")[0],
        configuration=definition.configuration,
        storage_options=options,
        raise_if_key_not_exists=False,  # the kquota.* properties are ours, not Delta's
    )
