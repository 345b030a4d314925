"""Reads a micro-batch of messages into two small Arrow tables on the driver."""

from dataclasses import replace
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from pipeline.stream.reading.aggregate import aggregate
from pipeline.stream.reading.collected_batch import DEAD_LETTER_SCHEMA, USAGE_SCHEMA, CollectedBatch, added_up
from pipeline.stream.reading.decode import EXEMPT, FOREIGN, IGNORED, OFFSET_BITS, PACKED, REFUSED, decode
from pipeline.stream.reading.others_usage import OthersUsage, newest
from pipeline.stream.reading.packed_fetch import fetch_packed
from pipeline.stream.reading.packed_messages import read_packed
from pipeline.stream.reading.read_part import ReadPart, put_together
from pipeline.stream.reading.reading_rules import ReadingRules
from pipeline.stream.reading.second_reading import DEAD_LETTER_COLUMNS, decode_again
from pipeline.stream.reading.small_batch import fetch, read_small_batch

EVENTS_OF_DRIVER: Final = 300_000
"""Up to here one core of the driver reads a batch quicker than two of Spark, and the messages fit into memory twice."""

# Most messages of a batch, and the largest message that is then fetched. Few sizes: each is a plan that Spark compiles.
_LARGEST_BYTES: Final = (
    (1_000, 131_072),
    (3_000, 43_690),
    (8_000, 16_384),
    (30_000, 4_369),
    (100_000, 1_310),
    (EVENTS_OF_DRIVER, 436),
)

_ORDER: Final = [(name, "ascending") for name in ("partition", "offset", "element_index")]


def collect(raw: DataFrame, rules: ReadingRules) -> CollectedBatch:
    """Read, sum and fetch one micro-batch with all cores.

    This is one Spark job if nothing is refused or packed. Otherwise a second job reads messages with faults again, and
    a third brings the packed ones to the driver, so `raw` must give the same rows each time. A Kafka micro-batch does,
    or it fails because its offsets are gone.

    Args:
        raw: a static frame with the columns `source.RAW_COLUMNS`, as `foreachBatch` hands it over.
        rules: of the job.
    """
    groups = aggregate(decode(raw, rules.max_event_age_ms), rules).toArrow()
    marks = groups["mark"].filter(pc.greater_equal(groups["mark"], 0))
    parts = [_part(groups)]
    if pc.any(pc.equal(groups["mark"], PACKED)).as_py():
        parts.append(_read_packed(raw, rules))
    if not len(marks):
        return batch_of(*parts)
    place = pc.shift_right(marks, OFFSET_BITS)
    messages = pa.table(
        {
            "partition": pc.shift_right(place, 1).cast(pa.int32()),
            "offset": pc.bit_wise_and(marks, 2**OFFSET_BITS - 1),
            "unread": pc.equal(pc.bit_wise_and(place, 1), 1),
        }
    )
    return batch_of(*parts, _read_again(raw, messages, rules))


def collect_on_driver(raw: DataFrame, rules: ReadingRules, message_count: int) -> CollectedBatch:
    """Do what `collect` does, with the same result: fetch the messages, and read and sum them on the driver.

    This is one small Spark job. A second one reads messages of which the driver can not be sure that it reads them as
    Spark does, and those that are too large to fetch.

    Args:
        raw: As in `collect`.
        rules: As in `collect`.
        message_count: How many offsets the batch covers, at most 300 000.
    """
    most_bytes = largest_bytes(message_count)
    read = read_small_batch(fetch(raw, most_bytes), rules)
    parts = [read.part]
    if read.packed_left:
        parts.append(_read_packed(raw, rules, most_bytes))
    if not read.left:
        return batch_of(*parts)
    messages = pa.table(
        {
            "partition": pa.array([message.partition for message in read.left], pa.int32()),
            "offset": pa.array([message.offset for message in read.left], pa.int64()),
            "unread": pa.array([True] * len(read.left)),
        }
    )
    return batch_of(*parts, _read_again(raw, messages, rules))


def largest_bytes(message_count: int) -> int:
    """The largest message that is fetched with so many others, 300 000 at most. A batch is at most 131 MB."""
    return next(size_bytes for most, size_bytes in _LARGEST_BYTES if message_count <= most)


def batch_of(*parts: ReadPart) -> CollectedBatch:
    """A batch of which these parts, and nothing else, were read."""
    whole = put_together(parts)
    usage, letters = whole.usage, whole.dead_letters
    return CollectedBatch(
        usage=usage,
        dead_letters=letters.sort_by(_ORDER),
        good_count=pc.sum(usage["event_count"]).as_py() or 0,
        clamped_count=pc.sum(usage["clamped_count"]).as_py() or 0,
        ignored_count=whole.ignored_count,
        dead_count=letters.num_rows,
        newest_event_ms=newest([pc.max(usage["last_event_ms"]).as_py(), whole.others.newest_event_ms]),
        others_count=whole.others.event_count,
        size_bytes=whole.size_bytes,
        packed_event_count=whole.packed_event_count,
    )


def _read_again(raw: DataFrame, messages: pa.Table, rules: ReadingRules) -> ReadPart:
    """Read messages again from the topic: `partition`, `offset`, and whether nothing of it was counted (`unread`)."""
    decoded = decode_again(raw, raw.sparkSession.createDataFrame(messages), rules.max_event_age_ms)
    groups = aggregate(decoded, rules, DEAD_LETTER_COLUMNS).toArrow()
    return replace(_part(groups), dead_letters=_dead_letters(groups))


def _read_packed(raw: DataFrame, rules: ReadingRules, larger_than_bytes: int = -1) -> ReadPart:
    """Read the packed messages above a size; the driver has one partition of the batch in its memory at a time."""
    return put_together(put_together([read_packed(part, rules)]) for part in fetch_packed(raw, larger_than_bytes))


def _part(groups: pa.Table) -> ReadPart:
    """What Spark has summed; the dead letters of its first reading are not known yet."""
    return ReadPart(usage=_usage(groups), others=_others(groups), ignored_count=_ignored_count(groups))


def _usage(groups: pa.Table) -> pa.Table:
    marks = groups["mark"]
    charged = groups if marks.null_count == len(marks) else groups.filter(marks.is_null())
    exempt = groups.filter(pc.equal(marks, EXEMPT))
    io_time_ns, network_time_ns = exempt["io_time_ns"], exempt["network_time_ns"]
    # A null measure adds nothing. The sum is null only if both are.
    exempt_time_ns = pc.coalesce(pc.add(io_time_ns, network_time_ns), io_time_ns, network_time_ns)
    nothing = pa.nulls(exempt.num_rows, pa.int64())
    exempt = exempt.drop_columns(["io_time_ns", "network_time_ns"])
    for name, column in (("io_time_ns", nothing), ("network_time_ns", nothing), ("exempt_time_ns", exempt_time_ns)):
        exempt = exempt.append_column(name, column)
    charged = charged.append_column("exempt_time_ns", pa.nulls(charged.num_rows, pa.int64()))
    return added_up([table.select(USAGE_SCHEMA.names).cast(USAGE_SCHEMA) for table in (charged, exempt)])


def _others(groups: pa.Table) -> OthersUsage:
    foreign = groups.filter(pc.equal(groups["mark"], FOREIGN))
    newest_event_ms = pc.max(foreign["last_event_ms"]).as_py()
    return OthersUsage(pc.sum(foreign["event_count"]).as_py() or 0, newest_event_ms)


def _ignored_count(groups: pa.Table) -> int:
    ignored = groups.filter(pc.equal(groups["mark"], IGNORED))
    return int(pc.sum(ignored["event_count"]).as_py() or 0)


def _dead_letters(groups: pa.Table) -> pa.Table:
    refused = groups.filter(pc.equal(groups["mark"], REFUSED))
    return refused.select(DEAD_LETTER_SCHEMA.names).cast(DEAD_LETTER_SCHEMA)
