"""What Spark tells of the query: on the job's own endpoint, and on Spark's."""

from pathlib import Path

import httpx

from pipeline.demo.process import free_ports
from tests.integration.running_job import RunningJob
from tests.metrics_reading import metrics_named_in
from tests.pages.blocks import blocks_of
from tests.waiting import PATIENCE_SECONDS


def documented_spark_metrics(folder: Path, job: RunningJob) -> str:
    """Let the job serve Spark's own metrics as docs/metrics.md says, on a free port; returns the address."""
    page = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text("utf-8")
    (block,) = (block for block in blocks_of(page) if block.language == "toml" and "[spark.conf]" in block.text)
    (port,) = free_ports(1)
    assert block.text.count('"4040"') == 1
    (folder / "kquota.toml").write_text(block.text.replace('"4040"', f'"{port}"'), "utf-8")
    job.overrides["KQUOTA_CONFIG"] = str(folder / "kquota.toml")
    return f"http://127.0.0.1:{port}/metrics/prometheus/"


def assert_tells_what_spark_says(job: RunningJob) -> None:
    """The job's endpoint has the progress of its query, and that it is not behind."""

    def told() -> dict[str, float]:
        lines = metrics_named_in("\n".join(job.log)).splitlines()
        return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[:1] != "#")}

    newest_id = max(job.table("batches")["batch_id"].to_pylist())
    job.wait_until(lambda: told().get("kquota_spark_batch_id", -1) >= newest_id, "the progress of the newest batch")
    metrics = told()
    assert metrics["kquota_spark_query_active"] == 1
    assert metrics['kquota_spark_offsets_behind_latest{topic="outage.usage"}'] == 0
    assert metrics['kquota_spark_step_seconds{step="triggerExecution"}'] >= 0
    assert {"kquota_spark_input_rows_per_second", "kquota_spark_processed_rows_per_second"} <= set(metrics)


def assert_spark_tells_it_too(address: str) -> None:
    """Spark's own servlet names the query by the job, with the namespace in place of an id of the application."""
    told = httpx.get(address, timeout=PATIENCE_SECONDS).text
    for name in ("inputRate_total", "processingRate_total", "latency"):
        assert f"metrics_kquota_driver_spark_streaming_outage_{name}_Value" in told
