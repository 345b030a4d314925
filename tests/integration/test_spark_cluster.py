"""The job on a real Spark cluster: a standalone master, and workers of one core each, as processes."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.demo.broker import EmbeddedBroker
from tests.faults.rig import rig
from tests.spark_cluster.rounds import TABLES, on_cluster, play_kills, play_same
from tests.spark_cluster.standalone import StandaloneCluster, standalone_cluster
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
    assert [verdict["differences"] for verdict in same.verdicts] == [[], []]


def test_workers_killed_under_load_cost_nothing(
    cluster: StandaloneCluster, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    killed = play_kills(cluster, tmp_path, broker.bootstrap_servers, 22, 3)
    assert killed.verdict["differences"] == []
    assert len(killed.recovery_seconds) == 3
    assert killed.foreign == []


def test_a_job_without_a_master_says_so_and_ends_with_6(broker: EmbeddedBroker, tmp_path: Path) -> None:
    cluster = StandaloneCluster(tmp_path / "spark")
    with rig("alone", tmp_path, broker.bootstrap_servers, None, **on_cluster(cluster)) as rigged:
        rigged.start(wait=False)
        rigged.job.wait_for_line(f"no Spark master at {cluster.master} has taken this application")
        assert rigged.job.process is not None
        assert rigged.job.process.wait(PATIENCE_SECONDS) == 6


def test_a_job_waits_for_executors_and_spark_says_so(broker: EmbeddedBroker, tmp_path: Path) -> None:
    with (
        standalone_cluster(tmp_path / "spark", workers=0) as cluster,
        rig("waiting", tmp_path, broker.bootstrap_servers, None, **on_cluster(cluster)) as rigged,
    ):
        rigged.begin_load(23)
        rigged.start(wait=False)
        rigged.job.wait_for_line(WAITS_FOR_EXECUTORS)
        cluster.add_worker()
        rigged.job.wait_for_line("batch_id=")
        assert rigged.job.stop() == 0


def test_a_job_that_waits_for_executors_ends_at_once_when_asked_to(broker: EmbeddedBroker, tmp_path: Path) -> None:
    with (
        standalone_cluster(tmp_path / "spark", workers=0) as cluster,
        rig("asked", tmp_path, broker.bootstrap_servers, None, **on_cluster(cluster)) as rigged,
    ):
        rigged.begin_load(24)
        rigged.start(wait=False)
        rigged.job.wait_for_line(WAITS_FOR_EXECUTORS)
        assert rigged.job.stop() == 0
