"""How events become messages."""

import json

import pytest

from pipeline.meter.usage_messages import UsageBatch

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
