"""Reads the throttle topic as a client does, from its present end."""

import json
import sys
import time
from typing import Any, Final

from kafka import KafkaConsumer

from schemas.topic_names import THROTTLE_TOPIC

_PATIENCE_SECONDS: Final = 30


def throttle_reader(bootstrap_servers: str) -> Any:
    """A `read_committed` consumer that misses no record from now on.

    Args:
        bootstrap_servers: Of the broker.
    """
    consumer: Any = KafkaConsumer(
        THROTTLE_TOPIC,
        bootstrap_servers=bootstrap_servers,
        isolation_level="read_committed",
        auto_offset_reset="latest",
    )
    # The topic's end is asked for only now. A record of before that answer would never be read.
    while not consumer.assignment():
        consumer.poll(timeout_ms=100)
    for partition in consumer.assignment():
        consumer.position(partition)
    return consumer


def wait_for(consumer: Any, user: str, action: str) -> None:
    """Return when a record of a user has come; end the program if none comes within half a minute."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while time.monotonic() < deadline:
        for records in consumer.poll(timeout_ms=500).values():
            for record in records:
                value = json.loads(record.value)
                if (value["user"], value["action"]) == (user, action):
                    return
    sys.exit(f"no {action} of {user} within {_PATIENCE_SECONDS} s")
