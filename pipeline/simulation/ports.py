"""The clock, outbox and topic of a simulation: the clock is set by hand, and nothing is stored or sent."""

from collections.abc import Mapping, Sequence

import pyarrow as pa

from pipeline.clock import Moment
from pipeline.throttle.topic import TopicEnd
from schemas.arrow import arrow_schema
from schemas.throttle_record import ThrottleEventRow, ThrottleRecord


class SimulatedClock:
    """`pipeline.clock.Clock` on event time. Wall time and steady time are the same."""

    def __init__(self, start_ms: int) -> None:
        self.now_ms = start_ms

    def now(self) -> Moment:
        """The instant it was set to."""
        return Moment(self.now_ms, self.now_ms)


class NoOutbox:
    """`pipeline.throttle.outbox.Outbox` of a job that has never run before. It stores nothing."""

    def append(self, rows: pa.Table, versions: Mapping[str, int], metadata: Mapping[str, str]) -> bool:
        """Accept the rows and drop them."""
        del rows, versions, metadata
        return True

    def rows_from(self, publish_seq: int) -> pa.Table:
        """No rows: nothing is stored."""
        del publish_seq
        return arrow_schema(ThrottleEventRow).empty_table()

    def newest(self) -> tuple[int, pa.Table]:
        """No number and no throttles: nothing is stored."""
        return -1, self.rows_from(0)

    def is_fenced(self) -> bool:
        """Nobody else is there."""
        return False


class NoTopic:
    """`pipeline.throttle.topic.ThrottleTopic` that nobody reads."""

    def open(self) -> int | None:
        """No marker."""
        return None

    def publish(self, records: Sequence[ThrottleRecord], marker: int) -> None:
        """Accept the records and drop them."""
        del records, marker

    def end(self) -> TopicEnd:
        """No records."""
        return TopicEnd(-1, "")

    def close(self) -> None:
        """Nothing to close."""
