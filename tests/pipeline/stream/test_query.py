"""The streaming query: what it reads of the real broker, how it ends, and how it reports that."""

import gc
import json
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from random import Random
from threading import Event

import pyarrow as pa
import pytest
from kafka import KafkaAdminClient, KafkaProducer
from pyspark.sql import DataFrame, SparkSession

from pipeline.demo.broker import EmbeddedBroker
from pipeline.stream import query, usage_reader
from pipeline.stream.query import (
    RAW_COLUMNS,
    Collector,
    UsageQuery,
    collect_on_executors,
    largest_bytes,
    read_usage_topic,
)
from pipeline.stream.usage_columns import CollectedBatch
from tests.pipeline.stream.fuzz import append_times, beyond, comparable, faults_of, messages
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
from tests.pipeline.stream.test_usage_reader import MIXED
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
    wait_until(lambda: not is_active(spark), "Spark lists the query no longer")
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


# A batch is the same whether the driver reads it or the executors, whatever it holds; and which of them does.


@pytest.mark.parametrize(
    ("message_count", "size_bytes"),
    [
        (0, 131_072),
        (1_000, 131_072),
        (1_001, 43_690),
        (3_000, 43_690),
        (3_001, 16_384),
        (8_000, 16_384),
        (30_000, 4_369),
        (100_000, 1_310),
        (100_001, 436),
        (300_000, 436),
    ],
)
def test_of_many_messages_only_smaller_ones_are_fetched(message_count: int, size_bytes: int) -> None:
    assert largest_bytes(message_count) == size_bytes


@pytest.mark.spark
def test_driver_and_executors_read_the_same(spark: SparkSession) -> None:
    raw = raw_frame(spark, MIXED).repartition(3)
    whole = collect_twice(raw, RULES)
    assert (whole.good_count, whole.dead_count, whole.ignored_count) == (17, 8, 3)
    assert usage(whole) == usage(usage_reader.read_usage(fetched(MIXED), RULES))
    empty = collect_twice(raw_frame(spark, []), RULES)
    assert (empty.usage.num_rows, empty.dead_letters.num_rows, empty.newest_event_ms) == (0, 0, None)


@pytest.mark.spark
def test_a_message_too_large_to_fetch_is_read_where_it_is(spark: SparkSession) -> None:
    largest = largest_bytes(0)
    large = array(*[event(client_id=str(number), broker_id="1" * 400) for number in range(400)])
    assert len(large) > largest
    fits = message() + b" " * (largest - len(message()))
    values = [fits, fits + b" ", None, message(), fits + b"x", large]
    batch = collect_twice(raw_frame(spark, values, [APPENDED_AT_MS + number for number in range(6)]), RULES)
    assert (batch.good_count, batch.dead_count, batch.ignored_count) == (403, 1, 1)
    assert batch.newest_append_ms == APPENDED_AT_MS + 5
    assert batch.size_bytes == sum(len(value or b"") for value in values)


@pytest.mark.spark
@pytest.mark.parametrize(("usual_bytes", "largest"), [(0, 1_024), (255, 1_024), (256, 2_048), (20_000, 131_072)])
def test_executors_read_larger_messages_after_the_others(
    spark: SparkSession, usual_bytes: float, largest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes: list[tuple[int, int]] = []  # good events, and messages that were left

    def from_partitions(rows: pa.Table) -> tuple[CollectedBatch, int]:
        batch, large_count = usage_reader.from_partitions(rows)
        passes.append((batch.good_count, large_count))
        return batch, large_count

    monkeypatch.setattr(query, "from_partitions", from_partitions)
    fits = message() + b" " * (largest - len(message()))
    small: list[bytes | None] = [message(), None, fits, b"no JSON"]
    batch = query.collect_on_executors(raw_frame(spark, small), RULES, usual_bytes)
    assert (batch.good_count, batch.dead_count, batch.ignored_count, passes) == (2, 1, 1, [(2, 0)])
    batch = query.collect_on_executors(raw_frame(spark, [*small, fits + b" ", fits * 3]), RULES, usual_bytes)
    assert (batch.good_count, batch.dead_count, batch.ignored_count, passes[1:]) == (3, 2, 1, [(2, 2), (1, 0)])


@pytest.mark.spark
def test_the_driver_reads_a_batch_while_its_messages_hold_few_events(spark: SparkSession) -> None:
    collector = Collector(RULES)
    assert [collector.is_small(count) for count in (0, 300_000, 300_001)] == [True, True, False], "nothing seen yet"
    collector(raw_frame(spark, [message(), message()]), 2)
    assert [collector.is_small(count) for count in (0, 300_000, 300_001)] == [True, True, False]
    many = json.dumps([json.loads(message())] * 100).encode()
    collector(raw_frame(spark, [many, many]), 2)
    assert [collector.is_small(count) for count in (3_000, 3_001)] == [True, False]


def test_the_first_batch_is_estimated_from_a_sample() -> None:
    of_objects = Collector(RULES, [message()] * 20)
    assert [of_objects.is_small(count) for count in (300_000, 300_001)] == [True, False]
    of_arrays = Collector(RULES, [array(*[event()] * 100)] * 20)
    assert [of_arrays.is_small(count) for count in (3_000, 3_001)] == [True, False]
    assert Collector(RULES, [b"no JSON"]).is_small(300_000)


@pytest.mark.spark
def test_messages_that_the_driver_would_not_fetch_go_to_the_executors_at_once(spark: SparkSession) -> None:
    collector = Collector(RULES)
    fits = message() + b" " * (13_107 - len(message()))  # 16 384 bytes, less what some are larger than their mean
    collector(raw_frame(spark, [fits] * 2), 2)
    assert [collector.is_small(count) for count in (3_000, 3_001, 8_000, 8_001)] == [True, True, True, False]
    collector(raw_frame(spark, [fits, fits + b" "]), 2)
    assert [collector.is_small(count) for count in (3_000, 3_001)] == [True, False]


@pytest.mark.spark
def test_a_batch_of_unknown_size_is_collected(spark: SparkSession) -> None:
    raw = raw_frame(spark, [array(event(), 7, event(user="bob")), None])
    collector = Collector(RULES)
    for message_count in (None, 2):
        batch = collector(raw, message_count)
        assert (batch.dead_letters.num_rows, batch.dead_count, batch.ignored_count) == (1, 1, 1)
    assert [collector.is_small(count) for count in (200_000, 200_001)] == [True, False]


KINDS = pytest.mark.parametrize("kind", [comparable, beyond])
Kind = Callable[[Random], bytes | None]


@pytest.mark.long
@KINDS
def test_any_messages_are_read_as_the_model_reads_them(kind: Kind) -> None:
    assert faults_of(messages(11, 10_000, kind), append_times(11, 10_000)) == []


@pytest.mark.long
@pytest.mark.spark
@KINDS
def test_any_messages_are_read_on_the_driver_as_on_the_executors(spark: SparkSession, kind: Kind) -> None:
    collect_twice(raw_frame(spark, messages(14, 1_500, kind), append_times(14, 1_500)), RULES)
