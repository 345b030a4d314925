"""A micro-batch of messages to two small Arrow tables on the driver."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from pipeline.stream.aggregate import GROUP_KEYS, SUMS, aggregate
from pipeline.stream.decode import EXEMPT, IGNORED, OFFSET_BITS, REFUSED, decode
from pipeline.stream.second_reading import DEAD_LETTER_COLUMNS, decode_again

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

    Every element of every message is in exactly one of the counts good and dead, every message without elements in
    one of ignored and dead.

    Attributes:
        usage: `USAGE_SCHEMA`, one row per sample window, broker, user and client-id; in no particular order.
        dead_letters: `DEAD_LETTER_SCHEMA`, one row a refused element or message; ordered by partition, offset and
            element.
        good_count: usage events.
        clamped_count: those of them whose time was after their record's append time.
        ignored_count: messages with a null value or an empty array.
        dead_count: refused elements and messages; rows of `dead_letters`, until those are capped.
        newest_event_ms: largest event time, clamped; None without events.
    """

    usage: pa.Table
    dead_letters: pa.Table
    good_count: int
    clamped_count: int
    ignored_count: int
    dead_count: int
    newest_event_ms: int | None


def collect(raw: DataFrame, sample_window_ms: int, in_one_task: bool = False) -> CollectedBatch:
    """Read, sum and fetch one micro-batch.

    One Spark job for a batch without faults. With faults a second one re-reads the messages concerned, so `raw` must
    give the same rows each time; a Kafka micro-batch does, or fails if its offsets are gone.

    Args:
        raw: a static frame with the columns `source.RAW_COLUMNS`, as `foreachBatch` hands it over.
        sample_window_ms: span of a sample window, > 0.
        in_one_task: read and sum it in one task, without a shuffle: the quicker way for few events.
    """
    raw = raw.coalesce(1) if in_one_task else raw
    groups = aggregate(decode(raw), sample_window_ms).toArrow()
    usage, ignored_count = _usage(groups), _ignored_count(groups)
    dead_letters = DEAD_LETTER_SCHEMA.empty_table()
    marks = groups.filter(pc.greater_equal(groups["mark"], 0))["mark"]
    if len(marks):
        again = _look_again(raw, marks, sample_window_ms)
        usage = _added_up([usage, _usage(again)])
        ignored_count += _ignored_count(again)
        dead_letters = _dead_letters(again)
    return CollectedBatch(
        usage=usage,
        dead_letters=dead_letters,
        good_count=pc.sum(usage["event_count"]).as_py() or 0,
        clamped_count=pc.sum(usage["clamped_count"]).as_py() or 0,
        ignored_count=ignored_count,
        dead_count=dead_letters.num_rows,
        newest_event_ms=pc.max(usage["last_event_ms"]).as_py(),
    )


def _look_again(raw: DataFrame, marks: pa.ChunkedArray, sample_window_ms: int) -> pa.Table:
    place = pc.shift_right(marks, OFFSET_BITS)
    messages = pa.table(
        {
            "partition": pc.shift_right(place, 1).cast(pa.int32()),
            "offset": pc.bit_wise_and(marks, 2**OFFSET_BITS - 1),
            "unread": pc.equal(pc.bit_wise_and(place, 1), 1),
        }
    )
    decoded = decode_again(raw, raw.sparkSession.createDataFrame(messages))
    return aggregate(decoded, sample_window_ms, DEAD_LETTER_COLUMNS).toArrow()


def _usage(groups: pa.Table) -> pa.Table:
    marks = groups["mark"]
    charged = groups if marks.null_count == len(marks) else groups.filter(marks.is_null())
    exempt = groups.filter(pc.equal(marks, EXEMPT))
    io_time_ns, network_time_ns = exempt["io_time_ns"], exempt["network_time_ns"]
    # A measure that is null adds nothing, and both null is null.
    exempt_time_ns = pc.coalesce(pc.add(io_time_ns, network_time_ns), io_time_ns, network_time_ns)
    nothing = pa.nulls(exempt.num_rows, pa.int64())
    exempt = exempt.drop_columns(["io_time_ns", "network_time_ns"])
    for name, column in (("io_time_ns", nothing), ("network_time_ns", nothing), ("exempt_time_ns", exempt_time_ns)):
        exempt = exempt.append_column(name, column)
    charged = charged.append_column("exempt_time_ns", pa.nulls(charged.num_rows, pa.int64()))
    return _added_up([table.select(USAGE_SCHEMA.names).cast(USAGE_SCHEMA) for table in (charged, exempt)])


def _added_up(tables: Sequence[pa.Table]) -> pa.Table:
    """One row a group of several usage tables; a sum stays null only if it is null in all of them."""
    filled = [table for table in tables if table.num_rows]
    if len(filled) < 2:
        return (filled or tables)[0]
    summed = [*[(name, "sum") for name in USAGE_SCHEMA.names[len(GROUP_KEYS) : -1]], ("last_event_ms", "max")]
    merged = pa.concat_tables(filled).group_by(list(GROUP_KEYS)).aggregate(summed)
    names = [name.removesuffix("_sum").removesuffix("_max") for name in merged.column_names]
    return merged.rename_columns(names).cast(USAGE_SCHEMA)


def _ignored_count(groups: pa.Table) -> int:
    ignored = groups.filter(pc.equal(groups["mark"], IGNORED))
    return int(pc.sum(ignored["event_count"]).as_py() or 0)


def _dead_letters(groups: pa.Table) -> pa.Table:
    refused = groups.filter(pc.equal(groups["mark"], REFUSED))
    order = [(name, "ascending") for name in ("partition", "offset", "element_index")]
    return refused.select(DEAD_LETTER_SCHEMA.names).cast(DEAD_LETTER_SCHEMA).sort_by(order)
