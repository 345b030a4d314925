"""The streaming query: how it ends, and how it reports that."""

import gc
import weakref
from collections.abc import Callable
from pathlib import Path
from threading import Event

import pytest
from pyspark.sql import DataFrame, SparkSession

from pipeline.stream.query import UsageQuery
from tests.waiting import PATIENCE_SECONDS, wait_until

pytestmark = pytest.mark.spark

IMPATIENT_SECONDS = 0.5
FOREVER = 10**15


def query_of(spark: SparkSession, folder: Path, run_batch: Callable[[DataFrame, int], None]) -> UsageQuery:
    source = spark.readStream.format("rate").name("rate").load()
    return UsageQuery(source, run_batch, "ends", str(folder / "checkpoint"), trigger_ms=200)


def test_a_batch_that_spark_would_read_for_hours_is_given_up(spark: SparkSession, tmp_path: Path) -> None:
    begun, got_further = Event(), Event()

    def read_for_hours(frame: DataFrame, _batch_id: int) -> None:
        begun.set()
        frame.sparkSession.range(FOREVER).selectExpr("sum(id % 7)").toArrow()
        got_further.set()

    query = query_of(spark, tmp_path, read_for_hours)
    query.start()
    assert begun.wait(PATIENCE_SECONDS)
    query.stop(IMPATIENT_SECONDS, timeout_seconds=3_600)
    assert not query.is_active()
    assert query.failure() is None
    assert not got_further.is_set()


def test_a_batch_that_is_nearly_done_is_finished(spark: SparkSession, tmp_path: Path) -> None:
    begun, may_end, done = Event(), Event(), Event()

    def work(frame: DataFrame, _batch_id: int) -> None:
        begun.set()
        may_end.wait(PATIENCE_SECONDS)
        frame.count()
        done.set()

    query = query_of(spark, tmp_path, work)
    query.start()
    assert begun.wait(PATIENCE_SECONDS)
    may_end.set()
    query.stop(patience_seconds=PATIENCE_SECONDS)
    assert done.is_set()
    assert not query.is_active()
    assert query.failure() is None


def test_what_a_batch_raises_ends_the_query_and_is_its_failure(spark: SparkSession, tmp_path: Path) -> None:
    def fail(_frame: DataFrame, _batch_id: int) -> None:
        raise ArithmeticError

    query = query_of(spark, tmp_path, fail)
    query.start()
    wait_until(lambda: not query.is_active(), "the query to end")
    failure = query.failure()
    assert isinstance(failure, ArithmeticError)
    query.stop()
    assert query.failure() is failure


@pytest.mark.parametrize("fails", [False, True], ids=["stopped", "failed"])
def test_a_query_that_has_ended_keeps_nothing_of_the_job_alive(
    spark: SparkSession, tmp_path: Path, fails: bool
) -> None:
    class Engine:
        def __init__(self) -> None:
            self.called = Event()

        def decide(self, _frame: DataFrame, _batch_id: int) -> None:
            self.called.set()
            if fails:
                raise ArithmeticError

    engine = Engine()
    query = query_of(spark, tmp_path, engine.decide)
    query.start()
    assert engine.called.wait(PATIENCE_SECONDS)
    query.stop()
    alive = weakref.ref(engine)
    del engine, query
    gc.collect()
    assert alive() is None
