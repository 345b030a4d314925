"""The usage topic as a streaming frame."""

from collections.abc import Mapping
from typing import Final

from pyspark.sql import DataFrame, SparkSession

RAW_COLUMNS: Final = ("value", "topic", "partition", "offset", "timestamp")
"""What the rest of this package needs of a Kafka record: BINARY, STRING, INT, BIGINT, TIMESTAMP."""

_SOURCE_NAME = "usage"


def read_usage_topic(
    spark: SparkSession,
    bootstrap_servers: str,
    topic: str,
    *,
    client_options: Mapping[str, str],
    starting_offsets: str,
    max_offsets_per_trigger: int,
) -> DataFrame:
    """Subscribe to the usage topic.

    The source has a name, so that a checkpoint outlives a change of the query's sources.

    Args:
        spark: session with the Kafka connector.
        bootstrap_servers: `host:port[,host:port…]`.
        topic: the topic, one name.
        client_options: entries of client.properties (`security.protocol`, …), without Spark's `kafka.` prefix.
        starting_offsets: `earliest`, `latest`, or JSON `{"topic": {"partition": offset}}`; read only where there is
            no checkpoint yet.
        max_offsets_per_trigger: most messages of one micro-batch, all partitions together, > 0.

    Returns:
        A streaming frame of `RAW_COLUMNS`. Aborted transactions are not in it. `timestamp` is the broker's append
        time, provided the topic has `message.timestamp.type=LogAppendTime`.

    Raises:
        pyspark.errors.AnalysisException: the connector is not on the class path.
    """
    reader = spark.readStream.format("kafka").name(_SOURCE_NAME)
    for key, value in client_options.items():
        reader = reader.option(f"kafka.{key}", value)
    return (
        reader.option("kafka.bootstrap.servers", bootstrap_servers)
        .option("kafka.isolation.level", "read_committed")
        .option("subscribe", topic)
        .option("startingOffsets", starting_offsets)
        .option("maxOffsetsPerTrigger", max_offsets_per_trigger)
        # Usage that vanished before it was read would make decisions nobody can reproduce.
        .option("failOnDataLoss", True)
        .load()
        .select(*RAW_COLUMNS)
    )
