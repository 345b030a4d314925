"""What the tables say about the last minute, as the metrics of a broker do."""

from dataclasses import dataclass

import pyarrow as pa

from pipeline.tables.address import table_uri
from pipeline.tables.port import Condition
from pipeline.tables.reader import read_table
from quota.averages import SENSOR, SPAN_MS, exempt_request_percentage, throttle_times


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
    """Mean throttle times and exempt request time over the minute that ends at `now_ms`."""
    recent: list[Condition] = [("evaluated_at_ms", ">", now_ms - SPAN_MS)]
    columns = [*SENSOR, "throttle_time_ms", "evaluated_at_ms"]
    decisions = read_table(table_uri(root, "decisions"), columns, recent)
    usage = read_table(table_uri(root, "usage"), ["last_event_ms", "exempt_time_ns"], recent)
    return LastMinute(throttle_times(decisions, now_ms), exempt_request_percentage(usage, now_ms))
