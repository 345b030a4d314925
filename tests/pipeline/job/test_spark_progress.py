"""What Spark says of its newest micro-batch, as metrics; tests/integration/test_job.py has it from a real query."""

from collections.abc import Iterable
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric

from pipeline.job.metrics import progress_metrics
from pipeline.metrics import ReadAtScrape

PROGRESS: dict[str, Any] = {
    "batchId": 7,
    "numInputRows": 30,
    "inputRowsPerSecond": 60.0,
    "processedRowsPerSecond": 120.5,
    "durationMs": {"addBatch": 90, "triggerExecution": 250},
    "sources": [
        {
            "endOffset": '{"quota.usage.v1":{"0":10,"1":20}}',
            "latestOffset": '{"quota.usage.v1":{"0":15,"1":20,"2":4}}',
        }
    ],
}


def told(metrics: Iterable[Metric]) -> CollectorRegistry:
    registry = CollectorRegistry()
    found = list(metrics)
    registry.register(ReadAtScrape(lambda: found))
    return registry


@pytest.mark.parametrize(
    ("name", "labels", "value"),
    [
        ("query_active", {}, 1),
        ("batch_id", {}, 7),
        ("input_rows", {}, 30),
        ("input_rows_per_second", {}, 60),
        ("processed_rows_per_second", {}, 120.5),
        ("step_seconds", {"step": "addBatch"}, 0.09),
        ("step_seconds", {"step": "triggerExecution"}, 0.25),
        # A partition that the batch did not know is not behind: the next batch begins at its end or its start.
        ("offsets_behind_latest", {"topic": "quota.usage.v1"}, 5),
    ],
)
def test_each_fact_is_a_metric(name: str, labels: dict[str, str], value: float) -> None:
    assert told(progress_metrics(PROGRESS)).get_sample_value(f"kquota_spark_{name}", labels) == value


@pytest.mark.parametrize(("progress", "active"), [(None, 0), ({}, 1)])
def test_without_a_batch_only_the_query_is_told(progress: dict[str, Any] | None, active: float) -> None:
    registry = told(progress_metrics(progress))
    assert registry.get_sample_value("kquota_spark_query_active") == active
    assert len(list(registry.collect())) == 1


def test_what_spark_leaves_out_is_left_out() -> None:
    progress = {"batchId": 0, "numInputRows": 0, "processedRowsPerSecond": None, "sources": [{"latestOffset": "null"}]}
    registry = told(progress_metrics(progress))
    assert registry.get_sample_value("kquota_spark_batch_id") == 0
    assert registry.get_sample_value("kquota_spark_processed_rows_per_second") is None
    assert registry.get_sample_value("kquota_spark_input_rows_per_second") is None
