"""What the tables say about the last minute, as the metrics of a broker do."""

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.tables.address import table_uri
from pipeline.tables.port import Condition
from pipeline.tables.reader import read_table
from quota.averages import SENSOR, SPAN_MS, exempt_request_percentage, throttle_times
from quota.replay import with_time_epoch


@dataclass(frozen=True, slots=True)
class LastMinute:
    """What the metrics of a broker show besides the rates.

    Attributes:
        throttle_times: See `quota.averages.throttle_times`.
        exempt_percentage: Request time that is charged to nobody, in percent of one thread.
    """

    throttle_times: pa.Table
    exempt_percentage: float


def last_minute(root: str, now_ms: int) -> LastMinute:
    """Mean throttle times and exempt request time over the minute that ends at `now_ms`.

    Of a minute that the clock showed twice it is the second time.
    """
    recent: list[Condition] = [("evaluated_at_ms", ">", now_ms - SPAN_MS), ("evaluated_at_ms", "<=", now_ms)]
    columns = ["time_epoch", "last_event_ms", "exempt_time_ns"]
    usage = with_time_epoch(read_table(table_uri(root, "usage"), columns, recent))
    newest = pc.max(usage["time_epoch"])
    usage = usage.filter(pc.equal(usage["time_epoch"], newest))
    columns = [*SENSOR, "time_epoch", "throttle_time_ms", "evaluated_at_ms"]
    decisions = with_time_epoch(read_table(table_uri(root, "decisions"), columns, recent))
    decisions = decisions.filter(pc.equal(decisions["time_epoch"], newest))
    return LastMinute(throttle_times(decisions, now_ms), exempt_request_percentage(usage, now_ms))
