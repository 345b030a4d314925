"""Sends usage until its standard input is closed, and returns when the broker has all of it.

The seed alone decides the messages; only the event times are those of the present.
"""

import argparse
import json
import random
import sys
import threading
import time
from itertools import count
from typing import Any

from kafka import KafkaProducer

from pipeline.cluster.connecting import open_client

OFFENDERS = 8
QUIET_CLIENTS = 12
RATES = {"producer_byte_rate": 10_000.0, "consumer_byte_rate": 20_000.0, "request_percentage": 5.0}
"""The quotas the load is made for, per user."""
_AMOUNTS = {"produced_bytes": 10_000, "fetched_bytes": 20_000, "io_time_ns": 50_000_000}
"""A second's worth of each."""
_LARGEST_NAME_BYTES = 32_767
_MAX_EVENT_AGE_MS = 86_400_000

NO_USAGE: tuple[bytes, ...] = (
    b"not json",
    b'{"event_time_ms": "soon", "user": "u", "client_id": "c"}',
    b"\xff\xfe\x00",
    b"17",
    b"null",
)
"""Messages that are no usage whenever they are sent."""
_NO_USAGE_NOW = (
    '{"event_time_ms": %d, "client_id": "c"}',
    '{"event_time_ms": %d, "user": "", "client_id": "c"}',
    '{"event_time_ms": %d, "user": "u", "client_id": "c", "produced_bytes": -1}',
    '{"event_time_ms": %d, "user": "u", "client_id": "c", "produced_bytes": 1099511627777}',
    '[{"event_time_ms": %d}',
    '{"event_time_ms": %d, "user": "u", "client_id": "c"} and more',
    '{"event_time_ms": %d, "user": "u", "client_id": "' + "é" * (_LARGEST_NAME_BYTES // 2 + 1) + '"}',
)
"""Messages that would be usage of the present, but for one fault each."""
_BAD_ELEMENTS: tuple[Any, ...] = (
    7,
    None,
    "text",
    {"user": "u"},
    {"event_time_ms": None, "user": "u", "client_id": "c"},
)


class Content:
    """Makes one message after the other; the same seed gives the same messages.

    Args:
        garbage_share: The share of messages that are not usage.
        skew_ms: One event in twenty is dated up to this long into the future or the past.
        new_client_share: The share of events with a client-id that was never used before.
    """

    def __init__(self, seed: int, garbage_share: float, skew_ms: int, new_client_share: float = 0.0) -> None:
        self._random = random.Random(seed)
        self._garbage_share = garbage_share
        self._skew_ms = skew_ms
        self._new_client_share = new_client_share
        self._new_clients = count()

    def message(self, now_ms: int) -> bytes | None:
        """The next value: an event, an array of events, nothing, or garbage."""
        kind = self._random.random()
        if kind < self._garbage_share:
            return self._garbage(now_ms)
        if kind < self._garbage_share + 0.03:
            return self._random.choice((None, b"[]"))
        if kind < self._garbage_share + 0.15:
            return json.dumps([self._element(now_ms) for _ in range(self._random.randrange(1, 6))]).encode()
        return json.dumps(self._event(now_ms)).encode()

    def _garbage(self, now_ms: int) -> bytes:
        """A message that is no usage, among them one dated a minute more than a day ago."""
        too_old_ms = now_ms - _MAX_EVENT_AGE_MS - 60_000
        present = [text % now_ms for text in _NO_USAGE_NOW]
        old = f'{{"event_time_ms": {too_old_ms}, "user": "u", "client_id": "c"}}'
        return self._random.choice([*NO_USAGE, *(text.encode() for text in (*present, old))])

    def _element(self, now_ms: int) -> Any:
        event = self._event(now_ms)
        return self._random.choice(_BAD_ELEMENTS) if self._random.random() < 0.2 else event

    def _event(self, now_ms: int) -> dict[str, Any]:
        """An event: now and then a burst as large as the usage of some seconds, else very little."""
        draw = self._random
        is_burst = draw.random() < 0.06
        user = f"offender-{draw.randrange(OFFENDERS)}" if is_burst else f"quiet-{draw.randrange(QUIET_CLIENTS)}"
        measure = draw.choice(list(_AMOUNTS))
        amount = draw.randrange(3, 6) * _AMOUNTS[measure] if is_burst else draw.randrange(_AMOUNTS[measure] // 200)
        event: dict[str, Any] = {
            "event_time_ms": now_ms + self._skew(),
            "user": user,
            "client_id": self._client_id(),
            measure: amount,
        }
        if draw.random() < 0.3:
            event |= {"broker_id": str(draw.randrange(3)), "request_count": draw.randrange(4), "later_field": [1]}
        if draw.random() < 0.1:
            event |= {"network_time_ns": draw.randrange(1_000_000), "throttle_exempt": draw.random() < 0.5}
        return event

    def _client_id(self) -> str:
        if self._new_client_share and self._random.random() < self._new_client_share:
            return f"pod-{next(self._new_clients)}"
        return self._random.choice(("", "etl", "app"))

    def _skew(self) -> int:
        return self._random.randrange(-self._skew_ms, self._skew_ms) if self._random.random() < 0.05 else 0


def _await_end_of_input(stop: threading.Event) -> None:
    sys.stdin.read()
    stop.set()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.generator", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--bootstrap-server", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--per-second", type=float, default=40)
    parser.add_argument("--garbage-share", type=float, default=0.03)
    parser.add_argument("--skew-ms", type=int, default=2_000)
    parser.add_argument("--new-client-share", type=float, default=0.0)
    given = parser.parse_args()
    stop = threading.Event()
    threading.Thread(target=_await_end_of_input, args=(stop,), daemon=True).start()
    producer: Any = open_client(
        KafkaProducer,
        given.bootstrap_server,
        acks="all",
        linger_ms=2,
        delivery_timeout_ms=60_000,
        request_timeout_ms=5_000,
        metadata_max_age_ms=2_000,
        max_block_ms=60_000,
    )
    content = Content(given.seed, given.garbage_share, given.skew_ms, given.new_client_share)
    began, sent = time.monotonic(), 0
    while not stop.wait(max(began + sent / given.per_second - time.monotonic(), 0)):
        value = content.message(time.time_ns() // 1_000_000)
        producer.send(given.topic, value, key=f"{given.seed}/{sent}".encode())
        sent += 1
    producer.flush(timeout=60)
    producer.close(timeout=10)
    return 0


if __name__ == "__main__":
    sys.exit(main())
