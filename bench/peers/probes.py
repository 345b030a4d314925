"""Events of clients that nobody has seen before, ten a second: how long until the result of each can be read."""

import json
import random
import time
from collections.abc import Iterator
from threading import Event, Thread
from types import TracebackType
from typing import Any, Final, Self

from kafka import KafkaConsumer, KafkaProducer, TopicPartition

PROBE_USER: Final = "probe"
_PER_SECOND: Final = 10.0


class Probes:
    """Sends probes on a thread, while its block runs.

    Args:
        bootstrap_servers: of the broker.
        topic: the usage topic.

    Attributes:
        sent_ms: of each client-id, the wall clock before the produce call.
    """

    def __init__(self, bootstrap_servers: str, topic: str) -> None:
        self.sent_ms: dict[str, float] = {}
        self._topic = topic
        self._producer: Any = KafkaProducer(bootstrap_servers=bootstrap_servers, linger_ms=0)
        self._stop = Event()
        self._draw = random.Random(7)
        self._thread = Thread(target=self._send, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        self._producer.flush()
        self._producer.close()

    def _send(self) -> None:
        # Random pauses: a probe that comes in step with windows or triggers would measure the step.
        while not self._stop.wait(2 * self._draw.random() / _PER_SECOND):
            client_id = str(len(self.sent_ms))
            now_ms = time.time() * 1000
            event = {
                "event_time_ms": int(now_ms),
                "user": PROBE_USER,
                "client_id": client_id,
                "produced_bytes": 1,
                "fetched_bytes": 2,
                "io_time_ns": 3,
                "network_time_ns": 4,
                "request_count": 1,
            }
            self.sent_ms[client_id] = now_ms
            self._producer.send(self._topic, json.dumps(event).encode(), key=f"{PROBE_USER}/{client_id}".encode())


def topic_values(bootstrap_servers: str, topic: str) -> Iterator[bytes]:
    """The values of all messages that a topic has now."""
    consumer: Any = KafkaConsumer(
        bootstrap_servers=bootstrap_servers, check_crcs=False, max_poll_records=20_000, fetch_max_wait_ms=100
    )
    partitions = [TopicPartition(topic, number) for number in sorted(consumer.partitions_for_topic(topic) or ())]
    consumer.assign(partitions)
    consumer.seek_to_beginning()
    ends = consumer.end_offsets(partitions)
    while any(consumer.position(partition) < end for partition, end in ends.items()):
        for records in consumer.poll(timeout_ms=500).values():
            yield from (record.value for record in records)
    consumer.close()
