"""Reads a topic from its start to its present end, however long the broker takes; with the Kafka library alone."""

from collections.abc import Iterator
from contextlib import closing
from typing import Any

from kafka import KafkaConsumer, TopicPartition


def read_topic(bootstrap_servers: str, topic: str) -> Iterator[Any]:
    """All committed records of a topic up to its present end, partition by partition as they come.

    A transaction that has been committed is not at once to be read: the broker answers first and then writes its end
    into each partition. So this reads up to the end of all records, and waits for the transactions before it to end.
    """
    consumer = _consumer(bootstrap_servers, "read_committed")
    with closing(consumer), closing(_consumer(bootstrap_servers, "read_uncommitted")) as all_records:
        partitions = [TopicPartition(topic, number) for number in consumer.partitions_for_topic(topic) or ()]
        consumer.assign(partitions)
        consumer.seek_to_beginning(*partitions)
        ends = all_records.end_offsets(partitions)
        while any(consumer.position(partition) < end for partition, end in ends.items()):
            for records in consumer.poll(timeout_ms=500).values():
                yield from records


def _consumer(bootstrap_servers: str, isolation_level: str) -> Any:
    return KafkaConsumer(
        bootstrap_servers=bootstrap_servers,
        isolation_level=isolation_level,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
    )
