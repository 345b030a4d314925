"""Chooses who reads each micro-batch: the driver, or Spark with all cores."""

from dataclasses import replace
from typing import Final

from pyspark.sql import DataFrame

from pipeline.stream.reading.collect import EVENTS_OF_DRIVER, collect, collect_on_driver, largest_bytes
from pipeline.stream.reading.collected_batch import CollectedBatch
from pipeline.stream.reading.dead_letters import capped
from pipeline.stream.reading.reading_rules import ReadingRules
from quota.shares import Share

# An event of a packed message costs the driver less than this share of one in JSON; see docs/bench/packed.md.
_PACKED_SHARE: Final = 0.3
# Of a batch whose messages nobody has seen yet: what a meter sends at once.
_EVENTS_PER_MESSAGE: Final = 100.0
_BYTES_PER_EVENT: Final = 200.0
# Messages are not all as large as their mean.
_LARGER: Final = 1.25


class Collector:
    """Collects one micro-batch after the other: a small one on the driver, any other with all cores of Spark.

    It estimates the next batch from the messages of the last one: how many events they have, and how large they are.
    Packed messages are read on the driver in any case, of a large batch part by part.

    Args:
        rules: of the job. Dead letters, and the counts of refused and ignored messages, are the first share's alone.
        dead_letters_per_message: largest number of dead letters of one message, > 0; see `dead_letters.capped`.
    """

    def __init__(self, rules: ReadingRules, dead_letters_per_message: int) -> None:
        self._rules = rules
        self._dead_letters_per_message = dead_letters_per_message
        self._events_per_message = _EVENTS_PER_MESSAGE
        self._bytes_per_event = _BYTES_PER_EVENT

    def __call__(self, frame: DataFrame, message_count: int | None) -> CollectedBatch:
        """Collect one batch.

        Args:
            frame: Spark's batch of Kafka records.
            message_count: how many offsets it covers; None if that is not known.
        """
        if self.is_small(message_count):
            batch = collect_on_driver(frame, self._rules, message_count or 0)
        else:
            batch = collect(frame, self._rules)
        if message_count:
            self._learn(batch, message_count)
        return for_share(batch, self._rules.share, self._dead_letters_per_message)

    def is_small(self, message_count: int | None) -> bool:
        """Whether the driver reads a batch. False for a batch of unknown size, and if its messages are too large."""
        if message_count is None:
            return False
        events_per_message = max(self._events_per_message, 1.0)
        if message_count * events_per_message > EVENTS_OF_DRIVER:
            return False
        return events_per_message * self._bytes_per_event * _LARGER <= largest_bytes(message_count)

    def _learn(self, batch: CollectedBatch, message_count: int) -> None:
        event_count = batch.good_count + batch.others_count + batch.dead_count
        weighed_count = event_count - (1 - _PACKED_SHARE) * batch.packed_event_count
        self._events_per_message = weighed_count / message_count
        if batch.size_bytes:
            self._bytes_per_event = batch.size_bytes / max(weighed_count, message_count)
        else:  # Spark has read the messages and does not tell it: what was learned of others counts less and less
            self._bytes_per_event = (self._bytes_per_event + _BYTES_PER_EVENT) / 2


def for_share(batch: CollectedBatch, share: Share, dead_letters_per_message: int) -> CollectedBatch:
    """What a job keeps of a batch: all shards read the same faults, the first one writes them.

    Args:
        batch: Of all messages, with the usage of the share's own users.
        share: Of the job.
        dead_letters_per_message: See `dead_letters.capped`.
    """
    if share.number:
        return replace(batch, dead_letters=batch.dead_letters.slice(0, 0), dead_count=0, ignored_count=0)
    return replace(batch, dead_letters=capped(batch.dead_letters, dead_letters_per_message))
