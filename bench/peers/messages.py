"""What all peers read: the same messages for each of them, once as objects and once as arrays; and the right sums."""

import json
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, Self

from bench.load import BrokerConnection, TimedBatch, arrays, event, messages_in, objects

MEASURES: Final = ("produced_bytes", "fetched_bytes", "io_time_ns", "network_time_ns", "request_count")
WINDOW_MS: Final = 1_000

Key = tuple[int, str, str]
"""Start of the second in ms since the epoch, user, client-id."""
Sums = tuple[int, ...]
"""A sum for each of `MEASURES`."""


def events_in(values: Iterable[bytes]) -> Iterator[tuple[Key, int, list[int]]]:
    """Second and client, time in ms and measures of each event."""
    for value in values:
        told = json.loads(value)
        for one in told if isinstance(told, list) else (told,):
            time_ms = one["event_time_ms"]
            key = (time_ms - time_ms % WINDOW_MS, one["user"], one["client_id"])
            yield key, time_ms, [one[name] for name in MEASURES]


def sums_of(values: Iterable[bytes]) -> dict[Key, Sums]:
    sums: dict[Key, list[int]] = {}
    for key, _, measured in events_in(values):
        before = sums.get(key)
        sums[key] = measured if before is None else [a + b for a, b in zip(before, measured, strict=True)]
    return {key: tuple(total) for key, total in sums.items()}


def difference(expected: Mapping[Key, Sums], got: Mapping[Key, Sums]) -> str:
    """How results differ from the right answer, with the first of each kind; "" if all are right."""
    missing = [f"{key}: {sums}" for key, sums in expected.items() if key not in got]
    unexpected = [f"{key}: {sums}" for key, sums in got.items() if key not in expected]
    wrong = [f"{key}: {got[key]}, not {sums}" for key, sums in expected.items() if key in got and got[key] != sums]
    kinds = {"missing": missing, "unexpected": unexpected, "wrong": wrong}
    return "; ".join(f"{len(found)} {kind}, as {found[0]}" for kind, found in kinds.items() if found)


Shape = Literal["object", "array"]
SHAPES: Final[tuple[Shape, ...]] = ("object", "array")

EVENTS_PER_SECOND: Final = 100_000
"""Events in a second of event time."""
_ARRAY_LENGTH: Final = 100
_BATCH_SIZES: Final[Mapping[Shape, int]] = {"object": 500, "array": 8}


@dataclass(frozen=True)
class Backlog:
    """Messages that wait in a topic, in both shapes, and the sums that they must give."""

    batches: Mapping[Shape, Sequence[TimedBatch]]  # of each shape, in the order in which they are sent
    sums: Mapping[Key, Sums]  # what the oracle makes of the messages as they are built
    event_count: int
    span_ms: int  # by how much a copy must be moved, so that it begins after the end of the one before it

    @classmethod
    def build(cls, count: int, clients: int, start_ms: int, partitions: int) -> Self:
        draw = random.Random(7)
        made = [
            event(draw.randrange(clients), start_ms + number * 1000 // EVENTS_PER_SECOND, draw)
            for number in range(count)
        ]
        batches: dict[Shape, Sequence[TimedBatch]] = {
            "object": list(objects(made, partitions, _BATCH_SIZES["object"])),
            "array": list(arrays(made, partitions, _BATCH_SIZES["array"], _ARRAY_LENGTH)),
        }
        span_ms = (count // EVENTS_PER_SECOND + 2) * 1000
        return cls(batches, sums_of(value for _, value in made), count, span_ms)

    def send(self, bootstrap_servers: str, topic: str, shape: Shape, copy: int) -> None:
        """Send one copy to a topic; each copy is later than the one before it by `span_ms`."""
        before = sum(messages_in(bootstrap_servers, topic).values())
        connection = BrokerConnection(bootstrap_servers)
        for batch in self.batches[shape]:
            connection.produce(topic, batch.partition, batch.shifted(copy * self.span_ms))
        taken = sum(messages_in(bootstrap_servers, topic).values()) - before
        sent = sum(batch.message_count for batch in self.batches[shape])
        if taken != sent:
            message = f"the broker took {taken} of {sent} messages"
            raise RuntimeError(message)

    def expected(self, copy: int) -> dict[Key, Sums]:
        by_ms = copy * self.span_ms
        return {(second_ms + by_ms, *names): total for (second_ms, *names), total in self.sums.items()}  # type: ignore[misc]
