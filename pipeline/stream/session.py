"""The Spark session: settings of its JVM, its start, spark-submit, what executors get, warm-up, and its thread."""

import atexit
import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import Event
from types import TracebackType
from typing import Any, Final, Self, TypeVar
from zipfile import ZIP_DEFLATED, ZipFile

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import pipeline
import purgatory
import quota
import schemas
from pipeline.command_line import command_text
from pipeline.errors import MasterUnreachable, PipelineError, UsageError
from pipeline.jvm.jars import pyspark_jars_folder, spark_jars
from pipeline.jvm.java import archive_options, find_java
from pipeline.settings.model import Settings, SparkSettings
from pipeline.stream.query import collect_on_driver
from pipeline.stream.usage_columns import ReadingRules
from pipeline.tables.object_store import S3_SCHEMES, hadoop_settings, scheme_of

_CHOICE_OF_COLLECTOR: Final = re.compile(r"-XX:\+Use\w+GC\b")
# G1, the usual one, needs concurrent threads and takes the whole heap when the machine is busy. The young generation
# keeps the garbage of a micro-batch out of the old one, and its survivor spaces the messages of a usual batch: left to
# the JVM they shrink, and the old generation grows with every batch of a backlog.
_COLLECTOR: Final = (
    *("-XX:+UseParallelGC", "-Xms168m", "-Xmn112m"),
    *("-XX:SurvivorRatio=2", "-XX:-UseAdaptiveSizePolicy", "-XX:MaxTenuringThreshold=6"),
)
_LEAST_HEAP_MIB: Final = 512
_HEAP_MIB_PER_CORE: Final = 64
_CORES_OF_LEAST_HEAP: Final = 4
_LOG_SETTINGS: Final = Path(__file__).with_name("log4j2.properties")
_HEAP: Final = "spark.driver.memory"
_OPTIONS: Final = "spark.driver.extraJavaOptions"
_CLASS_PATH: Final = "spark.driver.extraClassPath"
_JARS: Final = "spark.jars"
MERGED: Final = (_OPTIONS, _CLASS_PATH, _JARS)
"""Settings in which the operator's own value is added to ours."""


def jvm_settings(spark: SparkSettings, jars: Sequence[Path], *, starts_local: bool) -> dict[str, str]:
    """The settings of the driver's JVM, the operator's own included.

    * `starts_local`: Whether the session starts a JVM in which everything runs. Then the jars are on its class path,
      and need not be copied to executors.
    """
    conf = spark.plain_conf()
    settings = {_HEAP: heap_of(spark)}
    places = {_CLASS_PATH if starts_local else _JARS: [str(jar) for jar in jars]}
    for key, separator in ((_CLASS_PATH, os.pathsep), (_JARS, ",")):
        if found := [*places.get(key, ()), *([conf[key]] if conf.get(key) else ())]:
            settings[key] = separator.join(found)
    # -Xss4m: when a batch is interrupted, Spark matches a regular expression against the Python traceback. That
    # overflows the default thread stack and kills the stream's thread.
    options = ["-Xss4m", f'"-Dlog4j2.configurationFile={_LOG_SETTINGS.as_uri()}"']
    own = conf.get(_OPTIONS, "")
    if not _CHOICE_OF_COLLECTOR.search(own):  # the JVM refuses two
        options += _COLLECTOR
    if starts_local:
        # The optimizing compiler takes a tenth of a core for minutes, 100 MB, and half of a start on two cores. It
        # gains a fifth on a large backlog of objects, nothing on small batches. `-XX:TieredStopAtLevel=4` allows it.
        options.append("-XX:TieredStopAtLevel=1")
        class_path = [Path(jar) for jar in settings.get(_CLASS_PATH, "").split(os.pathsep)]
        own_jars = sorted((pyspark_jars_folder() or Path("jars")).glob("*.jar"))
        options += archive_options(Path(os.environ.get("JAVA_HOME", "")), [*own_jars, *class_path])
    settings[_OPTIONS] = " ".join([*options, *([own] if own else ())])
    return settings


def heap_of(spark: SparkSettings) -> str:
    """The most heap of the driver's JVM, as Spark writes it.

    What is kept takes 70 MB for any number of clients, as Python decides. The rest is for the batch under way: its
    messages, 131 MB at most, or what a task of each core reads.
    """
    further_cores = max(len(os.sched_getaffinity(0)) - _CORES_OF_LEAST_HEAP, 0)
    return spark.plain_conf().get(_HEAP, f"{_LEAST_HEAP_MIB + further_cores * _HEAP_MIB_PER_CORE}m")


# Only a checkpoint in an object store needs this, wherever the tables are: delta-rs reads and writes those.
_S3_JARS: Final = "s3"
# It writes a file of the checkpoint in one put. Spark's other managers write a file under another name and rename it,
# which a store does by a copy.
_CHECKPOINT_MANAGER: Final = "org.apache.spark.internal.io.cloud.AbortableStreamBasedCheckpointFileManager"


def jar_sets(settings: Settings) -> tuple[str, ...]:
    """The optional sets of jars that Spark needs."""
    return (_S3_JARS,) if _is_checkpoint_in_s3(settings) else ()


DELTA_CONF: Final = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # With the default of 50, each append to a small table runs a job of 50 tasks to read its state: seconds.
    "spark.databricks.delta.snapshotPartitions": "1",
}
"""What a session needs in which Spark itself reads or writes Delta tables. It takes 0.2 s of a start."""


def with_store(settings: Settings) -> SparkSettings:
    """The settings of Spark, with what it needs for a checkpoint in S3; the operator's own entries stay."""
    if not _is_checkpoint_in_s3(settings):
        return settings.spark
    manager = {"spark.sql.streaming.checkpointFileManagerClass": _CHECKPOINT_MANAGER}
    return settings.spark.with_default_conf({**hadoop_settings(settings.store), **manager})


def _is_checkpoint_in_s3(settings: Settings) -> bool:
    return scheme_of(settings.stream.checkpoint) in S3_SCHEMES


_GATEWAY: Final = "PYSPARK_GATEWAY_PORT"
_CONNECTOR: Final = "org/apache/spark/sql/kafka010/KafkaSourceProvider.class"


def is_submitted() -> bool:
    """Whether spark-submit has started this process, and a JVM before it."""
    return _GATEWAY in os.environ


def runs_in_the_cluster() -> bool:
    """Whether the cluster has chosen the node of this driver: spark-submit with `--deploy-mode cluster`."""
    if not is_submitted():
        return False
    conf = _conf()
    # On Kubernetes the pod of the driver runs spark-submit once more, in client mode.
    return "cluster" in str(conf.get("spark.submit.deployMode", "")) or (
        conf.get("spark.kubernetes.submitInDriver", "") == "true"
    )


def submitted_jars() -> str:
    """The jars that were submitted, with commas; "" for none."""
    return str(_conf().get("spark.jars", "")) if is_submitted() else ""


def refuse_without_connectors() -> None:
    """Refuse a submitted JVM whose class path has no Kafka source: it cannot be added any more."""
    # Not in a notebook, whose session runs already.
    is_fresh = is_submitted() and SparkContext._active_spark_context is None
    if is_fresh and _jvm().java.lang.Thread.currentThread().getContextClassLoader().getResource(_CONNECTOR) is None:
        message = "spark-submit was started without the Kafka and Delta connectors on its class path"
        raise UsageError(message, f'submit with --jars "$({command_text("jars", "paths", about="program")})"')


def _conf() -> SparkConf:
    _jvm()
    return SparkConf()


def _jvm() -> Any:
    SparkContext._ensure_initialized()
    return SparkContext._jvm


_LOCAL_CHECKPOINT_MANAGER = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)
# Hadoop's own starts a process, `chmod`, for each file that it writes: four a micro-batch, 25 ms.
_LOCAL_FILE_SYSTEM = "com.globalmentor.apache.hadoop.fs.BareLocalFileSystem"


def build_spark_session(
    spark: SparkSettings, jars: Sequence[Path], checkpoint_is_local: bool = True, app_name: str = "kquota"
) -> SparkSession:
    """Start (or join) the classic Spark session of this process.

    If a session already exists, a notebook's for example, it is used: it keeps its own JVM options, memory and jars,
    and only the settings that may change at run time are applied. `JAVA_HOME` chooses the Java. Under Spark Connect
    `foreachBatch` would run on the server, without access to the driver's rates and purgatory, so that is refused.

    * `spark`: `spark.conf` overrides everything here, except that its driver JVM options and jars are added to ours.
    * `jars`: local files of the locked jar set, for driver and executors. Empty where the cluster provides them.
    * `checkpoint_is_local`: True for a checkpoint on a local disk or NFS. Spark's default checkpoint manager would
      start `readlink` and `chmod` as processes for every log file there, so another one is used. But only the
      default manager notices two drivers on one checkpoint, so the caller must hold a lock of its own.

    Raises:
        UsageError: the session would be of Spark Connect, or spark-submit was not given the jars.
    """
    refuse_spark_connect(spark)
    refuse_without_connectors()
    # These print each error a second time, as a line of JSON with the whole Java stack. The exception has all of it.
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL)
    master = spark.master
    if master is None and not is_submitted():
        master = "local[*]"
    if master is not None and master.startswith("local"):
        _prepare_local_process()
    starts_local = starts_a_jvm() and master is not None and master.startswith("local")
    settings = _session_conf(spark, checkpoint_is_local)
    if starts_local and jars:
        settings.setdefault("spark.hadoop.fs.file.impl", _LOCAL_FILE_SYSTEM)
    # What was submitted is given to executors already; named again, it would be sent twice.
    jars = () if submitted_jars() else jars
    settings |= jvm_settings(spark, jars, starts_local=starts_local)
    settings = {"spark.app.name": app_name, **({"spark.master": master} if master else {}), **settings}
    builder = SparkSession.builder
    for key, value in settings.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    if not hasattr(session, "_jsparkSession"):
        raise _spark_connect_refused(found_in="the running session")
    return session


def _session_conf(spark: SparkSettings, checkpoint_is_local: bool) -> dict[str, str]:
    conf = spark.plain_conf()
    settings = {
        "spark.api.mode": "classic",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(len(os.sched_getaffinity(0))),
        "spark.sql.execution.arrow.maxRecordsPerBatch": "100000",
        # The plan is small and always the same: planning it again after each stage costs 30 ms and changes nothing.
        "spark.sql.adaptive.enabled": "false",
        # Spark keeps a thousand jobs, stages, plans and tasks for its UI: they would fill a small heap within minutes.
        "spark.sql.ui.retainedExecutions": "10",
        "spark.ui.retainedJobs": "10",
        "spark.ui.retainedStages": "10",
        "spark.ui.retainedTasks": "100",
        # By default a stop waits for ever for a batch that does not react to the interrupt.
        "spark.sql.streaming.stopTimeout": "30s",
        # Named sources, so that topics can be added later. This cannot be switched on for an existing checkpoint.
        "spark.sql.streaming.queryEvolution.enableSourceEvolution": "true",
        # Hides secrets among a source's options when Spark prints a plan, as the private key of a client certificate.
        "spark.sql.redaction.options.regex": r"(?i)url|\.(ssl|sasl)\.",
    }
    if checkpoint_is_local:
        settings["spark.sql.streaming.checkpointFileManagerClass"] = _LOCAL_CHECKPOINT_MANAGER
    return settings | {key: value for key, value in conf.items() if key not in MERGED}


def starts_a_jvm() -> bool:
    """Whether a new session starts a JVM: not if a notebook, spark-submit or an earlier session has started one."""
    return SparkContext._gateway is None and not is_submitted()


def _spark_connect_refused(found_in: str) -> UsageError:
    return UsageError(
        f"the session would be of Spark Connect, by {found_in}; the purgatory needs a classic session in its driver",
        "unset it, and name a master (local[*], spark://…) or use spark-submit",
    )


def refuse_spark_connect(spark: SparkSettings) -> None:
    """Refuse an environment or settings that ask for Spark Connect."""
    variables = ("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED")
    found = [f"the environment variable {name}" for name in variables if name in os.environ]
    found += ["the setting spark.remote"] if "spark.remote" in spark.conf else []
    if spark.plain_conf().get("spark.api.mode", "classic").lower() != "classic":
        found.append("the setting spark.api.mode")
    found += [f"the master {spark.master}"] if (spark.master or "").startswith("sc://") else []
    if found:
        raise _spark_connect_refused(found[0])


def _prepare_local_process() -> None:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # otherwise workers run the first python3 on PATH
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # otherwise a host name that does not resolve is fatal


Made = TypeVar("Made")

_STOPPED: Final = "stopped SparkContext"
_LITTLE_HEAP: Final = re.compile(r"System memory \d+ must be at least \d+")


def made_at(master: str, make: Callable[[], Made]) -> Made:
    """Make a session. Spark tries for a minute, and then leaves a stopped context: that is `MasterUnreachable`.

    A heap that is too small for Spark is a `UsageError`.
    """
    try:
        return make()
    except (Py4JJavaError, PySparkException) as exc:
        if little := _LITTLE_HEAP.search(str(exc)):
            msg = f"the heap of the driver's JVM is too small: {little[0]} bytes"
            raise UsageError(msg, f"raise '{_HEAP}' of spark.conf, or leave it out") from exc
        if _STOPPED not in str(exc):
            raise
        context = SparkContext._active_spark_context
        with suppress(Py4JError, OSError):
            if context is not None:
                context.stop()
        raise MasterUnreachable(master) from exc


def ship_package(session: SparkSession) -> None:
    """Give the executors of a cluster this package, so that nothing of ours must be installed on their machines.

    Spark hands out the file itself, also to executors that come later; it stays until the process ends.
    """
    if not str(session.sparkContext.master).startswith("local"):
        folder = Path(tempfile.mkdtemp(prefix="kquota-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        session.sparkContext.addPyFile(str(zip_package(folder)))


def zip_package(folder: Path) -> Path:
    """Write all modules of the installed package into a zip, which may be there already. Returns its path."""
    path = folder / "kquota.zip"
    with ZipFile(path, "w", ZIP_DEFLATED) as archive:
        for package in (pipeline, purgatory, quota, schemas):
            root = Path(str(package.__file__)).parent
            for module in sorted(root.rglob("*.py")):
                archive.write(module, f"{root.name}/{module.relative_to(root)}")
    return path


WARM_UP: Final = "kquota-warm-up"
"""Spark's name for this run; it is cancelled by it."""
_WARM_UP_ROWS: Final = 2_000


def warm_up(session: SparkSession, rules: ReadingRules) -> None:
    """Read a small batch of made-up messages.

    The first run of the job's plan takes a second or more: the JVM loads classes and compiles generated code. That time
    is used while the job reads its tables. Large batches are left out: Python's start on the executors costs them a
    second, and a young job memory.
    """
    session.sparkContext.setJobGroup(WARM_UP, "first run of the plan", interruptOnCancel=True)
    number = F.col("id")
    message = F.concat(
        F.lit('{"event_time_ms":1,"user":"u'), number % 100, F.lit('","client_id":"c","produced_bytes":1}')
    )
    raw = session.range(_WARM_UP_ROWS).select(
        message.cast("binary").alias("value"),
        F.lit(0).alias("partition"),
        number.alias("offset"),
        F.timestamp_millis(F.lit(1_000)).alias("timestamp"),
    )
    collect_on_driver(raw, rules, _WARM_UP_ROWS)


_POLL_SECONDS: Final = 0.1
_NO_MEMORY: Final = 52  # an exit code of Spark; a code below 0 is a signal


class SparkStarter:
    """A context manager that starts a Spark session on a thread of its own, warms it up, and stops it at the end.

    Jars and Java are checked on entering the context; their errors are raised there. It needs little of the package, so
    that a program can import the rest while the JVM starts.

    Args:
        settings: Of the job; what Spark needs to reach a checkpoint in a store is added.

    Attributes:
        warms_up: Set when there is a session; `session_unless` returns it at once, or after a run of the warm-up.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._spark = with_store(settings)
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="spark-start")
        self._session: Future[SparkSession]
        self._starts_jvm = False
        self._wanted = Event()
        self.warms_up = Event()

    def __enter__(self) -> Self:
        jars = spark_jars(*jar_sets(self._settings))
        os.environ["JAVA_HOME"] = str(find_java().home)
        self._starts_jvm = starts_a_jvm()

        is_local = not scheme_of(self._settings.stream.checkpoint)

        def start() -> SparkSession:
            build = partial(build_spark_session, self._spark, jars, is_local)
            session = made_at(self._spark.master or "", build)
            ship_package(session)
            self.warms_up.set()
            if not self._wanted.is_set():
                warm_up(session, ReadingRules.from_settings(self._settings))
            return session

        self._session = self._pool.submit(start)
        return self

    def session_unless(self, given_up: Event) -> SparkSession | None:
        """Wait for the session and its warm-up, or for the event, whichever comes first; None if it was the event.

        A warm-up that has not begun is left out. An error of the start is raised. Only inside the context.
        """
        self._wanted.set()
        while not self._session.done():
            if given_up.wait(_POLL_SECONDS):
                return None
        return self._session.result()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        session = self._session
        if not session.cancel():
            self._cut_short(session)
            if session.exception() is None:
                with suppress(Py4JError, OSError):  # the JVM has ended, or got the same signal and ends now
                    session.result().stop()
        self._pool.shutdown()

    def _cut_short(self, session: Future[SparkSession]) -> None:
        """End the making of the session, which is not needed any more: kill the JVM if this starter has started it.

        Otherwise cancel the warm-up, which would wait for executors for ever where there are none.
        """
        while not session.done():
            process = _jvm_of_spark_starter() if self._starts_jvm else None
            if process is not None:
                process.kill()
            elif self.warms_up.is_set():
                with suppress(Py4JError, OSError):
                    SparkContext.getOrCreate().cancelJobGroup(WARM_UP)
            wait([session], _POLL_SECONDS)

    def jvm_ended(self) -> PipelineError | None:
        """How the JVM of this process has ended; None while it runs, or if this process has not started it."""
        process = _jvm_of_spark_starter()
        exit_code = None if process is None else process.poll()
        if exit_code is None:
            return None
        how, fix = f"code {exit_code}", "start the job again: it goes on where it was"
        if exit_code == _NO_MEMORY:
            how = f"code {exit_code}: out of memory, {_HEAP} = {heap_of(self._spark)}"
            fix = f"raise '{_HEAP}' of spark.conf, or lower 'stream.max_offsets_per_trigger', and {fix}"
        return PipelineError(f"Spark's JVM exited ({how})", fix)


def _jvm_of_spark_starter() -> "subprocess.Popen[bytes] | None":
    gateway: Any = SparkContext._gateway
    return getattr(gateway, "proc", None)
