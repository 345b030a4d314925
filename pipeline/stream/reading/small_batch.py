"""Reads a small micro-batch on the driver: Spark fetches its messages, and needs no plan for what is in them.

For some thousand events Spark's planning costs more than the events, and up to some hundred thousand msgspec on one
core is quicker than Spark on two. Messages of good events are read by `strict_reader`. Of those that it hands back,
`no_json` finds what is no JSON at first sight, `driver_reading` reads all others, with causes, and Spark what that
leaves. Packed messages are read by `packed_messages`, for which Spark has no words.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from pipeline import garbage_collector
from pipeline.stream.reading.column_cache import select
from pipeline.stream.reading.decode import is_packed
from pipeline.stream.reading.driver_reading import Message, Reread, read_again
from pipeline.stream.reading.event_columns import EventTimes, usage_of
from pipeline.stream.reading.no_json import is_surely_no_json, letters_of
from pipeline.stream.reading.packed_messages import read_packed
from pipeline.stream.reading.read_part import BYTES_AT_ONCE, ReadPart, put_together
from pipeline.stream.reading.reading_rules import ReadingRules
from pipeline.stream.reading.strict_reader import read_strictly

# Bounds of what is read with causes: 2 to 5 µs for a message, and 5 µs for an element of an array, of which no message
# has more than commas, plus one. Spark takes several times as long.
_COMMAS_WITH_CAUSES: Final = 500_000
_BYTES_WITH_CAUSES: Final = 67_108_864

# Arrow groups many rows at once quicker than few rows often; so many take 40 MB.
_EVENTS_AT_ONCE: Final = 262_144


@dataclass(frozen=True, slots=True)
class SmallBatch:
    """What the driver has read of a batch, and what it has left.

    Attributes:
        part: What it has read.
        left: Messages that Spark must read.
        packed_left: Whether there are packed messages that were too large to fetch.
    """

    part: ReadPart
    left: Sequence[Message]
    packed_left: bool


def fetch(raw: DataFrame, largest_bytes: int) -> pa.Table:
    """Fetch the messages of a batch as they are.

    A task waits for the broker most of its time, so there are as many as there are cores, and no more.

    Args:
        raw: A static frame with the columns `source.RAW_COLUMNS`.
        largest_bytes: A larger value stays where it is. Each other number here makes Spark compile the plan again.

    Returns:
        One row per message: `value` BINARY, null for one that is null or too large; `size_bytes` INT, null for a null
        value; `is_packed` BOOLEAN; `topic`, `partition`, `offset`, and `appended_at_ms` BIGINT.
    """
    cores = raw.sparkSession.sparkContext.defaultParallelism
    return select(raw.coalesce(cores), _columns, largest_bytes).toArrow()


def read_small_batch(messages: pa.Table, rules: ReadingRules) -> SmallBatch:
    """Read the messages of a batch.

    Args:
        messages: As `fetch` returns them.
        rules: Of the job.
    """
    with garbage_collector.paused():
        found = [ReadPart()]
        left: list[Message] = []
        for begin, end in _parts(messages["size_bytes"].fill_null(0).to_numpy()):
            parts, unread = _read(messages.slice(begin, end - begin), rules)
            found += parts
            left += unread
            if sum(part.usage.num_rows for part in found[1:]) >= _EVENTS_AT_ONCE:
                found = [put_together(found)]
        again = _with_causes(left, rules)
        packed_left = bool(pc.any(pc.and_(messages["is_packed"], messages["value"].is_null())).as_py())
        return SmallBatch(put_together([*found, again.part(rules)]), again.left, packed_left)


def _read(messages: pa.Table, rules: ReadingRules) -> tuple[list[ReadPart], list[Message]]:
    """What the quick ways read, and the messages that they leave."""
    sizes, null_count = messages["size_bytes"], messages["size_bytes"].null_count
    known = ReadPart(
        ignored_count=null_count,
        size_bytes=int(pc.sum(sizes).as_py() or 0),
    )
    found = [known]
    if pc.any(messages["is_packed"]).as_py():
        found.append(read_packed(messages.filter(pc.and_(messages["is_packed"], messages["value"].is_valid())), rules))
        messages = messages.filter(pc.invert(messages["is_packed"]))
    read = [None if value is None else read_strictly(value) for value in messages["value"].to_pylist()]
    events, times = _without_old(read, messages["appended_at_ms"].to_numpy(), rules.max_event_age_ms)
    found.append(replace(usage_of(events, times, rules), ignored_count=sum(one == [] for one in read)))
    is_left = pc.and_(pa.array([one is None for one in read], pa.bool_()), messages["size_bytes"].is_valid())
    left = messages.filter(is_left)
    is_no_json = is_surely_no_json(left["value"])
    found.append(ReadPart(dead_letters=letters_of(left.filter(is_no_json))))
    return found, _messages(left.filter(pc.invert(is_no_json)))


def _parts(size_bytes: npt.NDArray[np.int32]) -> Iterator[tuple[int, int]]:
    """Runs of messages, as (begin, end), that are read at once: more would only take more memory."""
    number = np.cumsum(size_bytes, dtype=np.int64) // BYTES_AT_ONCE
    begins = np.flatnonzero(np.diff(number, prepend=-1)).tolist()
    return zip(begins, [*begins, len(size_bytes)][1:], strict=True)


def _columns(largest_bytes: int) -> tuple[Column, ...]:
    size_bytes = F.octet_length("value")
    return (
        F.when(size_bytes <= largest_bytes, F.col("value")).alias("value"),
        size_bytes.alias("size_bytes"),
        F.coalesce(is_packed(), F.lit(False)).alias("is_packed"),
        F.col("topic"),
        F.col("partition"),
        F.col("offset"),
        F.unix_millis("timestamp").alias("appended_at_ms"),
    )


def _without_old(
    read: list[list[Any] | None], appended_at_ms: npt.NDArray[np.int64], max_event_age_ms: int
) -> tuple[list[Any], EventTimes]:
    """The events of all messages, and their times. Messages with an event too old become None in `read`."""
    while True:
        events = [event for found in read if found for event in found]
        places = np.repeat(np.arange(len(read)), [len(found) if found else 0 for found in read])
        times = EventTimes.of(events, appended_at_ms[places])
        old = times.sent_ms < times.appended_at_ms - max_event_age_ms
        if not old.any():
            return events, times
        for place in np.unique(places[old]).tolist():
            read[place] = None


def _with_causes(messages: list[Message], rules: ReadingRules) -> Reread:
    values = [message.value or b"" for message in messages]
    is_too_much = (
        sum(map(len, values)) > _BYTES_WITH_CAUSES
        or sum(value.count(b",") for value in values if not value.startswith(b"{")) > _COMMAS_WITH_CAUSES
    )
    return Reread(left=messages) if is_too_much else read_again(messages, rules.max_event_age_ms)


def _messages(table: pa.Table) -> list[Message]:
    names = ("topic", "partition", "offset", "appended_at_ms", "value")
    return list(map(Message, *(table[name].to_pylist() for name in names)))
