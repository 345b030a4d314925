"""The real broker, for tests of meters: the events on a usage topic."""

import json
from collections import Counter
from collections.abc import Iterable
from typing import Any

from pipeline.demo.broker import EmbeddedBroker
from tests.topic_reading import read_topic


def all_events(broker: EmbeddedBroker, topic: str) -> list[dict[str, Any]]:
    return [event for record in read_topic(broker.bootstrap_servers, topic) for event in events_of(record.value)]


def events_of(value: bytes) -> list[dict[str, Any]]:
    """The events of a message."""
    found: list[dict[str, Any]] = json.loads(value)
    return found


def produced_bytes(values: Iterable[bytes]) -> dict[tuple[str, str, str], int]:
    """Produced bytes of messages by broker, user and client-id; 0 for a client without any."""
    sums: Counter[tuple[str, str, str]] = Counter()
    for event in (event for value in values for event in events_of(value)):
        sums[event["broker_id"], event["user"], event["client_id"]] += event.get("produced_bytes", 0)
    return dict(sums)
