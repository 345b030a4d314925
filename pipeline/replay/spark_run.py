"""The replays of a range on the executors of a Spark cluster, for ranges that are too long for one machine.

Each part is one task: one replay for a share of the users. Every task reads the whole range through delta-rs and keeps
the usage of its users. Executors get this package with the session; they need its dependencies, and a root they reach.
"""

import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from threading import Event
from typing import Final

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from pipeline.errors import Unreachable
from pipeline.jvm.jars import spark_jars
from pipeline.jvm.java import find_java
from pipeline.replay.request import Plan
from pipeline.replay.run import joined, replay_part
from pipeline.replay.usage_batches import ReplayResult
from pipeline.settings.model import SparkSettings
from pipeline.stream.collect import executor_python_unfit
from pipeline.stream.executors import NEEDED_TO_REPLAY, ExecutorWatch, ship_package, when_master_answers
from pipeline.stream.session import build_spark_session, refuse_spark_connect

_POLL_SECONDS: Final = 0.2
_SETTLED_SECONDS: Final = 2.5
_OUT_OF_REACH: Final = re.compile(r"(?:FileNotFoundError|PermissionError): ([^\n]*?)(?:\. Detail|\n|$)")


@contextmanager
def replay_session(settings: SparkSettings) -> Iterator[SparkSession]:
    """A session for replays: the one this process has, or else a new one that ends with the block.

    On a cluster its executors get this package, and the block begins when there are some.

    Raises:
        UsageError: The environment or the settings ask for Spark Connect, which has no RDDs.
    """
    refuse_spark_connect(settings)
    found = SparkSession.getActiveSession()
    os.environ["JAVA_HOME"] = str(find_java().home)
    with ExecutorWatch() as watch:
        build = partial(build_spark_session, settings, spark_jars(), app_name="kquota what-if")
        session = when_master_answers(settings.master or "", build, Event())
        try:
            if not str(session.sparkContext.master).startswith("local"):
                ship_package(session)
                _await_executors(watch)
            yield session
        finally:
            if found is None:
                session.stop()


def run_on_spark(plan: Plan, session: SparkSession) -> tuple[list[ReplayResult], str]:
    """All replays of a range, one task per part; as many parts as the cluster has cores.

    Raises:
        Unreachable: The Python of the executors cannot run a replay, or they do not find the table.
        NotFound: The range has no usage.
    """
    context = session.sparkContext
    plan = plan.for_processes(context.defaultParallelism)
    tasks = len(plan.parts)
    replayed = context.parallelize(plan.parts, tasks).map(lambda part: replay_part(plan, part, lambda: None))
    try:
        results = replayed.collect()
    except (Py4JJavaError, PySparkException) as exc:
        missing = _OUT_OF_REACH.search(str(exc))
        if missing is not None:
            msg = f"the executors of {context.master} cannot read {plan.uri}: {missing[1]}"
            fix = "use a store or a folder that every machine mounts under the same path; or leave out --on spark"
            raise Unreachable(msg, fix) from exc
        if unfit := executor_python_unfit(context, exc, NEEDED_TO_REPLAY):
            raise unfit from exc
        raise
    return joined(plan, results), f"Spark {session.version} at {context.master}, {tasks} tasks"


def _await_executors(watch: ExecutorWatch) -> None:
    """Wait until there are executors and no more come: they decide into how many parts the work is divided."""
    count, since = 0, time.monotonic()
    while not count or time.monotonic() - since < _SETTLED_SECONDS:
        if watch.count != count:
            count, since = watch.count, time.monotonic()
        time.sleep(_POLL_SECONDS)
