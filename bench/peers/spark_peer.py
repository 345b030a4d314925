"""Sums of usage by second and client with bare Spark: read, `from_json`, group by, `toArrow`. Nothing is kept.

Arguments: bootstrap servers, input topic, object or array, a folder.

Whenever the topic has grown it reads what is new, in one batch query, and writes the result to a file in the folder.
There is no state, no checkpoint, and no sum across batches: this is the least that Spark's own functions cost.
"""

import os
import sys
import time
from pathlib import Path
from typing import Any, Final

import pyarrow.parquet as pq
from kafka import KafkaConsumer
from pyspark.sql import functions as F

from bench.catch_up import BARE_SPARK, by_second, messages_of
from bench.peers.messages import MEASURES, partitions_of
from pipeline.jvm.jars import spark_jars
from pipeline.jvm.java import find_java
from pipeline.settings.model import SparkSettings
from pipeline.stream.session import build_spark_session

_LOOK_SECONDS: Final = 0.02


def main() -> None:
    servers, topic, shape, folder = sys.argv[1:]
    os.environ["JAVA_HOME"] = str(find_java().home)
    spark = build_spark_session(SparkSettings(driver_memory="1g", conf=BARE_SPARK), spark_jars())
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
        messages = messages_of(spark, servers, topic, {"startingOffsets": read, "endingOffsets": ends})
        sums = by_second(messages, shape, "user", "client_id").agg(*[F.sum(name).alias(name) for name in MEASURES])
        draft = Path(folder) / f"{number}.draft"
        pq.write_table(sums.toArrow(), draft)
        draft.rename(draft.with_suffix(".parquet"))
        read, number = ends, number + 1


if __name__ == "__main__":
    main()
