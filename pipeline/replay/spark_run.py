"""The same replays on the executors of a Spark cluster, for ranges that are too long for one machine.

A slice is decided and counted on one executor. The driver gets from each slice who is held at its end, and its result.
Executors read the table through delta-rs: they need this package with its dependencies, and a root they can reach.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark import StorageLevel
from pyspark.sql import SparkSession

from pipeline.jvm.jars import spark_jars
from pipeline.jvm.java import find_java
from pipeline.replay.local_run import with_usage
from pipeline.replay.outcome import ReplayResult
from pipeline.replay.request import Plan
from pipeline.replay.slice_replay import Held, carried_into, count, decide, held_by, lengthen
from pipeline.settings.model import SparkSettings
from pipeline.stream.session import build_spark_session, refuse_spark_connect


@contextmanager
def replay_session(settings: SparkSettings) -> Iterator[SparkSession]:
    """A session for replays: the one this process has, or else a new one that ends with the block.

    Raises:
        SparkConnectRefused: The environment or the settings ask for Spark Connect, which has no RDDs.
    """
    refuse_spark_connect(settings)
    found = SparkSession.getActiveSession()
    os.environ["JAVA_HOME"] = str(find_java().home)
    session = build_spark_session(settings, spark_jars(), app_name="kquota what-if")
    try:
        yield session
    finally:
        if found is None:
            session.stop()


def run_on_spark(plan: Plan, session: SparkSession) -> tuple[list[ReplayResult], str]:
    """All replays of a range, one task per slice, in two jobs: decide, then count together with earlier holds.

    Returns:
        What each replay found, and a description of where it ran.

    Raises:
        UsageNotKept: The range has no usage.
    """
    request, context = plan.request, session.sparkContext
    tasks = max(len(plan.slices), 1)
    decided = context.parallelize(plan.slices, tasks).map(lambda part: decide(request, part))
    decided.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        ends = decided.map(lambda one: held_by(request, one)).collect()
        carried = context.parallelize(_carried(plan, ends), tasks)
        results = [ReplayResult() for _ in request.quotas]
        for of_slice in decided.zip(carried).map(lambda pair: count(request, *pair)).collect():
            for result, further in zip(results, of_slice, strict=True):
                result.add(further)
    finally:
        decided.unpersist()
    return with_usage(plan, results), f"Spark {session.version} at {context.master}, {tasks} tasks"


def _carried(plan: Plan, ends: list[tuple[Held, ...]]) -> list[tuple[Held, ...]]:
    held: list[Held] = [{} for _ in plan.request.quotas]
    carried = []
    for part, end in zip(plan.slices, ends, strict=True):
        carried.append(carried_into(plan.request, part, held))
        lengthen(held, end)
    return carried
