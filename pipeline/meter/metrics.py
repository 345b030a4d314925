"""What a meter tells Prometheus, read from its counts at each scrape."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from pipeline.meter.log_follower import FollowerCounts
from pipeline.meter.request_log import LineCounts
from pipeline.meter.usage_publisher import DeliveryCounts


class MeterGauges(NamedTuple):
    """What can be asked of a running meter by any thread."""

    lines: LineCounts
    delivery: DeliveryCounts
    log: FollowerCounts
    unstored_events: Callable[[], int]
    held_bytes: Callable[[], int]


def meter_metrics(meter: MeterGauges, broker_id: str) -> Iterable[Metric]:
    """The counts of the meter of a broker, now."""
    lines, delivery, log = meter.lines, meter.delivery, meter.log
    of_lines = CounterMetricFamily(
        "kquota_meter_lines", "Lines of the request log, by what they were.", labels=["broker_id", "what"]
    )
    for what in ("events", "own", "malformed", "other"):
        of_lines.add_metric([broker_id, what], getattr(lines, what))
    yield of_lines
    files = CounterMetricFamily(
        "kquota_meter_log_files", "What happened to files of the log.", labels=["broker_id", "what"]
    )
    for what in ("rolled", "truncated", "lost", "damaged"):
        files.add_metric([broker_id, what], getattr(log, what))
    yield files
    for name, documentation, count in (
        ("unsized_events", "Events without bytes although the request moved some.", lines.unsized),
        ("long_lines", "Lines that were too long to be kept whole.", log.too_long),
        ("estimated_events", "Events with the most bytes that their line allows.", lines.estimated),
        ("uncharged_bytes", "Length of the malformed lines: no client is charged.", lines.uncharged_bytes),
        ("stored_events", "Events stored on the usage topic.", delivery.events),
        ("stored_messages", "Messages stored on the usage topic.", delivery.messages),
        ("failed_transactions", "Transactions that were tried again.", delivery.failures),
    ):
        counter = CounterMetricFamily(f"kquota_meter_{name}", documentation, labels=["broker_id"])
        counter.add_metric([broker_id], count)
        yield counter
    for name, documentation, value in (
        ("unstored_events", "Events that are read and not yet stored.", meter.unstored_events()),
        ("held_bytes", "Bytes of lines that are read and not yet stored.", meter.held_bytes()),
    ):
        gauge = GaugeMetricFamily(f"kquota_meter_{name}", documentation, labels=["broker_id"])
        gauge.add_metric([broker_id], value)
        yield gauge
