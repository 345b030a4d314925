"""The job on a real Spark cluster: a standalone master, and workers of one core each, as processes."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.demo.broker import EmbeddedBroker
from tests.faults.rig import rig
from tests.spark_cluster.rounds import TABLES, on_cluster, play_kills, play_same
from tests.spark_cluster.standalone import StandaloneCluster, python_without_us, spark_home, standalone_cluster
from tests.waiting import PATIENCE_SECONDS

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.long]

WAITS_FOR_EXECUTORS = "Initial job has not accepted any resources"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    """A cluster of two workers."""
    with standalone_cluster(tmp_path_factory.mktemp("spark")) as running:
        yield running


def test_a_job_on_a_cluster_decides_what_a_local_job_decides(
    cluster: StandaloneCluster, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    same = play_same(cluster, tmp_path, broker.bootstrap_servers, 21)
    assert same.differing == dict.fromkeys(TABLES, 0)
    assert min(same.rows.values()) > 10
    assert [verdict.told() for verdict in same.verdicts] == [[], []]


def test_killed_workers_cost_nothing(cluster: StandaloneCluster, broker: EmbeddedBroker, tmp_path: Path) -> None:
    assert play_kills(cluster, tmp_path, broker.bootstrap_servers, 22, 3).verdict.told() == []


def test_a_job_without_a_master_says_so_and_ends_with_6(broker: EmbeddedBroker, tmp_path: Path) -> None:
    cluster = StandaloneCluster(tmp_path / "spark")
    with rig("alone", tmp_path, broker.bootstrap_servers, **on_cluster(cluster)) as rigged:
        rigged.start(wait=False)
        rigged.job.wait_for_line(f"no Spark master at {cluster.master} has taken this application")
        assert rigged.job.process is not None
        assert rigged.job.process.wait(PATIENCE_SECONDS) == 6


def test_a_job_waits_for_executors_and_ends_at_once_when_asked_to(broker: EmbeddedBroker, tmp_path: Path) -> None:
    with (
        standalone_cluster(tmp_path / "spark", workers=0) as cluster,
        rig("waiting", tmp_path, broker.bootstrap_servers, **on_cluster(cluster)) as rigged,
    ):
        rigged.begin_load(23)
        rigged.start(wait=False)
        rigged.job.wait_for_line(WAITS_FOR_EXECUTORS)
        assert rigged.job.stop() == 0
        since = len(rigged.job.log)
        rigged.start(wait=False)
        rigged.job.wait_for_line(WAITS_FOR_EXECUTORS, since)
        cluster.add_worker()
        rigged.job.wait_for_line("batch_id=", since)
        assert rigged.job.stop() == 0


def test_spark_submit_without_connectors_is_refused_with_the_option(cluster: StandaloneCluster, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text("from pipeline.cli.main import main; raise SystemExit(main())\n")
    submit = str(spark_home() / "bin" / "spark-submit")
    command = [submit, "--master", "local[1]", "app.py", "run", "--tables", "tables"]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env={**cluster.environment, "PYTHONPATH": os.getcwd()},
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert done.returncode == 2
    assert re.search(r'Fix: submit with --jars "\$\(.* jars paths\)"', done.stdout)
    assert not (tmp_path / "tables").exists()


READING = r"""
import sys
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
        [sys.executable, "-c", READING, cluster.master],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.getcwd(), "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": str(python)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    told = "read 1000 10" if with_packages else f"the executors of {cluster.master} cannot run this job's Python"
    assert told in done.stdout, done.stderr
