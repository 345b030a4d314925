"""The usage topic cut into the micro-batches that `batches` tells of."""

import json
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tests.faults.evidence import Message, Row
from tests.faults.verdict import Verdict

Offsets = dict[int, int]


@dataclass(frozen=True, slots=True)
class Batch:
    """One row of `batches` with the messages it covers."""

    row: Row
    messages: tuple[Message, ...]

    @property
    def key(self) -> tuple[str, int]:
        """(query_id, batch_id)."""
        return self.row["query_id"], self.row["batch_id"]

    @property
    def evaluated_at_ms(self) -> int:
        """Its instant."""
        return int(self.row["evaluated_at_ms"])

    @property
    def processed_at_ms(self) -> int:
        """The driver's wall clock when it was collected."""
        return int(self.row["processed_at_ms"])

    @property
    def steady_ms(self) -> int:
        """The same by the driver's first clock, as if it had never been set."""
        return self.processed_at_ms - int(self.row.get("moved_ms", 0))

    @property
    def age_ms(self) -> int:
        """How old its usage was when it was collected."""
        return self.processed_at_ms - self.evaluated_at_ms

    @property
    def time_epoch(self) -> int:
        """Its time epoch."""
        return int(self.row["time_epoch"])

    @property
    def quota_version(self) -> int:
        """The quotas it has pinned."""
        return int(self.row["quota_version"])


def cut(rows: Iterable[Row], messages: list[Message], topic: str, verdict: Verdict) -> list[Batch]:
    """Batches in the order they were worked on; checks that they cover the topic once, without gap or overlap."""
    ordered = _in_order(rows, verdict)
    by_partition: dict[int, list[Message]] = {}
    for message in messages:
        by_partition.setdefault(message.partition, []).append(message)
    reached: Offsets = {}
    batches = []
    covered: list[tuple[int, int]] = []
    for row in ordered:
        start, end = _offsets(row["start_offsets"], topic), _offsets(row["end_offsets"], topic)
        for partition, offset in start.items():
            text = f"batch {row['batch_id']} begins at {partition}:{offset}; the one before ended at {reached}"
            verdict.deny("batches", reached.get(partition, 0) != offset, text)
        first = {partition: start.get(partition, reached.get(partition, 0)) for partition in end}
        own = tuple(
            message
            for partition, offset in end.items()
            for message in _between(by_partition.get(partition, []), first[partition], offset)
        )
        covered += [(message.partition, message.offset) for message in own]
        batches.append(Batch(row, own))
        reached = {**reached, **end}
    verdict.once_each("messages", ((message.partition, message.offset) for message in messages), covered)
    return batches


def _between(messages: list[Message], first: int, end: int) -> list[Message]:
    """Of messages in the order of their offsets those from one offset up to, not including, another."""
    begin = bisect_left(messages, first, key=_offset)
    return messages[begin : bisect_left(messages, end, key=_offset)]


def _offset(message: Message) -> int:
    return message.offset


def _in_order(rows: Iterable[Row], verdict: Verdict) -> list[Row]:
    by_query: dict[str, list[Row]] = {}
    for row in sorted(rows, key=lambda row: int(row["batch_id"])):
        by_query.setdefault(row["query_id"], []).append(row)
    for query_id, of_query in by_query.items():
        ids = [row["batch_id"] for row in of_query]
        verdict.once_each("batches", ((query_id, n) for n in range(len(set(ids)))), ((query_id, n) for n in ids))
    queries = sorted(by_query.values(), key=lambda of_query: Batch(of_query[0], ()).steady_ms)
    return list(_chained(queries))


def _chained(queries: list[list[Row]]) -> Iterator[Row]:
    for of_query in queries:
        yield from of_query


def _offsets(text: str, topic: str) -> Offsets:
    parsed = json.loads(text) if text else {}
    return {int(partition): int(offset) for partition, offset in parsed.get(topic, {}).items()}
