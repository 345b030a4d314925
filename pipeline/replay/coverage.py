"""Which part of a range the stored usage covers."""

from dataclasses import dataclass
from typing import Final

from pipeline.replay.usage_batches import Source
from pipeline.tables.address import table_uri
from pipeline.tables.reading.column_range import newest_value, oldest_value

_SECOND_MS: Final = 1_000


@dataclass(frozen=True, slots=True)
class Coverage:
    """The covered part of a range. Both ends lie in the range.

    Attributes:
        since_ms: Inclusive.
        until_ms: Exclusive.
    """

    since_ms: int
    until_ms: int

    @classmethod
    def of(cls, root: str, source: Source, since_ms: int, until_ms: int) -> "Coverage":
        """The covered part of a range, by the statistics of the tables; no data file is read.

        It begins with the oldest row of usage. It ends after the newest row; or after the newest throttle record, if
        that is later and no newer usage is waiting to be rolled up: the job was at work then, and there was no usage.

        Args:
            root: Of the tables.
            source: The table that is replayed.
            since_ms: Begin of the range, inclusive.
            until_ms: End of the range, exclusive.

        Returns:
            The whole range if the table has no rows or is missing, so that reading it says which.
        """
        uri, column = table_uri(root, source), "second_start_ms" if source == "usage_by_second" else "evaluated_at_ms"
        first_ms, last_ms = oldest_value(uri, column), newest_value(uri, column)
        if first_ms is None or last_ms is None:
            return cls(since_ms, until_ms)
        end_ms = last_ms + (_SECOND_MS if source == "usage_by_second" else 1)
        newest_usage_ms = newest_value(table_uri(root, "usage"), "last_event_ms")
        if newest_usage_ms is not None and newest_usage_ms < end_ms:
            end_ms = max(end_ms, (newest_value(table_uri(root, "throttle_events"), "evaluated_at_ms") or 0) + 1)
        start_ms = min(max(since_ms, first_ms), until_ms)
        return cls(start_ms, max(min(until_ms, end_ms), start_ms))
