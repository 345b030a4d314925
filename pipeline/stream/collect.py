"""Reads a micro-batch of messages into two small Arrow tables on the driver."""

from dataclasses import replace
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from pipeline.stream.aggregate import aggregate
from pipeline.stream.collected_batch import DEAD_LETTER_SCHEMA, USAGE_SCHEMA, CollectedBatch, added_up
from pipeline.stream.dead_letters import capped
from pipeline.stream.decode import EXEMPT, IGNORED, OFFSET_BITS, REFUSED, decode
from pipeline.stream.reading_rules import ReadingRules
from pipeline.stream.second_reading import DEAD_LETTER_COLUMNS, decode_again

# A second task needs a shuffle and a stage of its own, about 40 ms. In that time one core reads 10 000 events. So one
# task is quicker for fewer events, and all cores are quicker for many more.
_EVENTS_OF_ONE_TASK: Final = 10_000


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

    This is one Spark job if nothing is refused. Otherwise a second job reads the messages with faults again, so `raw`
    must give the same rows each time. A Kafka micro-batch does, or it fails because its offsets are gone.

    Args:
        raw: a static frame with the columns `source.RAW_COLUMNS`, as `foreachBatch` hands it over.
        rules: of the job.
        in_one_task: read and sum in one task, without a shuffle. This is quicker for few events.
    """
    raw = raw.coalesce(1) if in_one_task else raw
    groups = aggregate(decode(raw, rules.max_event_age_ms), rules.sample_window_ms).toArrow()
    usage, ignored_count = _usage(groups), _ignored_count(groups)
    dead_letters = DEAD_LETTER_SCHEMA.empty_table()
    marks = groups.filter(pc.greater_equal(groups["mark"], 0))["mark"]
    if len(marks):
        again = _read_again(raw, marks, rules)
        usage = added_up([usage, _usage(again)])
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


def _read_again(raw: DataFrame, marks: pa.ChunkedArray, rules: ReadingRules) -> pa.Table:
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
    order = [(name, "ascending") for name in ("partition", "offset", "element_index")]
    return refused.select(DEAD_LETTER_SCHEMA.names).cast(DEAD_LETTER_SCHEMA).sort_by(order)
