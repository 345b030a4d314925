"""The session: what is refused before a JVM starts, and which settings the stream relies on."""

import os
import subprocess
from pathlib import Path
from typing import Any, cast
from zipfile import ZipFile

import pytest
from py4j.protocol import Py4JError
from pydantic import SecretStr
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from pipeline.errors import MasterUnreachable, UsageError
from pipeline.settings.model import Settings, SparkSettings, StoreSettings, StreamSettings, TablesSettings
from pipeline.stream.query import NEEDED_TO_READ
from pipeline.stream.session import (
    build_spark_session,
    heap_of,
    jar_sets,
    jvm_settings,
    made_at,
    with_store,
    zip_package,
)
from tests.spark_cluster.standalone import python_without_us
from tests.waiting import PATIENCE_SECONDS

MANAGER = "spark.sql.streaming.checkpointFileManagerClass"
ENDPOINT = "spark.hadoop.fs.s3a.endpoint"


@pytest.mark.parametrize(
    ("settings", "found_in"),
    [
        (SparkSettings(), "the environment variable SPARK_REMOTE"),
        (SparkSettings(), "the environment variable SPARK_CONNECT_MODE_ENABLED"),
        (SparkSettings(master="sc://somewhere:15002"), "the master sc://somewhere:15002"),
        (SparkSettings(conf={"spark.remote": "local"}), "the setting spark.remote"),
        (SparkSettings(conf={"spark.api.mode": "connect"}), "the setting spark.api.mode"),
    ],
)
def test_spark_connect_is_refused(settings: SparkSettings, found_in: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _, is_variable, variable = found_in.partition("variable ")
    if is_variable:
        monkeypatch.setenv(variable, "sc://somewhere")
    with pytest.raises(UsageError) as refusal:
        build_spark_session(settings, [])
    assert f"by {found_in};" in refusal.value.message


@pytest.mark.spark
def test_the_session_has_the_settings_the_stream_relies_on_and_is_joined(spark: SparkSession) -> None:
    wanted = {
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(len(os.sched_getaffinity(0))),
        "spark.sql.streaming.stopTimeout": "30s",
        "spark.databricks.delta.snapshotPartitions": "1",
        "spark.ui.enabled": "false",
    }
    assert {key: spark.conf.get(key) for key in wanted} == wanted
    assert str(spark.conf.get(MANAGER)).endswith(".checkpointing.FileSystemBasedCheckpointFileManager")
    assert "-Xss4m" in str(spark.conf.get("spark.driver.extraJavaOptions"))
    factory = cast(Any, spark.sparkContext)._jvm.java.lang.management.ManagementFactory
    heap = factory.getMemoryMXBean().getHeapMemoryUsage()
    assert heap.getInit() < heap.getMax() // 2, "it is taken bit by bit"
    assert build_spark_session(SparkSettings(), []) is spark


@pytest.mark.parametrize(("cores", "heap"), [(1, "512m"), (4, "512m"), (5, "576m"), (16, "1280m")])
def test_the_heap_grows_with_the_cores(cores: int, heap: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(cores)))
    assert heap_of(SparkSettings()) == heap
    assert heap_of(SparkSettings.model_validate({"conf": {"spark.driver.memory": "3g"}})) == "3g"


def test_the_operators_collector_replaces_ours() -> None:
    spark = SparkSettings.model_validate({"conf": {"spark.driver.extraJavaOptions": "-XX:+UseG1GC"}})
    options = jvm_settings(spark, [], starts_local=False)["spark.driver.extraJavaOptions"]
    assert "UseParallelGC" not in options
    assert "-Xmn" not in options
    assert "UseG1GC" in options


@pytest.mark.parametrize(
    ("master", "failure", "known"),
    [
        ("spark://there:7077", PySparkException("Cannot call methods on a stopped SparkContext."), MasterUnreachable),
        ("spark://there:7077", Py4JError("no"), Py4JError),
        ("local[*]", PySparkException("System memory 381 must be at least 471859200. Please increase"), UsageError),
    ],
)
def test_what_ends_a_context_at_its_start_is_known(
    master: str, failure: Exception, known: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)  # that of the other tests goes on

    def fail() -> None:
        raise failure

    with pytest.raises(known):
        made_at(master, fail)


@pytest.mark.parametrize(
    ("starts_local", "own", "expected"),
    [
        (True, {}, {"spark.driver.extraClassPath": "/a.jar:/b.jar"}),
        (True, {"spark.driver.extraClassPath": "/c", "spark.jars": "/d.jar"},
         {"spark.driver.extraClassPath": "/a.jar:/b.jar:/c", "spark.jars": "/d.jar"}),
        (False, {}, {"spark.jars": "/a.jar,/b.jar"}),
        (False, {"spark.driver.extraClassPath": "/c", "spark.jars": "/d.jar"},
         {"spark.driver.extraClassPath": "/c", "spark.jars": "/a.jar,/b.jar,/d.jar"}),
    ],
)  # fmt: skip
def test_jars_are_on_the_class_path_or_are_sent_to_executors(
    starts_local: bool, own: dict[str, str], expected: dict[str, str]
) -> None:
    settings = jvm_settings(SparkSettings(conf=own), [Path("/a.jar"), Path("/b.jar")], starts_local=starts_local)
    assert {key: settings[key] for key in ("spark.driver.extraClassPath", "spark.jars") if key in settings} == expected


def stored_settings(root: str, checkpoint: str, **conf: str) -> Settings:
    return Settings(
        store=StoreSettings(endpoint="http://store:9000"),
        tables=TablesSettings(root=root),
        stream=StreamSettings(checkpoint=checkpoint),
        spark=SparkSettings(conf={key: SecretStr(value) for key, value in conf.items()}),
    )


@pytest.mark.parametrize(
    ("root", "checkpoint", "sets"),
    [
        (".kquota/tables", ".kquota/checkpoint", ()),
        ("s3://b/tables", ".kquota/checkpoint", ()),
        (".kquota/tables", "s3a://b/checkpoint", ("s3",)),
        ("abfss://c@a.dfs.core.windows.net/t", "abfss://c@a.dfs.core.windows.net/c", ()),
    ],
)
def test_a_checkpoint_in_s3_needs_jars_and_is_written_in_one_put(root: str, checkpoint: str, sets: Any) -> None:
    found = stored_settings(root, checkpoint)
    conf = with_store(found).plain_conf()
    assert (jar_sets(found), ENDPOINT in conf) == (sets, bool(sets))
    assert ("AbortableStreamBasedCheckpointFileManager" in conf.get(MANAGER, "")) is bool(sets)


def test_an_entry_of_the_operator_stays() -> None:
    own = stored_settings(".kquota/tables", "s3://b/checkpoint", **{ENDPOINT: "https://other", MANAGER: "a.Manager"})
    conf = with_store(own).plain_conf()
    assert (conf[ENDPOINT], conf[MANAGER]) == ("https://other", "a.Manager")


def test_a_python_with_the_needed_packages_reads_usage_with_the_zip_alone(tmp_path: Path) -> None:
    python, shipped = python_without_us(tmp_path), zip_package(tmp_path)
    names = ZipFile(shipped).namelist()
    assert {name.split("/")[0] for name in names} == {"pipeline", "purgatory", "quota", "schemas"}
    assert zip_package(tmp_path) == shipped
    assert ZipFile(shipped).namelist() == names, "a second one takes its place"
    done = subprocess.run(
        [str(python), "-c", "import sys, pipeline.stream.usage_reader as it; print(it.__file__, *sys.modules)"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(shipped)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=True,
    )
    path, *loaded = done.stdout.split()
    assert path == f"{shipped}/pipeline/stream/usage_reader.py"
    assert {*NEEDED_TO_READ} <= {*loaded}
    assert {"pyspark", "pandas", "deltalake", "kafka", "typer"}.isdisjoint(loaded)
