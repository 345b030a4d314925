"""Reads a micro-batch of messages into two small Arrow tables on the driver."""

from dataclasses import replace
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from pipeline.stream.reading.aggregate import aggregate
from pipeline.stream.reading.collected_batch import DEAD_LETTER_SCHEMA, USAGE_SCHEMA, CollectedBatch, added_up
from pipeline.stream.reading.dead_letters import capped
from pipeline.stream.reading.decode import CARRIED_COLUMNS, EXEMPT, IGNORED, OFFSET_BITS, REFUSED, decode
from pipeline.stream.reading.driver_reading import MarkedMessage, Reread, read_again
from pipeline.stream.reading.reading_rules import ReadingRules
from pipeline.stream.reading.second_reading import DEAD_LETTER_COLUMNS, decode_again

# A second task needs a shuffle and a stage of its own, about 40 ms. In that time one core reads 10 000 events. So one
# task is quicker for fewer events, and all cores are quicker for many more.
_EVENTS_OF_ONE_TASK: Final = 10_000

# Bounds of what the driver reads again: one message, and all of a batch together. If every message of a batch is
# refused, 160 MB come along.
_CARRIED_BYTES: Final = 16_384
_MESSAGES_OF_DRIVER: Final = 2_000
_BYTES_OF_DRIVER: Final = 1_048_576

_ORDER: Final = [(name, "ascending") for name in ("partition", "offset", "element_index")]


class Collector:
    """Collects one micro-batch after the other, each with as many tasks as its size is worth.

    It estimates the size of the next batch from the number of events per message of the last one.

    Args:
        rules: of the job.
        dead_letters_per_message: largest number of dead letters of one message, > 0; see `dead_letters.capped`.
    """

    def __init__(self, rules: ReadingRules, dead_letters_per_message: int) -> None:
        self._rules = rules
        self._dead_letters_per_message = dead_letters_per_message
        self._events_per_message: float | None = None

    def __call__(self, frame: DataFrame, message_count: int | None) -> CollectedBatch:
        """Collect one batch.

        Args:
            frame: Spark's batch of Kafka records.
            message_count: how many offsets it covers; None if that is not known.
        """
        batch = collect(frame, self._rules, in_one_task=self.is_small(message_count))
        if message_count:
            self._events_per_message = (batch.good_count + batch.dead_count) / message_count
        return replace(batch, dead_letters=capped(batch.dead_letters, self._dead_letters_per_message))

    def is_small(self, message_count: int | None) -> bool:
        """Whether one task is enough for a batch. False for the first batch, and for a batch of unknown size."""
        if message_count is None or self._events_per_message is None:
            return False
        return message_count * max(self._events_per_message, 1.0) <= _EVENTS_OF_ONE_TASK


def collect(raw: DataFrame, rules: ReadingRules, in_one_task: bool = False) -> CollectedBatch:
    """Read, sum and fetch one micro-batch.

    This is one Spark job if nothing is refused, or if what is refused can be read on the driver (`driver_reading`).
    Otherwise a second job reads messages with faults again, so `raw` must give the same rows each time. A Kafka
    micro-batch does, or it fails because its offsets are gone.

    Args:
        raw: a static frame with the columns `source.RAW_COLUMNS`, as `foreachBatch` hands it over.
        rules: of the job.
        in_one_task: read and sum in one task, without a shuffle. This is quicker for few events. The values of
            refused messages come along, which for many would be too much.
    """
    raw = raw.coalesce(1) if in_one_task else raw
    carried_bytes = _CARRIED_BYTES if in_one_task else 0
    decoded = decode(raw, rules.max_event_age_ms, carried_bytes)
    groups = aggregate(decoded, rules.sample_window_ms, CARRIED_COLUMNS if carried_bytes else (), "marked").toArrow()
    usages, dead_letters, ignored_count = [_usage(groups)], DEAD_LETTER_SCHEMA.empty_table(), _ignored_count(groups)
    marked = groups.filter(pc.greater_equal(groups["mark"], 0))
    if marked.num_rows:
        reread = read_on_driver(marked, rules) if carried_bytes else None
        if reread is not None:
            usages.append(reread.usage(rules.sample_window_ms))
            ignored_count += reread.ignored_count
            dead_letters = reread.dead_letters()
        left = marked["mark"] if reread is None else pa.chunked_array([reread.left], pa.int64())
        if len(left):
            again = _read_again(raw, left, rules)
            usages.append(_usage(again))
            ignored_count += _ignored_count(again)
            dead_letters = pa.concat_tables([dead_letters, _dead_letters(again)])
    usage = added_up(usages)
    return CollectedBatch(
        usage=usage,
        dead_letters=dead_letters.sort_by(_ORDER),
        good_count=pc.sum(usage["event_count"]).as_py() or 0,
        clamped_count=pc.sum(usage["clamped_count"]).as_py() or 0,
        ignored_count=ignored_count,
        dead_count=dead_letters.num_rows,
        newest_event_ms=pc.max(usage["last_event_ms"]).as_py(),
    )


def read_on_driver(marked: pa.Table, rules: ReadingRules) -> Reread | None:
    """Read marked messages that were carried along; None if they are too many, for Spark to read them all.

    Args:
        marked: the groups of `aggregate` with a mark to read again, with `CARRIED_COLUMNS`.
        rules: of the job.
    """
    if marked.num_rows > _MESSAGES_OF_DRIVER or marked["carried"].nbytes > _BYTES_OF_DRIVER:
        return None
    messages = [
        MarkedMessage(mark, topic, appended_at_ms, value, count)
        for mark, topic, appended_at_ms, value, count in zip(
            *(marked[name].to_pylist() for name in ("mark", "topic", "appended_at_ms", "carried", "event_count")),
            strict=True,
        )
    ]
    return read_again(messages, rules.max_event_age_ms)


def _read_again(raw: DataFrame, marks: pa.ChunkedArray, rules: ReadingRules) -> pa.Table:
    """Read marked messages again from the topic."""
    place = pc.shift_right(marks, OFFSET_BITS)
    messages = pa.table(
        {
            "partition": pc.shift_right(place, 1).cast(pa.int32()),
            "offset": pc.bit_wise_and(marks, 2**OFFSET_BITS - 1),
            "unread": pc.equal(pc.bit_wise_and(place, 1), 1),
        }
    )
    decoded = decode_again(raw, raw.sparkSession.createDataFrame(messages), rules.max_event_age_ms)
    return aggregate(decoded, rules.sample_window_ms, DEAD_LETTER_COLUMNS).toArrow()


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


def _ignored_count(groups: pa.Table) -> int:
    ignored = groups.filter(pc.equal(groups["mark"], IGNORED))
    return int(pc.sum(ignored["event_count"]).as_py() or 0)


def _dead_letters(groups: pa.Table) -> pa.Table:
    refused = groups.filter(pc.equal(groups["mark"], REFUSED))
    return refused.select(DEAD_LETTER_SCHEMA.names).cast(DEAD_LETTER_SCHEMA)
