"""Runs the job's own plan on made-up messages while nobody needs Spark yet.

The first run of a plan takes a second or more: the JVM loads classes and compiles generated code. That time is used
while the job reads its tables. It ends when the job is ready, so no decision has to wait for it.
"""

from threading import Event
from typing import Final

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from pipeline.stream.collect import collect_on_driver
from pipeline.stream.usage_columns import ReadingRules

JOB_GROUP: Final = "kquota-warm-up"
"""Spark's name for these runs; they are cancelled by it."""
_ROWS: Final = 2_000
_RUNS: Final = 2


def warm_up(session: SparkSession, rules: ReadingRules, wanted: Event) -> None:
    """Read a small batch some times; what has begun is finished.

    Large batches are left out: Python's start on the executors costs them a second, and a young job memory.

    Args:
        session: Nobody else uses it yet.
        rules: Of the job. With others Spark would compile other code.
        wanted: Set when somebody waits for the session.
    """
    if wanted.is_set():
        return  # to make the messages takes most of a second, too
    session.sparkContext.setJobGroup(JOB_GROUP, "first run of the plan", interruptOnCancel=True)
    number = F.col("id")
    message = F.concat(
        F.lit('{"event_time_ms":1,"user":"u'), number % 100, F.lit('","client_id":"c","produced_bytes":1}')
    )
    raw = session.range(_ROWS).select(
        message.cast("binary").alias("value"),
        F.lit("warm-up").alias("topic"),
        F.lit(0).alias("partition"),
        number.alias("offset"),
        F.timestamp_millis(F.lit(1_000)).alias("timestamp"),
    )
    for _ in range(_RUNS):
        if wanted.is_set():
            return
        collect_on_driver(raw, rules, _ROWS)
