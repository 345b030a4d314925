"""What the verifier judges: what is on the topics and what is in the tables, as plain values.

Reads with the Kafka and Delta libraries alone; nothing of the system under test is imported.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder

from tests.topic_reading import read_topic

Row = dict[str, Any]
TABLES = ("usage", "batches", "decisions", "dead_letters", "throttle_events", "sensor_state")


@dataclass(frozen=True, slots=True)
class Message:
    """One record of the usage topic."""

    partition: int
    offset: int
    appended_at_ms: int
    key: bytes | None
    value: bytes | None


@dataclass(frozen=True, slots=True)
class Quotas:
    """The quota table at one version."""

    rows: tuple[Row, ...]
    mode: str


@dataclass
class Evidence:
    """All that a verdict is based on.

    Attributes:
        usage_topic: Its name.
        messages: All committed records of the usage topic, by partition and offset.
        records: Values of all committed records of the throttle topic, those of a partition in their order, each with
            its key and partition as `"key"` and `"partition"`.
        tables: Rows by table.
        quotas: The quota table by version, from the oldest that a row names to the newest.
        scope: Of the quota table: cluster or broker.
        ledger: What the generator says it has sent, by key; None without a ledger.
        starts: When a driver took over the running throttles, epoch milliseconds by its wall clock; None: not known.
            If its wall clock was set, by the first one: as if it had not been set.
        moved: Of each start, how far the wall clock was from the first one, and the first `publish_seq` after it;
            nothing if the clock was never set. Rows of `batches` and `throttle_events` then have a column `moved_ms`.
    """

    usage_topic: str
    messages: list[Message]
    records: list[Row]
    tables: dict[str, list[Row]]
    quotas: dict[int, Quotas]
    scope: str = "cluster"
    ledger: dict[str, Row] | None = None
    starts: list[int] | None = None
    moved: Sequence[tuple[int, int]] = ()


def gather(
    root: str, bootstrap_servers: str, usage_topic: str, throttle_topic: str, ledgers: Sequence[Path] = ()
) -> Evidence:
    """Read everything there is, once."""
    messages = [
        Message(record.partition, record.offset, record.timestamp, record.key, record.value)
        for record in read_topic(bootstrap_servers, usage_topic)
    ]
    records = [
        {**json.loads(record.value), "key": json.loads(record.key), "partition": record.partition}
        for record in read_topic(bootstrap_servers, throttle_topic)
    ]
    messages.sort(key=lambda message: (message.partition, message.offset))
    evidence = evidence_of(root, usage_topic, messages, records)
    return replace(evidence, ledger=_ledger(ledgers) if ledgers else None)


def evidence_of(
    root: str,
    usage_topic: str,
    messages: list[Message],
    records: list[Row],
    stored: Mapping[str, pa.Table] | None = None,
) -> Evidence:
    """What is on the topics, with what is in the tables.

    Args:
        root: Of the Delta tables.
        usage_topic: Its name.
        messages: Of the usage topic.
        records: Of the throttle topic.
        stored: Rows by table, for a job that keeps them elsewhere than under the root; the quota table is always there.
    """
    tables = {name: _rows(stored[name] if stored else _read(f"{root}/{name}")) for name in TABLES}
    named = {row["quota_version"] for name in ("batches", "throttle_events") for row in tables[name]}
    newest = DeltaTable(f"{root}/quotas").version()
    versions = range(max(min(named, default=0), 0), newest + 1)
    return Evidence(
        usage_topic=usage_topic,
        messages=messages,
        records=records,
        tables=tables,
        quotas={version: _quotas(f"{root}/quotas", version) for version in versions},
        scope=DeltaTable(f"{root}/quotas").metadata().configuration.get("kquota.scope", "cluster"),
    )


def _read(uri: str) -> pa.Table:
    """All rows; by a query, which reads thousands of small files three times as fast as a dataset does."""
    return pa.table(QueryBuilder().register("rows", DeltaTable(uri)).execute("SELECT * FROM rows").read_all())


def _rows(table: pa.Table) -> list[Row]:
    """Without the columns that only repeat others: instants as timestamps, and the day of the partition."""
    kept = [field.name for field in table.schema if not pa.types.is_temporal(field.type)]
    rows: list[Row] = table.select(kept).to_pylist()
    return rows


def _quotas(uri: str, version: int) -> Quotas:
    table = DeltaTable(uri, version=version)
    mode = table.metadata().configuration.get("kquota.mode", "enforce")
    return Quotas(tuple(table.to_pyarrow_table().to_pylist()), mode)


def _ledger(paths: Sequence[Path]) -> dict[str, Row]:
    texts = (line for path in paths for line in path.read_text(encoding="utf-8").splitlines())
    return {line["key"]: line for line in map(json.loads, texts)}
