"""The same replays on the executors of a Spark cluster, for ranges that are too long for one machine.

Each part is one task: one replay for a share of the users. Every task reads the whole range through delta-rs and keeps
the usage of its users. Executors need this package with its dependencies, and a root they can reach.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession

from pipeline.jvm.jars import spark_jars
from pipeline.jvm.java import find_java
from pipeline.replay.local_run import joined
from pipeline.replay.outcome import ReplayResult
from pipeline.replay.part_replay import replay_part
from pipeline.replay.request import Plan
from pipeline.settings.model import SparkSettings
from pipeline.stream.spark.session import build_spark_session, refuse_spark_connect


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
    """All replays of a range, one task per part; as many parts as the cluster has cores.

    Returns:
        What each replay found, and a description of where it ran.

    Raises:
        UsageNotKept: The range has no usage.
    """
    context = session.sparkContext
    plan = plan.for_processes(context.defaultParallelism)
    tasks = len(plan.parts)
    replayed = context.parallelize(plan.parts, tasks).map(lambda part: replay_part(plan, part, lambda: None))
    return joined(plan, replayed.collect()), f"Spark {session.version} at {context.master}, {tasks} tasks"
