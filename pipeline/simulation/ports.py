"""The clock, outbox and topic of a simulation: time stands still until it is moved, and nothing is kept or sent."""

from collections.abc import Mapping, Sequence

import pyarrow as pa

from pipeline.clock import Moment
from schemas.arrow import arrow_schema
from schemas.throttle_event_row import ThrottleEventRow
from schemas.throttle_record import ThrottleRecord


class SimulatedClock:
    """`pipeline.clock.Clock` on event time; wall and steady time are one."""

    def __init__(self, start_ms: int) -> None:
        self.now_ms = start_ms

    def now(self) -> Moment:
        """The instant it was moved to."""
        return Moment(self.now_ms, self.now_ms)


class NoOutbox:
    """`pipeline.throttle.outbox.Outbox` of a job that never ran before and never will again."""

    def append(self, rows: pa.Table, versions: Mapping[str, int], metadata: Mapping[str, str]) -> bool:
        """Takes anything, keeps nothing."""
        del rows, versions, metadata
        return True

    def rows_from(self, publish_seq: int) -> pa.Table:
        """No rows."""
        del publish_seq
        return arrow_schema(ThrottleEventRow).empty_table()

    def newest(self) -> tuple[int, pa.Table]:
        """Nothing stored."""
        return -1, self.rows_from(0)


class NoTopic:
    """`pipeline.throttle.topic.ThrottleTopic` without readers."""

    def open(self) -> int | None:
        """No marker."""
        return None

    def publish(self, records: Sequence[ThrottleRecord], marker: int) -> None:
        """Takes anything."""
        del records, marker

    def highest_published(self) -> int:
        """None."""
        return -1

    def close(self) -> None:
        """Nothing to leave."""
