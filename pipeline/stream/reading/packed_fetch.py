"""Brings packed messages of a batch of any size to the driver, some megabytes at a time."""

from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from pipeline.stream.reading.column_cache import select
from pipeline.stream.reading.decode import is_packed
from pipeline.stream.reading.read_part import BYTES_AT_ONCE

_SCHEMA: Final = pa.schema(
    [
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("appended_at_ms", pa.int64()),
    ]
)


def fetch_packed(raw: DataFrame, larger_than_bytes: int) -> Iterator[pa.Table]:
    """Fetch the packed messages above a size, and no others.

    Spark hands over one of its partitions after the other: one partition of the topic, as far as the batch has it. So
    much of a batch is in the driver's memory at a time.

    Args:
        raw: A static frame with the columns `source.RAW_COLUMNS`.
        larger_than_bytes: Exclusive.

    Yields:
        Tables as `read_packed` takes them.
    """
    wanted = raw.filter(is_packed() & (F.octet_length("value") > F.lit(larger_than_bytes)))
    rows: list[Any] = []
    size_bytes = 0
    for row in select(wanted, _columns).toLocalIterator():
        rows.append(row)
        size_bytes += len(row[0])
        if size_bytes >= BYTES_AT_ONCE:
            yield _table(rows)
            rows, size_bytes = [], 0
    if rows:
        yield _table(rows)


def _columns() -> tuple[Column, ...]:
    names = ("value", "topic", "partition", "offset")
    return (*[F.col(name) for name in names], F.unix_millis("timestamp").alias("appended_at_ms"))


def _table(rows: list[Any]) -> pa.Table:
    columns = zip(*rows, strict=True)
    return pa.table([pa.array(column, field.type) for column, field in zip(columns, _SCHEMA, strict=True)], _SCHEMA)
