"""Two figures that Kafka's brokers show beside the rates: the mean throttle time, and the exempt request time.

Kafka 4.3.1 takes both over two samples of 30 s. These are the defaults of its metrics, and the windows of the quotas do
not matter. `throttle-time` is per sensor (`ClientQuotaManager`): the mean of all throttle times above 0; no value if
there were none. `exempt-request-time` is per broker (`ClientRequestQuotaManager`): a rate, in percent of one thread.
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
        now_ms: the instant. A decision that is exactly a minute old no longer counts.

    Returns:
        The columns of `SENSOR`, `throttle_time_avg_ms` float64, `throttle_time_max_ms` int64, and `throttles` int64:
            how
        many decisions had a throttle time above 0. A sensor without such a decision has no row. The longest mean is
        first; equal ones are in the order of the sensors.
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
    """Request time of exempt requests over the last minute, in percent of one thread.

    Args:
        usage: columns `last_event_ms` and `exempt_time_ns` (null for none).
        now_ms: the instant. Usage that is exactly a minute old no longer counts.

    Returns:
        0.0 without exempt requests; 100.0 if one thread was busy with them all the time.
    """
    at_ms = usage["last_event_ms"]
    in_span = pc.and_(pc.greater(at_ms, now_ms - SPAN_MS), pc.less_equal(at_ms, now_ms))
    total_ns = pc.sum(usage["exempt_time_ns"].filter(in_span)).as_py() or 0
    return float(100.0 * total_ns / (SPAN_MS * _NS_PER_MS))
