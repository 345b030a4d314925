"""What the verifier judges: what is on the topics and in the tables, as plain values, cut into micro-batches.

Reads with the Kafka and Delta libraries alone; nothing of the system under test is imported.
"""

import json
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder

from tests.faults.verdict import Verdict
from tests.topic_reading import read_topic

Row = dict[str, Any]
Version = tuple[int, int]
"""Of the quotas, and of the tenants; −1 without a table of tenants."""
TABLES = ("usage", "batches", "decisions", "dead_letters", "throttle_events", "sensor_state")


@dataclass(frozen=True, slots=True)
class Message:
    partition: int
    offset: int
    appended_at_ms: int
    key: bytes | None
    value: bytes | None


@dataclass(frozen=True, slots=True)
class Quotas:
    rows: tuple[Row, ...]
    mode: str
    tenants: tuple[Row, ...] = ()


@dataclass
class Evidence:
    """All that a verdict is based on.

    Attributes:
        usage_topic: Its name.
        messages: All committed records of the usage topic, by partition and offset.
        records: Values of all committed records of the throttle topic, those of a partition in their order, each with
            its key and partition as `"key"` and `"partition"`.
        tables: Rows by table.
        quotas: Quotas and tenants by their versions, from the oldest that a row names to the newest.
        scope: Of the quota table: cluster or broker.
        starts: When a driver took over the running throttles, epoch milliseconds by its wall clock; None: not known.
            If its wall clock was set, by the first one: as if it had not been set.
        moved: Of each start, how far the wall clock was from the first one, and the first `publish_seq` after it;
            nothing if the clock was never set. Rows of `batches` and `throttle_events` then have a column `moved_ms`.
    """

    usage_topic: str
    messages: list[Message]
    records: list[Row]
    tables: dict[str, list[Row]]
    quotas: dict[Version, Quotas]
    scope: str = "cluster"
    starts: list[int] | None = None
    moved: Sequence[tuple[int, int]] = ()


def gather(root: str, bootstrap_servers: str, usage_topic: str, throttle_topic: str) -> Evidence:
    messages = [
        Message(record.partition, record.offset, record.timestamp, record.key, record.value)
        for record in read_topic(bootstrap_servers, usage_topic)
    ]
    records = [
        {**json.loads(record.value), "key": json.loads(record.key), "partition": record.partition}
        for record in read_topic(bootstrap_servers, throttle_topic)
    ]
    messages.sort(key=lambda message: (message.partition, message.offset))
    return evidence_of(root, usage_topic, messages, records)


def evidence_of(
    root: str,
    usage_topic: str,
    messages: list[Message],
    records: list[Row],
    stored: Mapping[str, pa.Table] | None = None,
    edits: Mapping[Version, Quotas] | None = None,
) -> Evidence:
    """What is on the topics, with what is in the tables.

    Args:
        stored: Rows by table, for a job that keeps them elsewhere than under the root.
        edits: Quotas and tenants by their versions, for a job that keeps them elsewhere, too.
    """
    tables = {name: _rows(stored[name] if stored else _read(f"{root}/{name}")) for name in TABLES}
    named = {version_of(row) for name in ("batches", "throttle_events") for row in tables[name]}
    return Evidence(
        usage_topic=usage_topic,
        messages=messages,
        records=records,
        tables=tables,
        quotas=dict(edits or _quotas_since(root, min(named, default=(0, 0))[0])),
        scope="cluster" if edits else _scope_of(root),
    )


def _scope_of(root: str) -> str:
    return DeltaTable(f"{root}/quotas").metadata().configuration.get("kquota.scope", "cluster")


def _read(uri: str) -> pa.Table:
    """All rows; by a query, which reads thousands of small files three times as fast as a dataset does."""
    return pa.table(QueryBuilder().register("rows", DeltaTable(uri)).execute("SELECT * FROM rows").read_all())


def _rows(table: pa.Table) -> list[Row]:
    """Without the columns that only repeat others: instants as timestamps, and the day of the partition."""
    kept = [field.name for field in table.schema if not pa.types.is_temporal(field.type)]
    rows: list[Row] = table.select(kept).to_pylist()
    return rows


def version_of(row: Row) -> Version:
    """The quotas and tenants that a row is based on."""
    return int(row["quota_version"]), int(row["tenants_version"])


def _quotas_since(root: str, oldest: int) -> dict[Version, Quotas]:
    """Each version of the quotas from the oldest on with each one of the tenants."""
    quotas = {number: _table_at(f"{root}/quotas", number) for number in _numbers(f"{root}/quotas", max(oldest, 0))}
    tenants = {number: _table_at(f"{root}/tenants", number)[0] for number in _numbers(f"{root}/tenants", 0)}
    return {
        (number, other): Quotas(rows, mode, of_tenants)
        for number, (rows, mode) in quotas.items()
        for other, of_tenants in {-1: (), **tenants}.items()
    }


def _numbers(uri: str, oldest: int) -> range:
    return range(oldest, DeltaTable(uri).version() + 1) if DeltaTable.is_deltatable(uri) else range(0)


def _table_at(uri: str, version: int) -> tuple[tuple[Row, ...], str]:
    table = DeltaTable(uri, version=version)
    mode = table.metadata().configuration.get("kquota.mode", "enforce")
    return tuple(table.to_pyarrow_table().to_pylist()), mode


Offsets = dict[int, int]


@dataclass(frozen=True, slots=True)
class Batch:
    """One row of `batches` with the messages it covers."""

    row: Row
    messages: tuple[Message, ...]

    @property
    def key(self) -> tuple[str, int]:
        return self.row["query_id"], self.row["batch_id"]

    @property
    def evaluated_at_ms(self) -> int:
        return int(self.row["evaluated_at_ms"])

    @property
    def processed_at_ms(self) -> int:
        return int(self.row["processed_at_ms"])

    @property
    def steady_ms(self) -> int:
        """The same by the driver's first clock, as if it had never been set."""
        return self.processed_at_ms - int(self.row.get("moved_ms", 0))

    @property
    def age_ms(self) -> int:
        """How old its usage was when it was collected."""
        return self.processed_at_ms - self.evaluated_at_ms

    @property
    def time_epoch(self) -> int:
        return int(self.row["time_epoch"])

    @property
    def version(self) -> Version:
        return version_of(self.row)


def cut(rows: Iterable[Row], messages: list[Message], topic: str, verdict: Verdict) -> list[Batch]:
    """Batches in the order they were worked on; checks that they cover the topic once, without gap or overlap."""
    ordered = _in_order(rows, verdict)
    by_partition: dict[int, list[Message]] = {}
    for message in messages:
        by_partition.setdefault(message.partition, []).append(message)
    reached: Offsets = {}
    batches = []
    covered: list[tuple[int, int]] = []
    for row in ordered:
        start, end = _offsets(row["start_offsets"], topic), _offsets(row["end_offsets"], topic)
        for partition, offset in start.items():
            text = f"batch {row['batch_id']} begins at {partition}:{offset}; the one before ended at {reached}"
            verdict.deny("batches", reached.get(partition, 0) != offset, text)
        first = {partition: start.get(partition, reached.get(partition, 0)) for partition in end}
        own = tuple(
            message
            for partition, offset in end.items()
            for message in _between(by_partition.get(partition, []), first[partition], offset)
        )
        covered += [(message.partition, message.offset) for message in own]
        batches.append(Batch(row, own))
        reached = {**reached, **end}
    verdict.once_each("messages", ((message.partition, message.offset) for message in messages), covered)
    return batches


def _between(messages: list[Message], first: int, end: int) -> list[Message]:
    """Of messages in the order of their offsets those from one offset up to, not including, another."""
    offset = attrgetter("offset")
    return messages[bisect_left(messages, first, key=offset) : bisect_left(messages, end, key=offset)]


def _in_order(rows: Iterable[Row], verdict: Verdict) -> list[Row]:
    by_query: dict[str, list[Row]] = {}
    for row in sorted(rows, key=lambda row: int(row["batch_id"])):
        by_query.setdefault(row["query_id"], []).append(row)
    for query_id, of_query in by_query.items():
        ids = [row["batch_id"] for row in of_query]
        verdict.once_each("batches", ((query_id, n) for n in range(len(set(ids)))), ((query_id, n) for n in ids))
    return list(chain(*sorted(by_query.values(), key=lambda of_query: Batch(of_query[0], ()).steady_ms)))


def _offsets(text: str, topic: str) -> Offsets:
    parsed = json.loads(text) if text else {}
    return {int(partition): int(offset) for partition, offset in parsed.get(topic, {}).items()}
