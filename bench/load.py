"""Steady load on the usage topic, in a process of its own.

    python -m bench.load BOOTSTRAP_SERVERS EVENTS_PER_SECOND CLIENTS

One JSON object per message; the clients take turns; 100 steps per second. It runs until its stdin is closed or it is
terminated. Once per second it prints how many events it has sent.
"""

import sys
import time
from typing import Any, Final

from kafka import KafkaProducer

from schemas.topic_names import USAGE_TOPIC

STEPS_PER_SECOND: Final = 100


def run(bootstrap_servers: str, events_per_second: int, clients: int) -> None:
    """Send without end."""
    producer: Any = KafkaProducer(
        bootstrap_servers=bootstrap_servers, acks=1, enable_idempotence=False, linger_ms=10, batch_size=262_144
    )
    names = [
        f'"user":"team-{number % 997}","client_id":"service-{number}","produced_bytes":{200 + number % 800},'
        f'"io_time_ns":{20_000 + number}}}'
        for number in range(clients)
    ]
    began, sent, told = time.monotonic(), 0, 0
    while True:
        due = int((time.monotonic() - began) * STEPS_PER_SECOND) * events_per_second // STEPS_PER_SECOND
        now_ms = time.time_ns() // 1_000_000
        head = f'{{"event_time_ms":{now_ms},'
        for number in range(sent, due):
            producer.send(USAGE_TOPIC, (head + names[number % clients]).encode())
        sent = max(sent, due)
        elapsed = int(time.monotonic() - began)
        if elapsed > told:
            told = elapsed
            sys.stdout.write(f"{sent}\n")
            sys.stdout.flush()
        time.sleep(1 / STEPS_PER_SECOND)


if __name__ == "__main__":
    run(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
