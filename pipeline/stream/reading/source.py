"""The usage topic as a streaming frame."""

from collections.abc import Mapping
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

RAW_COLUMNS: Final = ("value", "topic", "partition", "offset", "timestamp")
"""The fields of a Kafka record that this package needs: BINARY, STRING, INT, BIGINT, TIMESTAMP."""

_SOURCE_NAME = "usage"

# A consumer at the end of the log asks for more at once, and the broker keeps that fetch for 500 ms by default. The
# next batch, and the second reading of this one, use the same consumer and would have to wait for that answer first.
# A micro-batch only asks for what is there already, so nothing is gained by waiting.
_FETCH_WAIT_MS = 1


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

    The source has a name, so that a checkpoint stays valid when the query's sources change.

    Args:
        spark: session with the Kafka connector.
        bootstrap_servers: `host:port[,host:port…]`.
        topic: the topic, one name.
        client_options: entries of client.properties (`security.protocol`, …), without Spark's `kafka.` prefix.
        starting_offsets: `earliest`, `latest`, or JSON `{"topic": {"partition": offset}}`; used only while there is no
            checkpoint.
        max_offsets_per_trigger: largest number of messages of one micro-batch, all partitions together, > 0.

    Returns:
        A streaming frame of `RAW_COLUMNS`, without the messages of aborted transactions. `timestamp` is the broker's
        append time if the topic has `message.timestamp.type=LogAppendTime`.

    Raises:
        pyspark.errors.AnalysisException: the connector is not on the class path.
    """
    reader = spark.readStream.format("kafka").name(_SOURCE_NAME).option("kafka.fetch.max.wait.ms", _FETCH_WAIT_MS)
    for key, value in client_options.items():
        reader = reader.option(f"kafka.{key}", value)
    return (
        reader.option("kafka.bootstrap.servers", bootstrap_servers)
        .option("kafka.isolation.level", "read_committed")
        .option("subscribe", topic)
        .option("startingOffsets", starting_offsets)
        .option("maxOffsetsPerTrigger", max_offsets_per_trigger)
        # If usage were deleted before it was read, nobody could reproduce the decisions.
        .option("failOnDataLoss", True)
        .load()
        .select(*RAW_COLUMNS)
    )


def newest_append_ms(frame: DataFrame) -> int | None:
    """The newest append time of the messages in a static frame of `RAW_COLUMNS`, in ms; None without messages."""
    newest = frame.agg(F.unix_millis(F.max("timestamp"))).first()
    return None if newest is None else newest[0]
