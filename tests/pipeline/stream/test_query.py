"""The streaming query: what it reads of the real broker, how it ends, and how it reports that."""

import gc
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from threading import Event

import pytest
from kafka import KafkaAdminClient, KafkaProducer
from pyspark.sql import DataFrame, SparkSession

from pipeline.demo.broker import EmbeddedBroker
from pipeline.stream.collect import collect_on_executors
from pipeline.stream.query import RAW_COLUMNS, UsageQuery, read_usage_topic
from pipeline.stream.usage_columns import CollectedBatch
from tests.pipeline.stream.messages import RULES, message
from tests.waiting import PATIENCE_SECONDS, wait_until

IMPATIENT_SECONDS = 0.5
FOREVER = 10**15


def query_of(spark: SparkSession, folder: Path, run_batch: Callable[[DataFrame, int], None]) -> UsageQuery:
    source = spark.readStream.format("rate").name("rate").load()
    return UsageQuery(source, run_batch, "ends", str(folder / "checkpoint"), trigger_ms=200)


def is_active(spark: SparkSession) -> bool:
    return "ends" in [query.name for query in spark.streams.active]


@pytest.mark.spark
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
    assert not is_active(spark)
    assert query.failure() is None
    assert not got_further.is_set()


@pytest.mark.spark
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
    assert not is_active(spark)
    assert query.failure() is None


@pytest.mark.spark
def test_what_a_batch_raises_ends_the_query_and_is_its_failure(spark: SparkSession, tmp_path: Path) -> None:
    def fail(_frame: DataFrame, _batch_id: int) -> None:
        raise ArithmeticError

    query = query_of(spark, tmp_path, fail)
    query.start()
    wait_until(lambda: not is_active(spark), "the query to end")
    failure = query.failure()
    assert isinstance(failure, ArithmeticError)
    query.stop()
    assert query.failure() is failure


@pytest.mark.spark
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


TOPIC = "usage-source-test"


def drain(spark: SparkSession, bootstrap_servers: str, checkpoint: Path) -> list[CollectedBatch]:
    """Run the stream to the end of the topic, one message a micro-batch."""
    batches: list[CollectedBatch] = []

    def keep(raw: DataFrame, _batch_id: int) -> None:
        batches.append(collect_on_executors(raw, RULES, 200))

    frame = read_usage_topic(
        spark,
        bootstrap_servers,
        TOPIC,
        client_options={"security.protocol": "PLAINTEXT"},
        starting_offsets="earliest",
        max_offsets_per_trigger=1,
    )
    assert tuple(frame.columns) == RAW_COLUMNS
    query = (
        frame.writeStream.foreachBatch(keep)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    return batches


@pytest.mark.spark
@pytest.mark.broker
def test_committed_messages_arrive_once_over_a_restart_and_aborted_ones_never(
    spark: SparkSession, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    configs = {"message.timestamp.type": "LogAppendTime"}
    admin.create_topics({TOPIC: {"num_partitions": 1, "replication_factor": 1, "configs": configs}})
    admin.close()
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap_servers, transactional_id="usage-source-test")
    producer.init_transactions()

    def send(user: str, *, commit: bool) -> None:
        producer.begin_transaction()
        producer.send(TOPIC, message(user=user, event_time_ms=time.time_ns() // 1_000_000))
        producer.flush()
        if commit:
            producer.commit_transaction()
        else:
            producer.abort_transaction()

    send("alice", commit=True)
    send("nobody", commit=False)
    send("bob", commit=True)
    first = drain(spark, broker.bootstrap_servers, tmp_path)
    send("carol", commit=True)
    second = drain(spark, broker.bootstrap_servers, tmp_path)
    producer.close()

    users = [[user for batch in run for user in batch.usage["user"].to_pylist()] for run in (first, second)]
    assert users == [["alice", "bob"], ["carol"]]
    assert [batch.dead_count for batch in first + second] == [0] * len(first + second)
