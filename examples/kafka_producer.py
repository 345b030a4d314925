"""A producer that holds off while it is throttled: one line around `send`.

    python -m examples.kafka_producer broker:9092 alice etl orders 100 [THROTTLE_TOPIC]

Sends 100 records of 1 kB to `orders` as user alice with client-id etl, and says how long it was held.
"""

import sys
from typing import Any

from kafka import KafkaProducer

from pipeline.gate.gate import Gate

RECORD_BYTES = 1_000


def main(servers: str, user: str, client_id: str, topic: str, count: str, throttles: str = "quota.throttle.v1") -> None:
    """Send `count` records, each when the gate says so."""
    producer: Any = KafkaProducer(bootstrap_servers=servers, client_id=client_id)
    held_ms = 0
    with Gate.connect(servers, topic=throttles) as gate:
        gate.wait_until_caught_up(timeout_ms=5_000)  # a throttle that runs already is known before the first record
        for _ in range(int(count)):
            with gate.acquire(user, client_id, request_bytes=RECORD_BYTES) as passage:
                held_ms += passage.waited_ms
                producer.send(topic, bytes(RECORD_BYTES)).get(timeout=10)
    producer.close()
    print(f"sent {count} records, held for {held_ms} ms")


if __name__ == "__main__":
    main(*sys.argv[1:])
