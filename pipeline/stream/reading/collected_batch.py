"""What one micro-batch holds: two small Arrow tables on the driver, and counts."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.stream.reading.aggregate import GROUP_KEYS, LARGEST_SUM, SUMS

USAGE_SCHEMA: Final = pa.schema(
    [
        pa.field("sample_start_ms", pa.int64()),
        *[pa.field(name, pa.string()) for name in GROUP_KEYS[1:]],
        *[pa.field(name, pa.int64()) for name in (*SUMS[:4], "exempt_time_ns", *SUMS[4:], "last_event_ms")],
    ]
)
DEAD_LETTER_SCHEMA: Final = pa.schema(
    [
        pa.field("appended_at_ms", pa.int64()),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int64()),
        pa.field("offset", pa.int64()),
        pa.field("element_index", pa.int64()),
        pa.field("cause", pa.string()),
        pa.field("value", pa.binary()),
    ]
)


@dataclass(frozen=True, slots=True)
class CollectedBatch:
    """What one micro-batch holds.

    Every element of every message is in exactly one of the counts good and dead. Every message without elements is in
    exactly one of the counts ignored and dead. With a share of the users, events of others are in `others_count`.

    Attributes:
        usage: `USAGE_SCHEMA`, one row per sample window, broker, user and client-id; in no particular order.
        dead_letters: `DEAD_LETTER_SCHEMA`, one row per refused element or message; ordered by partition, offset and
            element.
        good_count: usage events, of the share's own users.
        clamped_count: usage events whose time was set back; after collection, to their record's append time.
        ignored_count: messages with a null value or an empty array.
        dead_count: refused elements and messages. `dead_letters` may have fewer rows, see `dead_letters.capped`.
        newest_event_ms: largest event time of all users, clamped; None without events.
        packed_event_count: events of packed messages, good and refused.
        others_count: events of users of other shares.
        size_bytes: of the messages' values; 0 where that is not known.
    """

    usage: pa.Table
    dead_letters: pa.Table
    good_count: int
    clamped_count: int
    ignored_count: int
    dead_count: int
    newest_event_ms: int | None
    packed_event_count: int = 0
    others_count: int = 0
    size_bytes: int = 0


def added_up(tables: Sequence[pa.Table]) -> pa.Table:
    """Put usage tables together, one row per group.

    Args:
        tables: at least one, each of `USAGE_SCHEMA` with one row per group.

    Returns:
        `USAGE_SCHEMA`, summed as `summed` does.
    """
    filled = [table for table in tables if table.num_rows]
    return summed(pa.concat_tables(filled)) if len(filled) > 1 else (filled or tables)[0]


def summed(usage: pa.Table) -> pa.Table:
    """Sum rows of the same group.

    Args:
        usage: `USAGE_SCHEMA`; a group may have many rows.

    Returns:
        `USAGE_SCHEMA`, one row per group. A sum is null only if it is null in every row. A sum above `LARGEST_SUM` is
        cut to it, as in `aggregate`.
    """
    names = USAGE_SCHEMA.names[len(GROUP_KEYS) : -1]
    # As doubles: they are exact up to the largest sum, and do not overflow above it.
    doubles = usage.cast(pa.schema([_double(field) if field.name in names else field for field in USAGE_SCHEMA]))
    aggregations = [*[(name, "sum") for name in names], ("last_event_ms", "max")]
    grouped = doubles.group_by(list(GROUP_KEYS)).aggregate(aggregations)
    columns = [grouped[name] for name in GROUP_KEYS]
    columns += [_cut_off(grouped[f"{name}_sum"]) for name in names]
    return pa.table([*columns, grouped["last_event_ms_max"]], schema=USAGE_SCHEMA)


def _double(field: pa.Field) -> pa.Field:
    return field.with_type(pa.float64())


def _cut_off(sums: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.min_element_wise(sums, float(LARGEST_SUM), skip_nulls=False).cast(pa.int64())
