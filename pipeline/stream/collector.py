"""Collects one micro-batch after the other, each in as many tasks as it is worth."""

from dataclasses import replace
from typing import Final

from pyspark.sql import DataFrame

from pipeline.stream.collect import CollectedBatch, collect
from pipeline.stream.dead_letters import capped

# A second task a core, the shuffle between them and its stage cost some 40 ms; one core reads 10 000 events in that
# time again. Below, one task is quicker; far above, all cores are.
_EVENTS_OF_ONE_TASK: Final = 10_000


class Collector:
    """Remembers how many events a message held, to tell how much work the next batch is before it is read.

    Args:
        sample_window_ms: span of a sample window, > 0.
        dead_letters_per_message: most dead letters of one message, > 0; see `dead_letters.capped`.
    """

    def __init__(self, sample_window_ms: int, dead_letters_per_message: int) -> None:
        self._sample_window_ms = sample_window_ms
        self._dead_letters_per_message = dead_letters_per_message
        self._events_per_message: float | None = None

    def __call__(self, frame: DataFrame, message_count: int | None) -> CollectedBatch:
        """Collect one batch.

        Args:
            frame: Spark's batch of Kafka records.
            message_count: how many offsets it covers; None if that is not known.
        """
        batch = collect(frame, self._sample_window_ms, in_one_task=self.is_small(message_count))
        if message_count:
            self._events_per_message = (batch.good_count + batch.dead_count) / message_count
        return replace(batch, dead_letters=capped(batch.dead_letters, self._dead_letters_per_message))

    def is_small(self, message_count: int | None) -> bool:
        """Whether a batch is for one task: never the first, nor one of unknown size."""
        if message_count is None or self._events_per_message is None:
            return False
        return message_count * max(self._events_per_message, 1.0) <= _EVENTS_OF_ONE_TASK
