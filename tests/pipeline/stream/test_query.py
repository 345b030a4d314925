"""The streaming query: what it reads of the real broker, how it ends, and how it reports that."""

import gc
import time
import weakref
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from random import Random
from threading import Event

import pytest
from kafka import KafkaAdminClient, KafkaProducer
from pyspark.sql import DataFrame, SparkSession

from pipeline.demo.broker import EmbeddedBroker
from pipeline.stream import usage_reader
from pipeline.stream.query import (
    RAW_COLUMNS,
    Collector,
    UsageQuery,
    collect_on_executors,
    largest_bytes,
    read_usage_topic,
)
from tests.pipeline.stream.fuzz import append_times, beyond, comparable, messages
from tests.pipeline.stream.messages import (
    APPENDED_AT_MS,
    RULES,
    array,
    collect_twice,
    event,
    fetched,
    message,
    raw_frame,
    usage,
)
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
    wait_until(lambda: not is_active(spark), "Spark lists the query no longer")
    assert query.failure() is None
    assert not got_further.is_set()


@pytest.mark.spark
def test_a_nearly_done_batch_is_finished(spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "pipeline.stream.query")
    begun, done = Event(), Event()

    def work(frame: DataFrame, _batch_id: int) -> None:
        begun.set()
        query._stopping.wait(PATIENCE_SECONDS)
        frame.count()
        done.set()

    query = query_of(spark, tmp_path, work)
    query.start()
    assert begun.wait(PATIENCE_SECONDS)
    query.stop(patience_seconds=PATIENCE_SECONDS)
    assert (done.is_set(), query.failure()) == (True, None)
    assert "the batch under way is cancelled" not in caplog.text


@pytest.mark.spark
@pytest.mark.parametrize("fails", [False, True], ids=["stopped", "failed"])
def test_a_query_that_has_ended_keeps_nothing_alive(spark: SparkSession, tmp_path: Path, fails: bool) -> None:
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
    if fails:
        wait_until(lambda: not is_active(spark), "the query to end")
    query.stop()
    assert isinstance(query.failure(), ArithmeticError) is fails
    alive = weakref.ref(engine)
    del engine, query
    gc.collect()
    assert alive() is None


TOPIC = "usage-source-test"


@pytest.mark.spark
@pytest.mark.broker
def test_committed_messages_arrive_once_over_a_restart_and_aborted_ones_never(
    spark: SparkSession, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    with closing(KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)) as admin:
        configs = {"message.timestamp.type": "LogAppendTime"}
        admin.create_topics({TOPIC: {"num_partitions": 1, "replication_factor": 1, "configs": configs}})
    frame = read_usage_topic(
        spark,
        broker.bootstrap_servers,
        TOPIC,
        client_options={"security.protocol": "PLAINTEXT"},
        starting_offsets="earliest",
        max_offsets_per_trigger=1,
    )
    assert tuple(frame.columns) == RAW_COLUMNS
    users: list[str] = []

    def keep(raw: DataFrame, _batch_id: int) -> None:
        users.extend(collect_on_executors(raw, RULES, 200).usage["user"].to_pylist())

    checkpoint = str(tmp_path / "checkpoint")
    with closing(KafkaProducer(bootstrap_servers=broker.bootstrap_servers, transactional_id=TOPIC)) as producer:
        producer.init_transactions()
        for sent in ("alice", "nobody", "bob"), ("carol",):
            for user in sent:
                producer.begin_transaction()
                producer.send(TOPIC, message(user=user, event_time_ms=time.time_ns() // 1_000_000))
                producer.flush()
                (producer.abort_transaction if user == "nobody" else producer.commit_transaction)()
            stream = frame.writeStream.foreachBatch(keep).option("checkpointLocation", checkpoint)
            assert stream.trigger(availableNow=True).start().awaitTermination(120)
    assert users == ["alice", "bob", "carol"]


# A batch is the same whether the driver reads it or the executors, whatever it holds; and which of them does.


def padded(size_bytes: int) -> bytes:
    """A message of so many bytes, and of one event."""
    return message() + b" " * (size_bytes - len(message()))


@pytest.mark.spark
def test_a_message_too_large_to_fetch_is_read_where_it_is(spark: SparkSession) -> None:
    fits = padded(largest_bytes(0))
    large = array(*[event(client_id=str(number), broker_id="1" * 400) for number in range(400)])
    assert len(large) > len(fits)
    values = [fits, fits + b" ", None, message(), fits + b"x", large]
    batch = collect_twice(raw_frame(spark, values, [APPENDED_AT_MS + number for number in range(6)]), RULES)
    assert (batch.good_count, batch.dead_count, batch.ignored_count) == (403, 1, 1)
    assert batch.newest_append_ms == APPENDED_AT_MS + 5
    assert batch.size_bytes == sum(len(value or b"") for value in values)


MANY = array(*[event()] * 100)
FITS = padded(13_107)  # 16 384 bytes, less what some are larger than their mean


@pytest.mark.parametrize(
    ("messages", "most"),
    [
        ([], 300_000),  # nothing seen yet
        ([message()] * 20, 300_000),
        ([b"no JSON"], 300_000),
        ([MANY] * 20, 3_000),
        ([FITS] * 2, 8_000),
        ([FITS, FITS + b" "], 3_000),
    ],
)
def test_the_driver_reads_few_and_small_messages(messages: list[bytes], most: int) -> None:
    collector = Collector(RULES, messages)
    assert [collector.is_small(count) for count in (0, most, most + 1)] == [True, True, False]


@pytest.mark.spark
def test_a_collector_learns_from_each_batch_and_collects_one_of_unknown_size(spark: SparkSession) -> None:
    collector = Collector(RULES)
    collector(raw_frame(spark, [MANY, MANY]), 2)
    assert [collector.is_small(count) for count in (3_000, 3_001)] == [True, False]
    raw = raw_frame(spark, [array(event(), 7, event(user="bob")), None])
    for message_count in (None, 2):
        batch = collector(raw, message_count)
        assert (batch.dead_letters.num_rows, batch.dead_count, batch.ignored_count) == (1, 1, 1)
    assert [collector.is_small(count) for count in (200_000, 200_001)] == [True, False]


@pytest.mark.spark
@pytest.mark.parametrize("kind", [comparable, beyond])
@pytest.mark.parametrize("count", [0, 150, pytest.param(1_500, marks=pytest.mark.long)])
def test_any_messages_are_read_on_the_driver_as_on_the_executors(
    spark: SparkSession, kind: Callable[[Random], bytes | None], count: int
) -> None:
    values, times_ms = messages(14, count, kind), append_times(14, count)
    whole = collect_twice(raw_frame(spark, values, times_ms).repartition(3), RULES)
    assert usage(whole) == usage(usage_reader.read_usage(fetched(values, times_ms), RULES))
    assert (whole.good_count > 0) is (count > 0)
