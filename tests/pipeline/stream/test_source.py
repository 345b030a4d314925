"""The usage topic as a stream, against the real broker."""

import time
from pathlib import Path

import pytest
from kafka import KafkaAdminClient, KafkaProducer
from pyspark.sql import DataFrame, SparkSession

from pipeline.demo.broker import EmbeddedBroker
from pipeline.stream.collect import collect_on_executors
from pipeline.stream.query import RAW_COLUMNS, read_usage_topic
from pipeline.stream.usage_columns import CollectedBatch
from tests.pipeline.stream.messages import RULES, message

pytestmark = [pytest.mark.spark, pytest.mark.broker]

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
