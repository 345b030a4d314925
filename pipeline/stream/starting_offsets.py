"""Where a query begins to read, and whether the messages it must read still exist."""

import json
import logging
from collections.abc import Mapping
from typing import NamedTuple

from kafka import KafkaConsumer, TopicPartition
from kafka import errors as kafka_errors

from pipeline.cluster.access import ClusterAccess
from pipeline.cluster.errors import ClusterUnreachable
from pipeline.stream.errors import UsageGone

log = logging.getLogger(__name__)

_REMEDY = "nothing needs to be done: the job tries again"


class Span(NamedTuple):
    """The offsets that a partition has: from the first, inclusive, to the end, exclusive."""

    begin: int
    end: int


def spans_of(access: ClusterAccess, topic: str) -> dict[str, Span]:
    """The offsets that each partition of a topic has, by the partition's number as text.

    Raises:
        ClusterUnreachable: The broker did not answer.
    """
    consumer = access.open(KafkaConsumer, enable_auto_commit=False, group_id=None)
    try:
        partitions = [TopicPartition(topic, number) for number in consumer.partitions_for_topic(topic) or ()]
        begins, ends = consumer.beginning_offsets(partitions), consumer.end_offsets(partitions)
    except kafka_errors.KafkaError as exc:
        raise ClusterUnreachable(access.bootstrap_servers, str(exc), _REMEDY) from exc
    finally:
        consumer.close()
    return {str(partition.partition): Span(begins[partition], ends[partition]) for partition in partitions}


def gaps(wanted: Mapping[str, int], spans: Mapping[str, Span]) -> list[str]:
    """Why reading can not begin at the wanted offsets, one text per partition; empty if it can."""
    found = []
    for partition, offset in sorted(wanted.items()):
        span = spans.get(partition)
        if span is None:
            found.append(f"partition {partition} is gone")
        elif offset < span.begin:
            found.append(f"partition {partition}: offsets {offset} to {span.begin - 1} are deleted")
        elif offset > span.end:
            found.append(f"partition {partition} ends at {span.end}, before {offset}: it was deleted and created again")
    return found


def refuse_gaps(topic: str, checkpoint: str, wanted: Mapping[str, int], spans: Mapping[str, Span]) -> None:
    """Refuse to continue from a checkpoint if usage after it is gone.

    Raises:
        UsageGone: A message that the next batch begins with is missing.
    """
    missing = gaps(wanted, spans)
    if missing:
        raise UsageGone(topic, missing, checkpoint)


def starting_offsets(topic: str, end_offsets: str, spans: Mapping[str, Span]) -> str:
    """Where a new checkpoint begins: at the end of what is stored.

    A partition that was added since then begins at its first offset. So does a partition whose stored end no longer
    exists: whoever deletes a checkpoint gives up the usage in between, but the log names it as an error.

    Args:
        topic: The usage topic.
        end_offsets: End offsets of the newest stored batch, as Spark prints them.
        spans: The offsets that the topic has.

    Returns:
        JSON, as Spark takes it.
    """
    stored: dict[str, int] = json.loads(end_offsets).get(topic, {})
    for gap in gaps(stored, spans):
        log.error("usage is missing and will not be counted: topic '%s', %s", topic, gap)
    begin = {
        partition: offset if span.begin <= (offset := stored.get(partition, span.begin)) <= span.end else span.begin
        for partition, span in spans.items()
    }
    return json.dumps({topic: begin}, separators=(",", ":"))
