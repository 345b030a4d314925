"""Programs on a real Spark cluster: the wheel under spark-submit, and what-if on its executors."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.demo.broker import EmbeddedBroker
from pipeline.jvm.jars import spark_jars
from tests.faults.rig import rig
from tests.spark_cluster.standalone import (
    StandaloneCluster,
    app,
    installed_wheel,
    python_without_us,
    spark_home,
    standalone_cluster,
)
from tests.waiting import PATIENCE_SECONDS, wait_until

pytestmark = [pytest.mark.spark, pytest.mark.long]
SUBMIT = str(spark_home() / "bin" / "spark-submit")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    """A cluster of two workers."""
    with standalone_cluster(tmp_path_factory.mktemp("spark")) as running:
        yield running


def submit(cluster: StandaloneCluster, folder: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run spark-submit to its end, in a folder of its own. It writes all that the program says to standard output."""
    return subprocess.run(
        [SUBMIT, *words],
        cwd=folder,
        env={**cluster.environment, "PYTHONPATH": os.getcwd(), **variables},
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )


@pytest.mark.broker
def test_the_wheel_runs_under_spark_submit_on_the_cluster(
    cluster: StandaloneCluster, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    site = installed_wheel(tmp_path)
    log_settings = (site / "pipeline" / "stream" / "log4j2.properties").as_uri()
    variables = {**cluster.environment, "PYTHONPATH": str(site)}
    with rig("submitted", tmp_path, broker.bootstrap_servers, None, **variables) as rigged:
        rigged.job.program = [
            *(SUBMIT, "--master", cluster.master, "--deploy-mode", "client", "--driver-memory", "512m"),
            *("--driver-java-options", f"-Dlog4j2.configurationFile={log_settings}"),
            *("--executor-memory", "600m", "--jars", ",".join(map(str, spark_jars())), str(app(tmp_path))),
        ]
        rigged.begin_load(31)
        rigged.start()
        log = rigged.job.log
        rigged.job.wait_for_line("running; trigger")
        since = len(log)
        wait_until(lambda: sum("batch_id=" in line for line in log[since:]) > 3, "micro-batches")
        assert [line for line in log[since:] if " INFO " in line and line[2:3] != ":"] == [], "Spark's own"
        rigged.end_load()
        rigged.drain()
        assert rigged.job.process is not None
        os.killpg(rigged.job.process.pid, signal.SIGTERM)
        rigged.job.process.wait(PATIENCE_SECONDS)
        assert rigged.verdict({"batches": 3, "usage": 50, "ledger": 100})["differences"] == []


def test_spark_submit_without_the_connectors_is_refused_with_the_missing_option(
    cluster: StandaloneCluster, tmp_path: Path
) -> None:
    done = submit(cluster, tmp_path, "--master", "local[1]", str(app(tmp_path)), "run", "--tables", "tables")
    assert done.returncode == 2
    assert re.search(r'Fix: submit with --jars "\$\(.* jars paths\)"', done.stdout)
    assert not (tmp_path / "tables").exists()


def test_state_on_the_disk_of_a_node_that_the_cluster_chooses_is_refused(
    cluster: StandaloneCluster, tmp_path: Path
) -> None:
    jars = ("--jars", ",".join(map(str, spark_jars())))
    # What the pod of a driver on Kubernetes is started with, in deploy mode cluster.
    in_a_pod = ("--master", "local[1]", "--conf", "spark.kubernetes.submitInDriver=true")
    done = submit(cluster, tmp_path, *in_a_pod, *jars, str(app(tmp_path)), "run", "--tables", "tables")
    assert done.returncode == 2
    assert "is on one node's disk, and the cluster chooses the driver's node" in done.stdout
    assert not (tmp_path / "tables").exists()


READING = r"""
import sys
from pathlib import Path
from threading import Event
from pipeline.settings.model import Settings, SparkSettings
from pipeline.stream.query import collect_on_executors
from pipeline.errors import Unreachable
from pipeline.stream.session import SparkStarter
from pipeline.stream.usage_columns import ReadingRules

rules = ReadingRules(1_000, 86_400_000)
spark = SparkSettings(master=sys.argv[1], conf={"spark.executor.memory": "600m"})
with SparkStarter(Settings(spark=spark)) as starter:
    events = "concat('{\"event_time_ms\":1,\"user\":\"u', id % 10, '\",\"client_id\":\"\"}')"
    place = ("'usage' AS topic", "0 AS partition", "id AS offset", "timestamp_millis(1000) AS timestamp")
    raw = starter.session_unless(Event()).range(0, 1_000, 1, 4).selectExpr(f"CAST({events} AS BINARY) AS value", *place)
    try:
        batch = collect_on_executors(raw, rules, 200)
        print("read", batch.good_count, batch.usage.num_rows, flush=True)
    except Unreachable as exc:
        print("unfit", exc, flush=True)
"""


@pytest.mark.parametrize("with_packages", [True, False])
def test_executors_read_usage_with_the_code_that_the_driver_sends_them(
    cluster: StandaloneCluster, tmp_path: Path, with_packages: bool
) -> None:
    python = python_without_us(tmp_path, with_packages)
    done = subprocess.run(
        [sys.executable, "-c", READING, cluster.master, str(tmp_path)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.getcwd(), "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": str(python)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    if with_packages:
        assert done.stdout.splitlines()[-1:] == ["read 1000 10"], done.stderr
    else:
        assert f"the executors of {cluster.master} cannot run this job's Python, '{python}': " in done.stdout
