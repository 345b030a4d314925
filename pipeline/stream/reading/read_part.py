"""What was read of some messages of a micro-batch: whoever reads them, Spark or the driver."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa

from pipeline.stream.reading.collected_batch import DEAD_LETTER_SCHEMA, USAGE_SCHEMA, summed
from pipeline.stream.reading.others_usage import NO_OTHERS, OthersUsage, all_of

BYTES_AT_ONCE: Final = 4_194_304
"""The driver reads messages of so many bytes at once: some 30 000 events in JSON, 20 MB as objects."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadPart:
    """What was read of some messages.

    Attributes:
        usage: `USAGE_SCHEMA`, of the share's own users.
        others: What is kept of others.
        dead_letters: `DEAD_LETTER_SCHEMA`, in no particular order.
        ignored_count: Messages with a null value or without events.
        packed_event_count: Events of packed messages, good and refused.
        size_bytes: Of the messages' values; 0 where it is not known.
        is_summed: Whether the usage has one row per group; else it has one per event.
    """

    usage: pa.Table = field(default_factory=USAGE_SCHEMA.empty_table)
    others: OthersUsage = NO_OTHERS
    dead_letters: pa.Table = field(default_factory=DEAD_LETTER_SCHEMA.empty_table)
    ignored_count: int = 0
    packed_event_count: int = 0
    size_bytes: int = 0
    is_summed: bool = True


def put_together(parts: Iterable[ReadPart]) -> ReadPart:
    """Several parts as one, with summed usage."""
    found = [ReadPart(), *parts]
    usage = pa.concat_tables([part.usage for part in found])
    is_summed = sum(part.usage.num_rows > 0 for part in found) < 2 and all(part.is_summed for part in found)
    return ReadPart(
        usage=usage if is_summed or not usage.num_rows else summed(usage),
        others=all_of(part.others for part in found),
        dead_letters=pa.concat_tables([part.dead_letters for part in found]),
        ignored_count=sum(part.ignored_count for part in found),
        packed_event_count=sum(part.packed_event_count for part in found),
        size_bytes=sum(part.size_bytes for part in found),
    )
