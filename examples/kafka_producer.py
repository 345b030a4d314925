"""A producer that waits while it is throttled: one line around `send`.

    python -m examples.kafka_producer broker:9092 alice etl orders 100 [THROTTLE_TOPIC]

Sends 100 records of 1 kB to `orders` as user alice with client-id etl, and says how long it waited.
"""

import sys
from typing import Any

from kafka import KafkaProducer

from pipeline.gate import Gate
from schemas import THROTTLE_TOPIC

RECORD_BYTES = 1_000


def main(servers: str, user: str, client_id: str, topic: str, count: str, throttles: str = THROTTLE_TOPIC) -> None:
    """Send `count` records, each one when the gate lets it pass."""
    producer: Any = KafkaProducer(bootstrap_servers=servers, client_id=client_id)
    waited_ms = 0
    with Gate.connect(servers, topic=throttles) as gate:
        gate.wait_until_caught_up(timeout_ms=5_000)  # so that a running throttle is known before the first record
        for _ in range(int(count)):
            with gate.acquire(user, client_id, request_bytes=RECORD_BYTES) as passage:
                waited_ms += passage.waited_ms
                producer.send(topic, bytes(RECORD_BYTES)).get(timeout=10)
    producer.close()
    print(f"sent {count} records, waited for {waited_ms} ms")


if __name__ == "__main__":
    main(*sys.argv[1:])
