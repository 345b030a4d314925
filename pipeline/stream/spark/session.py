"""Builds the Spark session, with every setting that the stream relies on. Nothing else builds one."""

import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from pyspark import SparkContext
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from pipeline.settings.model import SparkSettings
from pipeline.stream.errors import SparkConnectRefused
from pipeline.stream.spark.jvm_settings import MERGED, jvm_settings
from pipeline.stream.spark.jvm_start import start_jvm
from pipeline.stream.spark.scratch import scratch_folder
from pipeline.stream.spark.submitted import (
    is_submitted,
    refuse_without_connectors,
    submitted_jars,
)

_LOCAL_CHECKPOINT_MANAGER = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)


def build_spark_session(
    spark: SparkSettings,
    jars: Sequence[Path],
    checkpoint_is_local: bool = True,
    app_name: str = "kquota",
) -> SparkSession:
    """Start (or join) the classic Spark session of this process.

    If a session already exists, a notebook's for example, it is used: it keeps its own JVM options, memory and jars,
    and only the settings that may change at run time are applied. `JAVA_HOME` chooses the Java.

    Args:
        spark: the settings' branch. `spark.conf` overrides everything here, except that its driver JVM options and
            jars are added to ours.
        jars: local files of the locked jar set, for driver and executors. Empty where the cluster provides them.
        checkpoint_is_local: True for a checkpoint on a local disk or NFS. Spark's default checkpoint manager would
            start `readlink` and `chmod` as processes for every log file there, so another one is used. But only the
            default manager notices two drivers on one checkpoint, so the caller must hold a lock of its own.
        app_name: name in the cluster's lists.

    Returns:
        A classic session. Under Spark Connect `foreachBatch` would run on the server, without access to the driver's
        rates and purgatory.

    Raises:
        SparkConnectRefused: the environment, the settings or the running session asks for Spark Connect.
        ConnectorsMissing: spark-submit was not given the jars.
    """
    refuse_spark_connect(spark)
    refuse_without_connectors()
    # These print each error a second time, as a line of JSON with the whole Java stack. The exception has all of it.
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL)
    master = spark.master
    if not may_be_a_cluster(spark) and master is None:
        master = "local[*]"
    if master is not None and master.startswith("local"):
        _prepare_local_process()
    builder = SparkSession.builder.appName(app_name)
    if master is not None:
        builder = builder.master(master)
    is_first = starts_a_jvm()
    starts_local = is_first and master is not None and master.startswith("local")
    settings = _session_conf(spark, checkpoint_is_local)
    # What was submitted is given to executors already; named again, it would be sent twice.
    jars = () if submitted_jars() else jars
    settings |= jvm_settings(spark, jars, starts_local=starts_local, scratch=scratch_folder() if is_first else None)
    for key, value in settings.items():
        builder = builder.config(key, value)
    if is_first:
        start_jvm({"spark.app.name": app_name, **({"spark.master": master} if master else {}), **settings})
    session = builder.getOrCreate()
    if not hasattr(session, "_jsparkSession"):
        raise SparkConnectRefused(found_in="the running session")
    return session


def _session_conf(spark: SparkSettings, checkpoint_is_local: bool) -> dict[str, str]:
    """All settings of the session but those of its JVM, the operator's own applied last."""
    partitions = spark.shuffle_partitions or len(os.sched_getaffinity(0))
    conf = spark.plain_conf()
    settings = {
        "spark.api.mode": "classic",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(partitions),
        "spark.sql.execution.arrow.maxRecordsPerBatch": "100000",
        # Of large messages Python is given few at once.
        "spark.sql.execution.arrow.maxBytesPerBatch": "4194304",
        "spark.sql.streaming.noDataMicroBatches.enabled": "false",
        # The plan is small and always the same: planning it again after each stage costs 30 ms and changes nothing.
        "spark.sql.adaptive.enabled": "false",
        # Spark describes every execution for its UI, even if that is off. This is the short form.
        "spark.sql.ui.explainMode": "simple",
        # Spark keeps a thousand jobs, stages, plans and tasks for its UI: they would fill a small heap within minutes.
        "spark.sql.ui.retainedExecutions": "10",
        "spark.ui.retainedJobs": "10",
        "spark.ui.retainedStages": "10",
        "spark.ui.retainedTasks": "100",
        # By default a stop waits for ever for a batch that does not react to the interrupt.
        "spark.sql.streaming.stopTimeout": "30s",
        # Named sources, so that topics can be added later. This can not be switched on for an existing checkpoint.
        "spark.sql.streaming.queryEvolution.enableSourceEvolution": "true",
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        # Hides secrets among a source's options when Spark prints a plan, as the private key of a client certificate.
        "spark.sql.redaction.options.regex": r"(?i)url|\.(ssl|sasl)\.",
        # With the default of 50, each append to a small table runs a job of 50 tasks to read its state: seconds.
        "spark.databricks.delta.snapshotPartitions": "1",
    }
    if checkpoint_is_local:
        settings["spark.sql.streaming.checkpointFileManagerClass"] = _LOCAL_CHECKPOINT_MANAGER
    settings |= {key: value for key, value in conf.items() if key not in MERGED}
    return settings


def may_be_a_cluster(spark: SparkSettings) -> bool:
    """Whether a session is not surely local: with a master of another kind, or one that spark-submit has chosen."""
    return not spark.master.startswith("local") if spark.master is not None else is_submitted()


def starts_a_jvm() -> bool:
    """Whether a new session starts a JVM: not if a notebook, spark-submit or an earlier session has started one."""
    return SparkContext._gateway is None and not is_submitted()


def refuse_spark_connect(spark: SparkSettings) -> None:
    """Refuse anything that would make this a session of Spark Connect.

    Raises:
        SparkConnectRefused: The environment or the settings ask for Spark Connect.
    """
    for name in ("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED"):
        if name in os.environ:
            raise SparkConnectRefused(found_in=f"the environment variable {name}")
    if "spark.remote" in spark.conf:
        raise SparkConnectRefused(found_in="the setting spark.remote")
    if spark.plain_conf().get("spark.api.mode", "classic").lower() != "classic":
        raise SparkConnectRefused(found_in="the setting spark.api.mode")
    if (spark.master or "").startswith("sc://"):
        raise SparkConnectRefused(found_in=f"the master {spark.master}")


def _prepare_local_process() -> None:
    """Set the environment variables that Spark reads before its JVM starts. The user's own values are kept."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # otherwise workers run the first python3 on PATH
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # otherwise a host name that does not resolve is fatal
    # Otherwise glibc gives the JVM's many threads eight arenas per core, and none of them ever shrinks.
    os.environ.setdefault("MALLOC_ARENA_MAX", "2")
