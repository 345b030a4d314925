"""The real broker, for tests of meters: a client with a name, and the events on a usage topic."""

import json
from typing import Any

from pipeline.demo.broker import EmbeddedBroker
from tests.topic_reading import read_topic


def alice(broker: EmbeddedBroker, **settings: Any) -> dict[str, Any]:
    return {
        "bootstrap_servers": broker.sasl_bootstrap_servers,
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "PLAIN",
        "sasl_plain_username": "alice",
        "sasl_plain_password": broker.users["alice"],
        **settings,
    }


def all_events(broker: EmbeddedBroker, topic: str) -> list[dict[str, Any]]:
    return [event for record in read_topic(broker.bootstrap_servers, topic) for event in json.loads(record.value)]
