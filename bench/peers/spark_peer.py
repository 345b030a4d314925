"""Sums of usage by second and client with bare Spark: read, `from_json`, group by, `toArrow`. Nothing is kept.

Arguments: bootstrap servers, input topic, object or array, a folder.

Whenever the topic has grown it reads what is new, in one batch query, and writes the result to a file in the folder.
There is no state, no checkpoint, and no sum over two batches: it is what the reading of a micro-batch costs at least.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any, Final

import pyarrow.parquet as pq
from kafka import KafkaConsumer, TopicPartition
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from bench.catch_up import EVENT_STRUCT
from bench.peers.messages import MEASURES
from pipeline.jvm.jars import spark_jars
from pipeline.jvm.java import find_java
from pipeline.settings.model import SparkSettings
from pipeline.stream.session import build_spark_session

_LOOK_SECONDS: Final = 0.02


def main() -> None:
    servers, topic, shape, folder = sys.argv[1:]
    os.environ["JAVA_HOME"] = str(find_java().home)
    spark = build_spark_session(SparkSettings(driver_memory="1g"), spark_jars())
    consumer: Any = KafkaConsumer(bootstrap_servers=servers)
    partitions = [TopicPartition(topic, number) for number in sorted(consumer.partitions_for_topic(topic) or ())]
    read = {str(partition.partition): 0 for partition in partitions}
    print("READY", flush=True)
    number = 0
    while True:
        ends = {str(partition.partition): end for partition, end in consumer.end_offsets(partitions).items()}
        if ends == read:
            time.sleep(_LOOK_SECONDS)
            continue
        sums = summed(messages(spark, servers, topic, read, ends), shape).toArrow()
        draft = Path(folder) / f"{number}.draft"
        pq.write_table(sums, draft)
        draft.rename(draft.with_suffix(".parquet"))
        read, number = ends, number + 1


def messages(spark: SparkSession, servers: str, topic: str, begin: dict[str, int], end: dict[str, int]) -> DataFrame:
    return (
        spark.read.format("kafka")
        .option("kafka.bootstrap.servers", servers)
        .option("kafka.isolation.level", "read_committed")
        .option("kafka.fetch.max.wait.ms", 0)
        .option("subscribe", topic)
        .option("startingOffsets", json.dumps({topic: begin}))
        .option("endingOffsets", json.dumps({topic: end}))
        .load()
    )


def summed(raw: DataFrame, shape: str) -> DataFrame:
    """Their sums by second, user and client-id."""
    text = F.col("value").cast("string")
    if shape == "array":
        events = raw.select(F.from_json(text, f"ARRAY<{EVENT_STRUCT}>").alias("events")).select(F.inline("events"))
    else:
        events = raw.select(F.from_json(text, EVENT_STRUCT).alias("event")).select("event.*")
    second = F.expr("event_time_ms - event_time_ms % 1000").alias("second_ms")
    return events.groupBy(second, "user", "client_id").agg(*[F.sum(name).alias(name) for name in MEASURES])


if __name__ == "__main__":
    main()
