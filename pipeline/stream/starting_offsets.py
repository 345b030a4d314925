"""Where a query begins to read, and whether what it must read is still there."""

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

_REMEDY = "nothing needs doing: it is tried again"


class Span(NamedTuple):
    """Offsets a partition has: the first, inclusive, and the end, exclusive."""

    begin: int
    end: int


def spans_of(access: ClusterAccess, topic: str) -> dict[str, Span]:
    """What each partition of a topic has, by its number as text.

    Raises:
        ClusterUnreachable: The broker did not tell.
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
    """Why reading can not begin at the wanted offsets, one text a partition; empty if it can."""
    told = []
    for partition, offset in sorted(wanted.items()):
        span = spans.get(partition)
        if span is None:
            told.append(f"partition {partition} is gone")
        elif offset < span.begin:
            told.append(f"partition {partition}: offsets {offset} to {span.begin - 1} are deleted")
        elif offset > span.end:
            told.append(f"partition {partition} ends at {span.end}, before {offset}: it was made anew")
    return told


def refuse_gaps(topic: str, checkpoint: str, wanted: Mapping[str, int], spans: Mapping[str, Span]) -> None:
    """Refuse to go on from a checkpoint over usage that is gone.

    Raises:
        UsageGone: Something is missing.
    """
    missing = gaps(wanted, spans)
    if missing:
        raise UsageGone(topic, missing, checkpoint)


def starting_offsets(topic: str, end_offsets: str, spans: Mapping[str, Span]) -> str:
    """Where a new checkpoint begins: at the end of what is stored; as Spark takes it.

    A partition that was added since begins at its first offset. So does one whose stored end is no longer there: who
    deletes the checkpoint gives up the usage in between; it is told all the same.

    Args:
        topic: The usage topic.
        end_offsets: Of the newest stored batch, as Spark prints them.
        spans: What the topic has.
    """
    stored: dict[str, int] = json.loads(end_offsets).get(topic, {})
    for gap in gaps(stored, spans):
        log.error("usage is missing and not counted: topic '%s', %s", topic, gap)
    begin = {
        partition: offset if span.begin <= (offset := stored.get(partition, span.begin)) <= span.end else span.begin
        for partition, span in spans.items()
    }
    return json.dumps({topic: begin}, separators=(",", ":"))
