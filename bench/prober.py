"""Measures how long a first event above a quota takes to become a throttle record."""

import json
import random
import time
from types import TracebackType
from typing import Any, Final, Self

from kafka import KafkaProducer

from bench.throttle_topic import throttle_reader
from schemas.topic_names import USAGE_TOPIC

PROBE_BOUND: Final = 1_000.0
"""Bytes per second."""
PROBE_BYTES: Final = 15_000
"""Above what the bound allows in a whole window of 11 s."""
_GIVE_UP_SECONDS: Final = 60.0
_LEAST_PAUSE_SECONDS: Final = 0.8


class Prober:
    """A producer of probes and a `read_committed` reader of their records. Use it in a `with` block.

    The users of the probes are probe-0, probe-1, …; each needs a quota of `PROBE_BOUND`. They are held for some
    seconds.

    Args:
        bootstrap_servers: Of the broker.

    Attributes:
        missing: The first user that got no record within a minute, or "". After it no more probes are sent.
    """

    def __init__(self, bootstrap_servers: str) -> None:
        self._consumer = throttle_reader(bootstrap_servers)
        self._producer: Any = KafkaProducer(bootstrap_servers=bootstrap_servers, linger_ms=0)
        self._draw = random.Random(7)
        self._sent = 0
        self.missing = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._consumer.close()
        self._producer.close()

    def probe(self, seconds: float) -> list[float]:
        """Send probes at random times for so long. Returns the latency of each in ms, in their order."""
        end = time.monotonic() + seconds
        latencies_ms = []
        while time.monotonic() < end:
            self._wait_until(min(time.monotonic() + _LEAST_PAUSE_SECONDS + self._draw.random(), end))
            if time.monotonic() < end and not self.missing:
                latency_ms = self._one()
                latencies_ms += [] if latency_ms is None else [latency_ms]
        return latencies_ms

    def _wait_until(self, deadline: float) -> None:
        while time.monotonic() < deadline:
            self._consumer.poll(timeout_ms=20)

    def _one(self) -> float | None:
        user = f"probe-{self._sent}"
        self._sent += 1
        event = {
            "event_time_ms": time.time_ns() // 1_000_000,
            "user": user,
            "client_id": "p",
            "produced_bytes": PROBE_BYTES,
        }
        began = time.perf_counter()
        self._producer.send(USAGE_TOPIC, json.dumps(event).encode())
        self._producer.flush()
        while user not in self._users():
            if time.perf_counter() - began > _GIVE_UP_SECONDS:
                self.missing = user
                return None
        return (time.perf_counter() - began) * 1_000

    def _users(self) -> set[str]:
        polled = self._consumer.poll(timeout_ms=1_000)
        return {json.loads(record.value)["user"] for records in polled.values() for record in records}
