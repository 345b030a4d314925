"""What Spark says of the newest micro-batch of the streaming query, as metrics.

It is read when Prometheus asks, from the progress that Spark keeps in any case. A listener of Spark in Python would be
called after every micro-batch, by a thread that the batches then share the interpreter with.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from prometheus_client.metrics_core import GaugeMetricFamily, Metric

Progress = Mapping[str, Any]
"""`StreamingQuery.lastProgress` as a mapping: https://spark.apache.org/docs/latest/structured-streaming-programming-guide.html"""


def progress_metrics(progress: Progress | None) -> Iterable[Metric]:
    """The newest progress of the query, and whether there is a query.

    Args:
        progress: As Spark tells it; None while no query runs. Without a batch so far it is empty.
    """
    yield GaugeMetricFamily("kquota_spark_query_active", "Whether Spark runs the query.", float(progress is not None))
    if not progress:
        return
    for name, documentation, key in (
        ("batch_id", "Number of the newest micro-batch.", "batchId"),
        ("input_rows", "Messages that the newest micro-batch read.", "numInputRows"),
        ("input_rows_per_second", "Messages per second that arrived.", "inputRowsPerSecond"),
        ("processed_rows_per_second", "Messages per second while Spark works.", "processedRowsPerSecond"),
    ):
        # Spark leaves a rate out where it can not be computed, as for the first batch.
        if progress.get(key) is not None:
            yield GaugeMetricFamily(f"kquota_spark_{name}", documentation, float(progress[key]))
    yield _steps(progress.get("durationMs") or {})
    yield _behind(progress.get("sources") or ())


def _steps(durations_ms: Mapping[str, int]) -> Metric:
    family = GaugeMetricFamily(
        "kquota_spark_step_seconds", "Time of Spark's steps of the newest micro-batch.", labels=("step",)
    )
    for step, duration_ms in durations_ms.items():
        family.add_metric([step], duration_ms / 1000)
    return family


def _behind(sources: Iterable[Mapping[str, Any]]) -> Metric:
    family = GaugeMetricFamily(
        "kquota_spark_offsets_behind_latest",
        "Messages of a topic that were there, and not read, when the newest micro-batch began.",
        labels=("topic",),
    )
    for source in sources:
        latest, reached = _offsets(source.get("latestOffset")), _offsets(source.get("endOffset"))
        for topic, ends in latest.items():
            behind = sum(max(end - reached.get(topic, {}).get(number, end), 0) for number, end in ends.items())
            family.add_metric([topic], behind)
    return family


def _offsets(told: Any) -> Mapping[str, Mapping[str, int]]:
    """Offsets as Spark prints them: JSON, or what was read from it already; none for None."""
    found: Any = json.loads(told) if isinstance(told, str) else told
    return found or {}
