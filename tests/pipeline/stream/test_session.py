"""The session: what is refused before a JVM starts, and which settings the stream relies on."""

import os
from pathlib import Path
from typing import Any, cast

import pytest
from py4j.protocol import Py4JError
from pydantic import SecretStr
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from pipeline.errors import MasterUnreachable, UsageError
from pipeline.settings.model import Settings, SparkSettings, StoreSettings, StreamSettings, TablesSettings
from pipeline.stream.session import (
    WARM_UP,
    build_spark_session,
    heap_of,
    jar_sets,
    jvm_settings,
    made_at,
    warm_up,
    with_store,
)
from tests.pipeline.stream.messages import RULES


@pytest.mark.parametrize("variable", ["SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED"])
def test_spark_connect_in_the_environment_is_refused(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, "sc://somewhere")
    with pytest.raises(UsageError) as refusal:
        build_spark_session(SparkSettings(), [])
    assert f"by the environment variable {variable};" in refusal.value.message
    assert refusal.value.exit_code == 2
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("settings", "found_in"),
    [
        (SparkSettings(master="sc://somewhere:15002"), "the master sc://somewhere:15002"),
        (SparkSettings(conf={"spark.remote": "local"}), "the setting spark.remote"),
        (SparkSettings(conf={"spark.api.mode": "connect"}), "the setting spark.api.mode"),
    ],
)
def test_spark_connect_in_the_settings_is_refused(settings: SparkSettings, found_in: str) -> None:
    with pytest.raises(UsageError) as refusal:
        build_spark_session(settings, [])
    assert f"by {found_in};" in refusal.value.message


@pytest.mark.spark
def test_the_session_has_the_settings_the_stream_relies_on(spark: SparkSession) -> None:
    wanted = {
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(len(os.sched_getaffinity(0))),
        "spark.sql.streaming.stopTimeout": "30s",
        "spark.databricks.delta.snapshotPartitions": "1",
        "spark.ui.enabled": "false",
    }
    assert {key: spark.conf.get(key) for key in wanted} == wanted
    assert str(spark.conf.get("spark.sql.streaming.checkpointFileManagerClass")).endswith(
        ".checkpointing.FileSystemBasedCheckpointFileManager"
    )
    assert "-Xss4m" in str(spark.conf.get("spark.driver.extraJavaOptions"))


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
    ("text", "known"), [("Cannot call methods on a stopped SparkContext.", MasterUnreachable), ("no", Py4JError)]
)
def test_a_context_that_has_stopped_at_its_start_is_that_of_a_master_that_does_not_answer(
    text: str, known: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)  # that of the other tests goes on

    def fail() -> None:
        raise PySparkException(text) if known is MasterUnreachable else Py4JError(text)

    with pytest.raises(known):
        made_at("spark://there:7077", fail)


def test_a_heap_that_is_too_small_for_spark_is_a_mistake_in_the_settings() -> None:
    text = "System memory 381681664 must be at least 471859200. Please increase heap size"

    def fail() -> None:
        raise PySparkException(text)

    with pytest.raises(UsageError, match=r"must be at least 471859200 bytes\. Fix: raise 'spark\.driver\.memory'"):
        made_at("local[*]", fail)


@pytest.mark.spark
def test_the_heap_is_taken_bit_by_bit(spark: SparkSession) -> None:
    factory = cast(Any, spark.sparkContext)._jvm.java.lang.management.ManagementFactory
    heap = factory.getMemoryMXBean().getHeapMemoryUsage()
    assert heap.getInit() < heap.getMax() // 2


@pytest.mark.spark
def test_the_warm_up_runs_the_plan_of_a_small_batch(spark: SparkSession) -> None:
    tracker = spark.sparkContext.statusTracker()
    before = set(tracker.getJobIdsForGroup(WARM_UP))
    warm_up(spark, RULES)
    assert set(tracker.getJobIdsForGroup(WARM_UP)) - before


@pytest.mark.spark
def test_a_session_that_runs_is_joined(spark: SparkSession) -> None:
    assert build_spark_session(SparkSettings(), []) is spark


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
def test_jars_are_on_the_class_path_of_one_jvm_and_are_sent_to_executors_elsewhere(
    starts_local: bool, own: dict[str, str], expected: dict[str, str]
) -> None:
    settings = jvm_settings(SparkSettings(conf=own), [Path("/a.jar"), Path("/b.jar")], starts_local=starts_local)
    assert {key: settings[key] for key in ("spark.driver.extraClassPath", "spark.jars") if key in settings} == expected


MANAGER = "spark.sql.streaming.checkpointFileManagerClass"
ENDPOINT = "spark.hadoop.fs.s3a.endpoint"


def stored_settings(root: str, checkpoint: str = ".kquota/checkpoint", **conf: str) -> Settings:
    return Settings(
        store=StoreSettings(endpoint="http://store:9000"),
        tables=TablesSettings(root=root),
        stream=StreamSettings(checkpoint=checkpoint),
        spark=SparkSettings(conf={key: SecretStr(value) for key, value in conf.items()}),
    )


@pytest.mark.parametrize(
    ("found", "sets"),
    [
        (stored_settings(".kquota/tables"), ()),
        (stored_settings("s3://b/tables"), ()),
        (stored_settings(".kquota/tables", "s3a://b/checkpoint"), ("s3",)),
        (stored_settings("abfss://c@a.dfs.core.windows.net/t", "abfss://c@a.dfs.core.windows.net/c"), ()),
    ],
)
def test_the_jars_for_s3_are_needed_only_for_a_checkpoint_there(found: Settings, sets: tuple[str, ...]) -> None:
    assert jar_sets(found) == sets
    assert (ENDPOINT in with_store(found).plain_conf()) is bool(sets)


def test_a_checkpoint_in_the_store_gets_the_manager_that_writes_in_one_put() -> None:
    stored = with_store(stored_settings("s3://b/tables", "s3://b/checkpoint")).plain_conf()
    assert stored[MANAGER].endswith(".AbortableStreamBasedCheckpointFileManager")
    assert MANAGER not in with_store(stored_settings("s3://b/tables")).plain_conf()


def test_an_entry_of_the_operator_stays() -> None:
    own = stored_settings(".kquota/tables", "s3://b/checkpoint", **{ENDPOINT: "https://other", MANAGER: "a.Manager"})
    conf = with_store(own).plain_conf()
    assert (conf[ENDPOINT], conf[MANAGER]) == ("https://other", "a.Manager")
