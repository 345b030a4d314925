"""What one micro-batch holds: two small Arrow tables on the driver, and counts."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from pipeline.stream.aggregate import GROUP_KEYS, SUMS

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
    exactly one of the counts ignored and dead.

    Attributes:
        usage: `USAGE_SCHEMA`, one row per sample window, broker, user and client-id; in no particular order.
        dead_letters: `DEAD_LETTER_SCHEMA`, one row per refused element or message; ordered by partition, offset and
            element.
        good_count: usage events.
        clamped_count: usage events whose time was after their record's append time.
        ignored_count: messages with a null value or an empty array.
        dead_count: refused elements and messages. `dead_letters` may have fewer rows, see `dead_letters.capped`.
        newest_event_ms: largest event time, clamped; None without events.
    """

    usage: pa.Table
    dead_letters: pa.Table
    good_count: int
    clamped_count: int
    ignored_count: int
    dead_count: int
    newest_event_ms: int | None


def added_up(tables: Sequence[pa.Table]) -> pa.Table:
    """Put usage tables together, one row per group.

    Args:
        tables: at least one, each of `USAGE_SCHEMA` with one row per group.

    Returns:
        `USAGE_SCHEMA`. A sum is null only if it is null in every table.
    """
    filled = [table for table in tables if table.num_rows]
    if len(filled) < 2:
        return (filled or tables)[0]
    summed = [*[(name, "sum") for name in USAGE_SCHEMA.names[len(GROUP_KEYS) : -1]], ("last_event_ms", "max")]
    merged = pa.concat_tables(filled).group_by(list(GROUP_KEYS)).aggregate(summed)
    names = [name.removesuffix("_sum").removesuffix("_max") for name in merged.column_names]
    return merged.rename_columns(names).cast(USAGE_SCHEMA)
