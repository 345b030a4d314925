"""The generator's prepared record batches."""

import json
from typing import Any

import pytest
from kafka.record import MemoryRecords

from bench.load import prepared_batches


def values(records: bytes) -> list[Any]:
    """The messages of a record batch, its checksum verified."""
    batch: Any = MemoryRecords(records).next_batch()
    assert batch.validate_crc()
    return [json.loads(record.value) for record in batch]


@pytest.mark.parametrize(("per_message", "messages"), [(1, 400), (100, 4)])
def test_a_batch_can_be_sent_again_with_another_time(per_message: int, messages: int) -> None:
    (batch, *_) = prepared_batches(20_000, 10_000, per_message)
    for now_ms in (1_763_712_000_000, 1_763_712_000_020):
        sent = values(batch.at(now_ms))
        assert len(sent) == messages
        events = sent if per_message == 1 else [event for message in sent for event in message]
        assert {event["event_time_ms"] for event in events} == {now_ms}
        assert len(events) == 400


@pytest.mark.parametrize("per_message", [1, 100])
@pytest.mark.parametrize("clients", [399, 400, 401, 10_000])
def test_every_client_takes_its_turn(clients: int, per_message: int) -> None:
    sent = [values(batch.at(1_763_712_000_000)) for batch in prepared_batches(20_000, clients, per_message)]
    messages = [message for batch in sent for message in batch]
    events = messages if per_message == 1 else [event for message in messages for event in message]
    assert {event["client_id"] for event in events} == {f"service-{number}" for number in range(clients)}


def test_a_rate_below_one_message_per_batch_sends_one() -> None:
    (batch,) = prepared_batches(10, 1, 1)
    assert len(values(batch.at(1_763_712_000_000))) == 1
