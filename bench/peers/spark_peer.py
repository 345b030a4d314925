"""Sums of usage by second and client with bare Spark: read, `from_json`, group by, `toArrow`. Nothing is kept.

Arguments: bootstrap servers, input topic, object or array, a folder.

Whenever the topic has grown it reads what is new, in one batch query, and writes the result to a file in the folder.
There is no state, no checkpoint, and no sum across batches: this is the least that Spark's own functions cost.
"""

import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pyarrow.parquet as pq
from kafka import KafkaConsumer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from bench.load import partitions_of
from bench.peers.messages import MEASURES
from pipeline.jvm.jars import spark_jars
from pipeline.jvm.java import find_java
from pipeline.settings.model import SparkSettings
from pipeline.stream.query import RECORDS_OF_A_POLL
from pipeline.stream.session import build_spark_session
from schemas.columns import columns
from schemas.usage import UsageEvent

_LOOK_SECONDS: Final = 0.02
_TYPES: Final = {"string": "STRING", "int64": "BIGINT", "bool": "BOOLEAN"}
_EVENT: Final = "STRUCT<" + ", ".join(f"{one.name}: {_TYPES[one.type]}" for one in columns(UsageEvent)) + ">"
_CONF: Final = {"spark.driver.memory": "1g", "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=4"}
"""Java's optimizing compiler, as by default."""
# A consumer that has read to the end of the log asks for more at once, and the broker keeps that fetch for 500 ms by
# default. The next batch on the same consumer would wait for it.
_FETCH_WAIT_MS: Final = 0


def main() -> None:
    servers, topic, shape, folder = sys.argv[1:]
    os.environ["JAVA_HOME"] = str(find_java().home)
    spark = build_spark_session(SparkSettings.model_validate({"conf": _CONF}), spark_jars())
    consumer: Any = KafkaConsumer(bootstrap_servers=servers)
    partitions = partitions_of(consumer, topic)
    read = {str(partition.partition): 0 for partition in partitions}
    print("READY", flush=True)
    number = 0
    while True:
        ends = {str(partition.partition): end for partition, end in consumer.end_offsets(partitions).items()}
        if ends == read:
            time.sleep(_LOOK_SECONDS)
            continue
        messages = _messages(spark, servers, topic, {"startingOffsets": read, "endingOffsets": ends})
        draft = Path(folder) / f"{number}.draft"
        pq.write_table(_sums(messages, shape).toArrow(), draft)
        draft.rename(draft.with_suffix(".parquet"))
        read, number = ends, number + 1


def _messages(spark: SparkSession, servers: str, topic: str, spans: Mapping[str, Mapping[str, int]]) -> DataFrame:
    """A topic, by `startingOffsets` and `endingOffsets` of its partitions."""
    return (
        spark.read.format("kafka")
        .option("kafka.bootstrap.servers", servers)
        .option("kafka.isolation.level", "read_committed")
        .option("kafka.fetch.max.wait.ms", _FETCH_WAIT_MS)
        .option("kafka.max.poll.records", RECORDS_OF_A_POLL)
        .option("subscribe", topic)
        .options(**{option: json.dumps({topic: by_partition}) for option, by_partition in spans.items()})
        .load()
    )


def _sums(messages: DataFrame, shape: str) -> DataFrame:
    schema = f"ARRAY<{_EVENT}>" if shape == "array" else _EVENT
    parsed = messages.select(F.from_json(F.col("value").cast("string"), schema).alias("parsed"))
    events = parsed.select(F.inline("parsed") if shape == "array" else "parsed.*")
    second = F.expr("event_time_ms - event_time_ms % 1000").alias("second_ms")
    return events.groupBy(second, "user", "client_id").agg(*[F.sum(name).alias(name) for name in MEASURES])


if __name__ == "__main__":
    main()
