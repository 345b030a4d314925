"""What Kafka's brokers show beside the rates: how long throttles were on average, and how much time was exempt.

Kafka 4.3.1 keeps both over two samples of 30 s, the defaults of its metrics, whatever the quotas' own windows are:
`throttle-time` per sensor (`ClientQuotaManager`), the mean of the throttle times above 0, nothing when there were none;
`exempt-request-time`, one for a whole broker (`ClientRequestQuotaManager`), a rate in percent of one thread.
"""

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

SPAN_MS: Final = 60_000
"""Two samples of 30 s."""

SENSOR: Final = ("broker_id", "quota_type", "sensor_user", "sensor_client_id", "mode")

_NS_PER_MS: Final = 1_000_000


def throttle_times(decisions: pa.Table, now_ms: int) -> pa.Table:
    """The mean throttle time of each sensor over the last minute.

    Args:
        decisions: the columns of `SENSOR`, `throttle_time_ms` (capped, as a broker records it) and `evaluated_at_ms`.
        now_ms: the instant; a decision exactly a minute old has left the span.

    Returns:
        The columns of `SENSOR`, `throttle_time_avg_ms` float64, `throttle_time_max_ms` int64 and `throttles` int64: how
        many decisions asked for one. A sensor without any in the span has no row. Longest mean first, then by sensor.
    """
    at_ms = decisions["evaluated_at_ms"]
    in_span = pc.and_(pc.greater(at_ms, now_ms - SPAN_MS), pc.less_equal(at_ms, now_ms))
    kept = decisions.filter(pc.and_(in_span, pc.greater(decisions["throttle_time_ms"], 0)))
    means = kept.group_by(list(SENSOR), use_threads=False).aggregate(
        [("throttle_time_ms", "mean"), ("throttle_time_ms", "max"), ("throttle_time_ms", "count")]
    )
    names = {
        "throttle_time_ms_mean": "throttle_time_avg_ms",
        "throttle_time_ms_max": "throttle_time_max_ms",
        "throttle_time_ms_count": "throttles",
    }
    order = [("throttle_time_avg_ms", "descending"), *((name, "ascending") for name in SENSOR)]
    return means.rename_columns([names.get(name, name) for name in means.column_names]).sort_by(order)


def exempt_request_percentage(usage: pa.Table, now_ms: int) -> float:
    """Request time that was charged to nobody, over the last minute, in percent of one thread.

    Args:
        usage: columns `last_event_ms` and `exempt_time_ns` (null = none).
        now_ms: the instant; usage exactly a minute old has left the span.

    Returns:
        0.0 without exempt requests; 100.0 if one thread was busy with them all the time.
    """
    at_ms = usage["last_event_ms"]
    in_span = pc.and_(pc.greater(at_ms, now_ms - SPAN_MS), pc.less_equal(at_ms, now_ms))
    total_ns = pc.sum(usage["exempt_time_ns"].filter(in_span)).as_py() or 0
    return float(100.0 * total_ns / (SPAN_MS * _NS_PER_MS))
