"""Starts Spark on a thread of its own, while the rest of the job starts, and warms it up until it is wanted."""

import os
import subprocess
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from threading import Event
from types import TracebackType
from typing import Any, Final, Self

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.sql import SparkSession

from pipeline.jvm.jars import spark_jars
from pipeline.jvm.java import find_java
from pipeline.settings.model import SparkSettings
from pipeline.stream.checkpoint_files import has_scheme
from pipeline.stream.errors import JvmEnded
from pipeline.stream.spark.executor_watch import ExecutorWatch
from pipeline.stream.spark.master import when_master_answers
from pipeline.stream.spark.session import build_spark_session, may_be_a_cluster, starts_a_jvm
from pipeline.stream.spark.shipped_package import ship_package
from pipeline.stream.spark.warm_up import JOB_GROUP, warm_up
from pipeline.stream.usage_columns import ReadingRules

_POLL_SECONDS: Final = 0.1


class SparkStarter:
    """A context manager that starts a Spark session on a thread of its own, and stops it at the end.

    Jars and Java are checked on entering the context; their errors are raised there.

    Args:
        spark: The settings' branch.
        checkpoint: The query's checkpoint; a local one gets the quicker checkpoint manager.
        rules: What the plan is warmed up with. With other rules Spark would generate and compile other code.
        waits: Whether a master that does not answer is waited for; if not, `session` raises `MasterUnreachable`.
        jar_sets: Optional sets of jars that are needed too.

    Attributes:
        warms_up: Set when there is a session; `session` returns it at once, or after a run of the warm-up.
    """

    def __init__(
        self,
        spark: SparkSettings,
        checkpoint: str,
        rules: ReadingRules,
        waits: bool = True,
        jar_sets: Sequence[str] = (),
    ) -> None:
        self._spark = spark
        self._jar_sets = jar_sets
        self._rules = rules
        self._checkpoint_is_local = not has_scheme(checkpoint)
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="spark-start")
        self._session: Future[SparkSession] | None = None
        self._starts_jvm = False
        self._waits = waits
        self._given_up = Event()
        self._wanted = Event()
        self._watch = ExecutorWatch()
        self.warms_up = Event()

    def __enter__(self) -> Self:
        jars = spark_jars(*self._jar_sets)
        os.environ["JAVA_HOME"] = str(find_java().home)
        self._starts_jvm = starts_a_jvm()

        def build() -> SparkSession:
            return build_spark_session(self._spark, jars, self._checkpoint_is_local)

        def start() -> SparkSession:
            session = when_master_answers(self._spark.master or "", build, self._given_up, self._waits)
            ship_package(session)
            self.warms_up.set()
            warm_up(session, self._rules, self._wanted)
            return session

        self._session = self._pool.submit(start)
        if may_be_a_cluster(self._spark):
            self._watch.__enter__()
        return self

    def session(self) -> SparkSession:
        """Wait for the session, and end its warm-up. An error of its start is raised here."""
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
        self._given_up.set()
        self._watch.__exit__()
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
        self._wanted.set()
        return self._session

    def _cut_short(self, session: Future[SparkSession]) -> None:
        """End the making of the session, which nobody needs now: kill the JVM if this starter has started it.

        Otherwise cancel the warm-up, which would wait for executors for ever where there are none.
        """
        while not session.done():
            process = _jvm() if self._starts_jvm else None
            if process is not None:
                process.kill()
            elif self.warms_up.is_set():
                with suppress(Py4JError, OSError):
                    SparkContext.getOrCreate().cancelJobGroup(JOB_GROUP)
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
