"""Every table that the job and the command line create: rows, partition, properties, constraints.

The protocol stays plain, so that every reader of Delta can read the tables: (1, 2), or (1, 3) for a table with CHECK
constraints.
"""

import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final, Literal

from deltalake import DeltaTable
from pydantic import BaseModel

from pipeline.errors import TableMissing, UsageError
from pipeline.tables.delta_rs import NO_CLEANING, append_only, committed, writing
from pipeline.tables.object_store import delta_rs_options, refuse_unfit
from pipeline.tables.opening import columns_of_others, keep_on_disk, open_table, unfit_features, unwritable
from pipeline.tables.port import (
    EDITED,
    UNDO_OTHERS,
    TableOfAnotherBuild,
    full_address,
    is_local,
    table_uri,
    tables_of_another_job,
)
from quota.entity import QUOTA_TYPES
from schemas.arrow import arrow_schema
from schemas.rows import (
    BatchRow,
    BrokerQuotaRow,
    DeadLetterRow,
    DecisionRow,
    QuotaRow,
    RatesRow,
    SensorStateRow,
    TenantRow,
)
from schemas.throttle_record import ThrottleByMinuteRow, ThrottleEventRow
from schemas.usage import UsageByMinuteRow, UsageBySecondRow, UsageRow

log = logging.getLogger(__name__)

STATISTICS: Final = "delta.dataSkippingStatsColumns"
"""The property that lists the columns with statistics."""

CONSTRAINT: Final = "delta.constraints."
"""What the properties begin with that hold the CHECK constraints of a table."""

_PLAIN: Final = {
    "delta.enableDeletionVectors": "false",
    "delta.columnMapping.mode": "none",
    "delta.checkpointPolicy": "classic",
}

# There are 4 to 8 commits per second, and every append lists the log: 11 ms with 400 entries, 30 ms with 4 000. So the
# log is kept for minutes only.
# Files that compaction has replaced are kept for hours, for readers that started before.
# delta.setTransactionRetentionDuration stays unset: if Delta forgot an app id, a batch could be written twice.
_HOT: Final = {
    **_PLAIN,
    "delta.checkpointInterval": "50",
    "delta.logRetentionDuration": "interval 3 minutes",
    "delta.deletedFileRetentionDuration": "interval 6 hours",
}

# There are one to three commits a minute. The writer's handle needs a checkpoint every 50 commits (see delta_rs).
# Upkeep rewrites the newest day every hour (see upkeep), so replaced files are kept for hours only.
_ROLL_UP: Final = {**_HOT, "delta.logRetentionDuration": "interval 2 days"}

# It is replaced each second or two: what was replaced is kept for readers that have just begun.
_REPLACED: Final = {
    **_HOT,
    "delta.logRetentionDuration": "interval 2 minutes",
    "delta.deletedFileRetentionDuration": "interval 2 minutes",
}

# Batches name versions of quotas and tenants. Each must stay readable at least as long as the decisions are kept.
_TENANTS: Final = {
    **_PLAIN,
    "delta.checkpointInterval": "20",
    "delta.logRetentionDuration": "interval 400 days",
    "delta.deletedFileRetentionDuration": "interval 400 days",
}
_QUOTAS: Final = {**_TENANTS, "kquota.scope": "cluster", "kquota.mode": "enforce"}


def _bound_check(column: str) -> str:
    # A null needs its own condition, because a check that evaluates to null counts as broken. The upper limit is above
    # Long.MAX_VALUE, which is Kafka's "unlimited", and below infinity and NaN, which both engines order last.
    return f"{column} IS NULL OR ({column} > 0 AND {column} < 1e19)"


_QUOTA_CONSTRAINTS: Final = {
    "producer_byte_rate_is_positive": _bound_check("producer_byte_rate"),
    "consumer_byte_rate_is_positive": _bound_check("consumer_byte_rate"),
    "request_percentage_is_positive": _bound_check("request_percentage"),
    "mode_is_known": "mode = 'enforce' OR mode = 'shadow' OR mode = 'exempt'",
    "entity_is_named": "user != '' OR client_id != ''",
}

_BOUNDS_OF_TENANTS: Final = tuple(f"{prefix}{bound}" for prefix in ("", "member_") for bound in QUOTA_TYPES)
_TENANT_CONSTRAINTS: Final = {
    **{f"{column}_is_positive": _bound_check(column) for column in _BOUNDS_OF_TENANTS},
    "ceiling_is_not_below_1": "ceiling IS NULL OR (ceiling >= 1 AND ceiling < 1e19)",
    "mode_is_known": "mode = 'enforce' OR mode = 'shadow'",
    "tenant_is_named": "tenant != ''",
}


# A writer reads the log's entries since the newest checkpoint again and again, and a store charges for each. With 50 of
# them an append took 49 GET and 56 ms at a server on the same machine; with 10 it took 15 GET and 29 ms.
_IN_A_STORE: Final = {"delta.checkpointInterval": "10"}


@dataclass(frozen=True, slots=True)
class TableDefinition:
    """A table: its name under the root, its rows, and how they are stored."""

    name: str
    model: type[BaseModel]
    stats_columns: tuple[str, ...] = ()
    partition_by: tuple[str, ...] = ("date",)
    properties: Mapping[str, str] = field(default_factory=lambda: _HOT)
    constraints: Mapping[str, str] = field(default_factory=dict)

    @property
    def configuration(self) -> dict[str, str]:
        """All table properties, also the one that lists the columns with statistics."""
        return {**self.properties, **({STATISTICS: ",".join(self.stats_columns)} if self.stats_columns else {})}

    @property
    def description(self) -> str:
        """What the table is, in one line."""
        return (self.model.__doc__ or "").partition("\n")[0]


TABLES: Final[Mapping[str, TableDefinition]] = {
    definition.name: definition
    for definition in (
        TableDefinition("quotas", QuotaRow, (), (), _QUOTAS, _QUOTA_CONSTRAINTS),
        TableDefinition("tenants", TenantRow, (), (), _TENANTS, _TENANT_CONSTRAINTS),
        TableDefinition("usage", UsageRow, ("batch_id", "sample_start_ms", "time_epoch", "evaluated_at_ms")),
        TableDefinition("batches", BatchRow, ("batch_id", "time_epoch", "evaluated_at_ms")),
        TableDefinition("decisions", DecisionRow, ("batch_id", "time_epoch", "evaluated_at_ms", "decision_id")),
        TableDefinition(
            "throttle_events",
            ThrottleEventRow,
            ("batch_id", "time_epoch", "evaluated_at_ms", "publish_seq", "throttled_until_ms", "decision_id"),
        ),
        TableDefinition("sensor_state", SensorStateRow, ("batch_id", "time_epoch", "evaluated_at_ms")),
        TableDefinition("rates", RatesRow, ("level",), (), _REPLACED),
        TableDefinition("dead_letters", DeadLetterRow, ("batch_id", "appended_at_ms")),
        TableDefinition("broker_quotas", BrokerQuotaRow, ("seq", "at_ms")),
        TableDefinition("usage_by_second", UsageBySecondRow, ("second_start_ms", "time_epoch"), properties=_ROLL_UP),
        TableDefinition("usage_by_minute", UsageByMinuteRow, ("minute_start_ms",), properties=_ROLL_UP),
        TableDefinition("throttle_by_minute", ThrottleByMinuteRow, ("minute_start_ms",), properties=_ROLL_UP),
    )
}


def create_tables(root: str) -> list[str]:
    """Create the tables that are missing, and return their names.

    A store is tried first. If it is not fit, nothing is created; see `object_store.refuse_unfit`.
    """
    if not is_local(root):
        refuse_unfit(root)
    created = create_missing(root)
    if created:
        log.info("created tables %s under %s", ", ".join(created), root)
    return created


def create_missing(root: str, definitions: Iterable[TableDefinition] = TABLES.values()) -> list[str]:
    """Create the tables that are missing, with their properties and constraints; returns their names, in order.

    Can be repeated, also after a creation that was interrupted. Nothing of an existing table changes; one without a
    column that kquota needs is refused (`TableOfAnotherBuild`).
    """
    return [definition.name for definition in definitions if _create(table_uri(root, definition.name), definition)]


def _create(uri: str, definition: TableDefinition) -> bool:
    try:
        open_table(uri)
        created = False
    except TableMissing:
        created = True
        with writing(uri):
            _create_new(uri, definition)
    if lacking := lacking_columns(open_table(uri), definition):
        raise TableOfAnotherBuild(uri, lacking)
    committed(uri, partial(_complete, definition))
    if created:
        keep_on_disk(uri)
    return created


def _create_new(uri: str, definition: TableDefinition) -> None:
    if is_local(uri):
        Path(uri).mkdir(parents=True, exist_ok=True)
    DeltaTable.create(
        uri,
        arrow_schema(definition.model),
        mode="ignore",
        partition_by=list(definition.partition_by),
        name=definition.name,
        description=definition.description,
        configuration={**definition.configuration, **({} if is_local(uri) else _IN_A_STORE)},
        storage_options=delta_rs_options(uri),
        raise_if_key_not_exists=False,  # the kquota.* properties are ours, not Delta's
    )


def _complete(definition: TableDefinition, table: DeltaTable) -> None:
    # Constraints given as properties of a new table would be stored and not enforced. Only `add_constraint` raises the
    # protocol.
    set_already = table.metadata().configuration
    constraints = {
        name: rule for name, rule in definition.constraints.items() if f"{CONSTRAINT}{name}" not in set_already
    }
    if constraints:
        table.alter.add_constraint(constraints, post_commithook_properties=NO_CLEANING)


def lacking_columns(table: DeltaTable, definition: TableDefinition) -> list[str]:
    """The columns that a table does not have, and kquota needs."""
    present = [field.name for field in table.schema().fields]
    return [name for name in definition.model.model_fields if name not in present]


def changes_of_others(uri: str, definition: TableDefinition) -> Iterator[tuple[Literal["ok", "warning", "error"], str]]:
    """What others have changed of an existing table, each with how it matters to kquota."""
    table = open_table(uri)
    configuration = table.metadata().configuration
    if unfit_features(table):
        yield "error", str(unwritable(uri, table))
    if configuration.get("delta.appendOnly") == "true":
        yield "error", str(append_only(uri))
    ours = {f"{CONSTRAINT}{name}" for name in definition.constraints}
    if theirs := [name for name in configuration if name.startswith(CONSTRAINT) and name not in ours]:
        yield "warning", f"{uri} takes only rows that meet {', '.join(theirs)}. Fix: {UNDO_OTHERS}"
    if lacking := lacking_columns(table, definition):
        yield "error", str(TableOfAnotherBuild(uri, lacking))
    if added := columns_of_others(table, definition.model):
        effect = "kept as they are, null in new rows" if definition.name in EDITED else "null in new rows"
        yield "ok", f"{definition.name}: columns of others, without effect: {', '.join(added)} ({effect})"


# The name of the job that owns a set of tables.
#
# The epoch, the record numbers and the transactional id depend on the job's name. If a second job wrote the same tables
# under another name, neither would fence the other. So the tables store the name of the first job.

_OWNER: Final = "kquota.job"
_OWNER_TABLE: Final = "batches"


def claim_tables(root: str, job: str) -> None:
    """Store the job's name in its tables at its first start; `Conflict` if they store another name later."""
    owner = owner_of(root)
    if owner is None:
        committed(table_uri(root, _OWNER_TABLE), partial(_name_owner, job))
    elif owner != job:
        raise tables_of_another_job(root, job, owner)


def _name_owner(job: str, table: DeltaTable) -> None:
    named = {_OWNER: job}
    table.alter.set_table_properties(named, raise_if_not_exists=False, post_commithook_properties=NO_CLEANING)


def owner_of(root: str) -> str | None:
    """Return the job name that the tables store, or None if no job has started on them yet or there are no tables."""
    try:
        return open_table(table_uri(root, _OWNER_TABLE)).metadata().configuration.get(_OWNER)
    except TableMissing:
        return None


# The SQL of deploy/sql: views over the tables. A Spark or a Databricks of the operator runs it.

VIEWS: Final = "views.sql"
QUOTA_HISTORY: Final = "quota_history.sql"

# A checkout has the files under deploy/; a wheel carries them next to this module.
_CHECKOUT: Final = Path(__file__).resolve().parents[2] / "deploy" / "sql"
_PACKAGED: Final = Path(__file__).with_name("sql")
_SCHEMA: Final = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)?")
_NOT_IN_SQL: Final = re.compile(r"['`\\\n$]")


def view_sql(file: str, root: str, schema: str) -> str:
    """A file of deploy/sql with its two variables filled in; `UsageError` if a name or the root does not fit in SQL."""
    if not _SCHEMA.fullmatch(schema):
        message = f"--schema {schema} is not a name, nor a catalog and a name"
        raise UsageError(message, "for example --schema main.kquota")
    root = full_address(root).rstrip("/")
    if found := _NOT_IN_SQL.search(root):
        message = f"tables root {root} contains {found[0]!r} and cannot be used in SQL"
        raise UsageError(message, "move the tables to another folder, or register them by hand and drop these lines")
    folder = _CHECKOUT if _CHECKOUT.exists() else _PACKAGED
    text = (folder / file).read_text(encoding="utf-8")
    return text.replace("${schema}", schema).replace("${tables_root}", root)
