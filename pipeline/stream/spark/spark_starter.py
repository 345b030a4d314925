"""Starts Spark on a thread of its own, while the rest of the job starts, and warms it up.

The first run of a plan takes seconds: the JVM loads classes and compiles generated code. So the plan is run on made-up
messages first. The first real batch is then quick enough for its decisions to be published.
"""

import os
import subprocess
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from threading import Event
from types import TracebackType
from typing import Any, Final, Self

from pyspark import SparkContext
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from pipeline.jvm.jars import spark_jars
from pipeline.jvm.java import find_java
from pipeline.settings.model import SparkSettings
from pipeline.stream.checkpoint_files import has_scheme
from pipeline.stream.errors import JvmEnded
from pipeline.stream.reading.collect import collect
from pipeline.stream.reading.reading_rules import ReadingRules
from pipeline.stream.spark.session import build_spark_session, starts_a_jvm

_WARM_UP_ROWS: Final = 2_000
_WARM_UP_RUNS: Final = 2
_POLL_SECONDS: Final = 0.1


class SparkStarter:
    """A context manager that starts a Spark session on a thread of its own, and stops it at the end.

    Jars and Java are checked on entering the context; their errors are raised there.

    Args:
        spark: The settings' branch.
        checkpoint: The query's checkpoint; a local one gets the quicker checkpoint manager.
        rules: What the plan is warmed up with. With other rules Spark would generate and compile other code.
        jar_sets: Optional sets of jars that are needed too.

    Attributes:
        warms_up: Set when there is a session and only the warm-up is left, seconds before `session` returns.
    """

    def __init__(
        self, spark: SparkSettings, checkpoint: str, rules: ReadingRules, jar_sets: Sequence[str] = ()
    ) -> None:
        self._spark = spark
        self._jar_sets = jar_sets
        self._rules = rules
        self._checkpoint_is_local = not has_scheme(checkpoint)
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="spark-start")
        self._session: Future[SparkSession] | None = None
        self._starts_jvm = False
        self.warms_up = Event()

    def __enter__(self) -> Self:
        jars = spark_jars(*self._jar_sets)
        os.environ["JAVA_HOME"] = str(find_java().home)
        self._starts_jvm = starts_a_jvm()

        def start() -> SparkSession:
            session = build_spark_session(self._spark, jars, self._checkpoint_is_local)
            self.warms_up.set()
            _warm_up(session, self._rules)
            return session

        self._session = self._pool.submit(start)
        return self

    def session(self) -> SparkSession:
        """Wait for the session. An error of its start is raised here."""
        return self._begun().result()

    def session_unless(self, given_up: Event) -> SparkSession | None:
        """Wait for the session or the event, whichever comes first; None if it was the event."""
        session = self._begun()
        while not session.done():
            if given_up.wait(_POLL_SECONDS):
                return None
        return session.result()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        session = self._session
        if session is not None and not session.cancel():
            self._cut_short(session)
            if session.exception() is None and self.jvm_ended() is None:
                session.result().stop()
        self._pool.shutdown()

    def _begun(self) -> Future[SparkSession]:
        if self._session is None:
            message = "enter the starter before asking for its session"
            raise RuntimeError(message)
        return self._session

    def _cut_short(self, session: Future[SparkSession]) -> None:
        """Kill the JVM if the session is still being made and this starter has started the JVM: nobody needs it now."""
        while self._starts_jvm and not session.done():
            process = _jvm()
            if process is not None:
                process.kill()
            wait([session], _POLL_SECONDS)

    def jvm_ended(self) -> JvmEnded | None:
        """How the JVM of this process has ended; None while it runs, or if this process has not started it."""
        process = _jvm()
        exit_code = None if process is None else process.poll()
        return None if exit_code is None else JvmEnded(exit_code, self._spark.driver_memory)


def _jvm() -> "subprocess.Popen[bytes] | None":
    """The JVM that this process has started, running or not."""
    gateway: Any = SparkContext._gateway
    return getattr(gateway, "proc", None)


def _warm_up(session: SparkSession, rules: ReadingRules) -> None:
    number = F.col("id")
    message = F.concat(
        F.lit('{"event_time_ms":1,"user":"u'), number % 100, F.lit('","client_id":"c","produced_bytes":1}')
    )
    raw = session.range(_WARM_UP_ROWS).select(
        message.cast("binary").alias("value"),
        F.lit("warm-up").alias("topic"),
        F.lit(0).alias("partition"),
        number.alias("offset"),
        F.timestamp_millis(F.lit(1_000)).alias("timestamp"),
    )
    for _ in range(_WARM_UP_RUNS):
        collect(raw, rules)
