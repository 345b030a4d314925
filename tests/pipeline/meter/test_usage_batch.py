"""How events become messages."""

import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.meter.usage_messages import (
    COLUMN_MEASURES,
    MAX_MESSAGE_BYTES,
    Message,
    RequestUsage,
    UsageBatch,
    client_columns,
    element_of,
    messages_of,
    new_client,
)
from tests.pipeline.meter.metered_broker import events_of

EVENT = b'{"event_time_ms":1,"user":"alice","client_id":"etl","produced_bytes":5}'


@pytest.mark.parametrize(("events", "sizes"), [(0, []), (2, [2]), (3, [3]), (4, [3, 1]), (7, [3, 3, 1])])
def test_a_message_is_an_array_of_at_most_max_events(events: int, sizes: list[int]) -> None:
    batch = UsageBatch(1, max_events=3)

    batch.add([(0, EVENT)] * events)

    assert [len(json.loads(message.value)) for message in batch.messages()] == sizes
    assert len(batch) == events


@pytest.mark.parametrize(
    ("largest", "sizes"),
    [(3 * len(EVENT) + 4, [3, 1]), (3 * len(EVENT) + 3, [2, 2]), (2 * len(EVENT) + 2, [1, 1, 1, 1]), (1, [1] * 4)],
)
def test_a_message_is_closed_before_it_grows_too_large(largest: int, sizes: list[int]) -> None:
    batch = UsageBatch(1, max_message_bytes=largest)

    batch.add([(0, EVENT)] * 4)

    messages = batch.messages()
    assert [len(json.loads(message.value)) for message in messages] == sizes
    assert all(len(message.value) <= largest for message in messages) or largest == 1


def test_a_client_always_goes_to_the_same_partition() -> None:
    batch = UsageBatch(8, max_events=2)

    batch.add((number % 20, b'{"client":%d}' % (number % 20)) for number in range(100))

    partitions: dict[int, set[int]] = {}
    for partition, value in batch.messages():
        for event in json.loads(value):
            partitions.setdefault(event["client"], set()).add(partition)
    assert {client: {client % 8} for client in range(20)} == partitions


def test_the_messages_stay_the_same_until_they_are_stored() -> None:
    batch = UsageBatch(2)
    batch.add([(0, EVENT), (1, EVENT)])

    first = list(batch.messages())
    assert batch.messages() == first

    batch.clear()
    assert (batch.messages(), len(batch)) == ([], 0)


NAMES = [(user, client_id) for user in ("alice", 'b"\n\\é😀', "x" * 32_000) for client_id in ("", "c")]
CLIENTS = [new_client(f"User:{user}", client_id, "7") for user, client_id in NAMES]
AMOUNTS = st.one_of(st.none(), st.integers(1, 2**40))
ROWS = st.lists(st.tuples(st.integers(0, len(CLIENTS) - 1), st.integers(0, 2**62), AMOUNTS, AMOUNTS, AMOUNTS))


Row = tuple[int, int, int | None, int | None, int | None]


def usage_of(rows: Sequence[Row]) -> pa.Table:
    places, times_ms, *amounts = zip(*rows, strict=True)
    usage = client_columns(CLIENTS).take(list(places)).append_column("event_time_ms", pa.array(times_ms, pa.int64()))
    for name, values in zip(COLUMN_MEASURES, amounts, strict=True):
        usage = usage.append_column(name, pa.array(values, pa.int64()))
    return usage


def events_by_message(messages: Sequence[Message]) -> list[tuple[int, list[dict[str, Any]]]]:
    return [(message.partition, events_of(message.value)) for message in sorted(messages, key=lambda one: one[0])]


@given(ROWS.filter(bool))
def test_columns_become_the_messages_that_the_same_events_become(rows: Sequence[Row]) -> None:
    batch = UsageBatch(3, max_events=1_000)
    batch.add(element_of(RequestUsage(CLIENTS[row[0]], *row[1:], 0, False)) for row in rows)
    assert events_by_message(messages_of(usage_of(rows), 3)) == events_by_message(batch.messages())


def test_columns_become_messages_that_are_not_too_large() -> None:
    small, large = ([(at, 5, 1, None, None)] * count for at, count in ((0, 2_500), (4, 50)))
    assert [len(message.value) <= MAX_MESSAGE_BYTES for message in messages_of(usage_of(large), 3)] == [True] * 4
    assert len(messages_of(usage_of(small), 3)) == 3
