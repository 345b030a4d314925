"""Reads a topic from its start to its present end, however long the broker takes; with the Kafka library alone."""

from collections.abc import Iterator
from typing import Any

from kafka import KafkaConsumer, TopicPartition


def read_topic(bootstrap_servers: str, topic: str) -> Iterator[Any]:
    """All committed records of a topic up to its present end, partition by partition as they come."""
    consumer: Any = KafkaConsumer(
        bootstrap_servers=bootstrap_servers,
        isolation_level="read_committed",
        enable_auto_commit=False,
        auto_offset_reset="earliest",
    )
    try:
        partitions = [TopicPartition(topic, number) for number in consumer.partitions_for_topic(topic) or ()]
        consumer.assign(partitions)
        consumer.seek_to_beginning(*partitions)
        ends = consumer.end_offsets(partitions)
        while any(consumer.position(partition) < end for partition, end in ends.items()):
            for records in consumer.poll(timeout_ms=500).values():
                yield from records
    finally:
        consumer.close()
