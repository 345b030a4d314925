"""The real broker, for tests of meters: a client with a name, and the events on a usage topic."""

import json
from typing import Any

import pyarrow as pa

from pipeline.demo.broker import EmbeddedBroker, plain_sign_in
from tests.topic_reading import read_topic


def alice(broker: EmbeddedBroker, **settings: Any) -> dict[str, Any]:
    return {**plain_sign_in(broker.sasl_bootstrap_servers, "alice", broker.users["alice"]), **settings}


def all_events(broker: EmbeddedBroker, topic: str) -> list[dict[str, Any]]:
    return [event for record in read_topic(broker.bootstrap_servers, topic) for event in events_of(record.value)]


def events_of(value: bytes) -> list[dict[str, Any]]:
    """The events of a message, in JSON or packed, without the fields that are null."""
    if value.startswith(b"["):
        found: list[dict[str, Any]] = json.loads(value)
        return found
    rows = pa.ipc.open_stream(value).read_all().to_pylist()
    return [{name: field for name, field in row.items() if field is not None} for row in rows]
