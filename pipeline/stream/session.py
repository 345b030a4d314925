"""The one place that builds a Spark session, and every setting the stream relies on."""

import logging
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from pyspark import SparkContext
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from pipeline.jvm.class_archive import class_archive
from pipeline.jvm.jars import pyspark_jars_folder
from pipeline.settings.model import SparkSettings
from pipeline.stream.errors import SparkConnectRefused
from pipeline.stream.scratch import scratch_folder

_LOCAL_CHECKPOINT_MANAGER = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)
# Two choices are an error to the JVM, so an operator's own replaces ours. Ours does without G1's concurrent threads and
# barriers: a micro-batch leaves short-lived garbage only.
_CHOICE_OF_COLLECTOR = re.compile(r"-XX:\+Use\w+GC\b")
_SUBMITTED = "PYSPARK_GATEWAY_PORT"
"""Set by spark-submit, which has started the JVM and knows the master."""
_LOG_SETTINGS = Path(__file__).with_name("log4j2.properties")


def build_spark_session(
    spark: SparkSettings,
    jars: Sequence[Path],
    checkpoint_is_local: bool = True,
    app_name: str = "kquota",
) -> SparkSession:
    """Start (or join) the classic Spark session of this process.

    A session that already exists, a notebook's for example, is kept: its JVM options, memory and jars are then its
    own, and only the settings that may change at run time are applied. `JAVA_HOME` chooses the Java.

    Args:
        spark: the settings' branch. `spark.conf` wins over everything here, except that its driver JVM options and
            jars are added to ours.
        jars: local files of the locked jar set, for driver and executors. Empty where the cluster brings them.
        checkpoint_is_local: True for a checkpoint on a local disk or NFS, where Spark's default manager forks
            `readlink` and `chmod` for every log file. That manager is also what notices two drivers on one
            checkpoint, so the caller must hold a lock of its own.
        app_name: name in the cluster's lists.

    Returns:
        A classic session: under Spark Connect `foreachBatch` runs on the server, out of reach of the driver's rates
        and purgatory.

    Raises:
        SparkConnectRefused: the environment, the settings or the running session asks for Spark Connect.
    """
    refuse_spark_connect(spark)
    # They print each error a second time, as a line of JSON with the whole Java stack; the exception says it all.
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL)
    master = spark.master
    if master is None and _SUBMITTED not in os.environ:
        master = "local[*]"
    if master is not None and master.startswith("local"):
        _prepare_local_process()
    builder = SparkSession.builder.appName(app_name)
    if master is not None:
        builder = builder.master(master)
    scratch = scratch_folder() if starts_a_jvm() else None
    for key, value in _session_conf(spark, jars, checkpoint_is_local, scratch).items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    if not hasattr(session, "_jsparkSession"):
        raise SparkConnectRefused(found_in="the running session")
    return session


def _session_conf(
    spark: SparkSettings, jars: Sequence[Path], checkpoint_is_local: bool, scratch: Path | None
) -> dict[str, str]:
    """All settings of the session, the operator's own applied last."""
    partitions = spark.shuffle_partitions or len(os.sched_getaffinity(0))
    memory = spark.conf.get("spark.driver.memory", spark.driver_memory)
    settings = {
        "spark.api.mode": "classic",
        "spark.driver.memory": memory,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(partitions),
        "spark.sql.execution.arrow.maxRecordsPerBatch": "100000",
        "spark.sql.streaming.noDataMicroBatches.enabled": "false",
        # The plan is small and always the same: to plan it again after each stage costs 30 ms and finds nothing.
        "spark.sql.adaptive.enabled": "false",
        # Every execution is described for a UI that is off; this is the short form.
        "spark.sql.ui.explainMode": "simple",
        # Nor are a thousand of each kept for it: jobs, stages, plans and tasks fill a small heap within minutes.
        "spark.sql.ui.retainedExecutions": "10",
        "spark.ui.retainedJobs": "10",
        "spark.ui.retainedStages": "10",
        "spark.ui.retainedTasks": "100",
        # The default waits for ever for a batch that does not listen to the interrupt.
        "spark.sql.streaming.stopTimeout": "30s",
        # Named sources, so that topics can be added later; can not be switched on for an existing checkpoint.
        "spark.sql.streaming.queryEvolution.enableSourceEvolution": "true",
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        # What a plan shows of a source's options: without this, the private key of a client certificate.
        "spark.sql.redaction.options.regex": r"(?i)url|\.(ssl|sasl)\.",
        # The default of 50 makes reading the state of a small table a job of 50 tasks, seconds for each append.
        "spark.databricks.delta.snapshotPartitions": "1",
    }
    if checkpoint_is_local:
        settings["spark.sql.streaming.checkpointFileManagerClass"] = _LOCAL_CHECKPOINT_MANAGER
    # All of the heap from the start: it fills up anyway, and what a job takes is then known before its first night.
    # -Xss4m: on a stop in mid-batch Spark matches a regular expression against the Python traceback, which
    # overflows the default thread stack and kills the stream's thread.
    java_options = [f"-Xms{memory}", "-XX:+AlwaysPreTouch", "-Xss4m"]
    java_options.append(f'"-Dlog4j2.configurationFile={_LOG_SETTINGS.as_uri()}"')
    if scratch is not None:
        java_options.append(f'"-Djava.io.tmpdir={scratch}"')
    if not _CHOICE_OF_COLLECTOR.search(spark.conf.get("spark.driver.extraJavaOptions", "")):
        java_options.append("-XX:+UseParallelGC")
    java_options += _class_archive_options()
    all_jars = [str(jar) for jar in jars]
    for key, value in spark.conf.items():
        if key == "spark.driver.extraJavaOptions":
            java_options.append(value)
        elif key == "spark.jars":
            all_jars.append(value)
        else:
            settings[key] = value
    settings["spark.driver.extraJavaOptions"] = " ".join(java_options)
    if all_jars:
        settings["spark.jars"] = ",".join(all_jars)
    return settings


def starts_a_jvm() -> bool:
    """Whether a session begun now has a JVM of its own, not that of a notebook, spark-submit or an earlier one."""
    return SparkContext._gateway is None and _SUBMITTED not in os.environ


def _class_archive_options() -> list[str]:
    """Start from the machine's class archive, if it has one for this Java and these jars."""
    jars = pyspark_jars_folder()
    if jars is None or not os.environ.get("JAVA_HOME"):
        return []
    archive = class_archive(Path(os.environ["JAVA_HOME"]), jars)
    # Quietly: one that does not fit after all is left unused.
    return [f"-XX:SharedArchiveFile={archive}", "-Xlog:cds=off", "-Xlog:cds+dynamic=off"] if archive.exists() else []


def refuse_spark_connect(spark: SparkSettings) -> None:
    """Refuse what would make the session one of Spark Connect.

    Raises:
        SparkConnectRefused: The environment or the settings ask for it.
    """
    for name in ("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED"):
        if name in os.environ:
            raise SparkConnectRefused(found_in=f"the environment variable {name}")
    if "spark.remote" in spark.conf:
        raise SparkConnectRefused(found_in="the setting spark.remote")
    if spark.conf.get("spark.api.mode", "classic").lower() != "classic":
        raise SparkConnectRefused(found_in="the setting spark.api.mode")
    if (spark.master or "").startswith("sc://"):
        raise SparkConnectRefused(found_in=f"the master {spark.master}")


def _prepare_local_process() -> None:
    """Set what Spark reads from the environment before its JVM starts; what the user has set is kept."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # else workers are whatever python3 is on PATH
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # else a host name that does not resolve is fatal
    # else glibc gives the JVM's many threads eight arenas a core, none of which ever shrinks
    os.environ.setdefault("MALLOC_ARENA_MAX", "2")
