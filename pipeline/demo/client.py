"""One client of the demo: a thread that sends or reads at its pace and obeys the throttle topic."""

import logging
import time
from collections.abc import Mapping
from threading import Event, Thread
from typing import Any, Final, Protocol

from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import KafkaError

from pipeline.clock import wall_ms
from pipeline.cluster.connecting import open_client
from pipeline.demo.pace import Pace
from pipeline.demo.plan import DemoClient
from pipeline.demo.stock_client import broker_throttle_ms, close_producer
from pipeline.errors import PipelineError, first_line

log = logging.getLogger(__name__)

# How often a blocked client checks again, because a release can come before the end of a throttle.
LOOK_EVERY_MS: Final = 20
RETRY_SECONDS: Final = 1.0


class Blocked(Protocol):
    """What a client needs of a `ThrottleView`."""

    def remaining_ms(self, user: str, client_id: str, now_ms: int) -> int:
        """The time that the client must still wait, at `now_ms` by wall clock."""
        ...


class DemoClientThread:
    """Runs one client until it is stopped; connects again after any failure of the broker.

    It stays below its quota until `in_full` is set.

    Attributes:
        sent_bytes: Payload sent, or read, so far.
        requests: Produce requests, or fetches with data, so far.
        blocked: Whether it waits now because of a throttle.
        held_ms: How long throttles have held it until now.
    """

    def __init__(
        self, client: DemoClient, options: Mapping[str, Any], view: Blocked, stopping: Event, in_full: Event
    ) -> None:
        self.client = client
        self.sent_bytes = 0
        self.requests = 0
        self.blocked = False
        self.held_ms = 0.0
        self._kafka: Any = None
        self._options = dict(options)
        self._view = view
        self._stopping = stopping
        self._in_full = in_full
        self._pace = Pace(client.calm_bytes_per_second)
        name = f"{client.user}/{client.client_id}"
        self._thread = Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin. Once only."""
        self._thread.start()

    def leave(self) -> None:
        """Fail what a producer waits for: an answer of a broker that is away. The client has been told to stop."""
        if self._kafka is not None and self.client.role == "produce":
            self._kafka._sender.force_close()  # kafka-python has no public way

    def join(self, timeout_seconds: float) -> None:
        """Wait for the end."""
        self._thread.join(timeout_seconds)

    def report(self) -> dict[str, Any]:
        """The counters, as printed once a second."""
        kafka = self._kafka
        mean_ms, longest_ms = (0.0, 0.0) if kafka is None else broker_throttle_ms(kafka)
        return {
            "user": self.client.user,
            "client_id": self.client.client_id,
            "role": self.client.role,
            "sent_bytes": self.sent_bytes,
            "requests": self.requests,
            "blocked": self.blocked,
            "held_ms": round(self.held_ms),
            "broker_throttle_mean_ms": mean_ms,
            "broker_throttle_max_ms": longest_ms,
        }

    def _run(self) -> None:
        work = self._produce if self.client.role == "produce" else self._consume
        while not self._stopping.is_set():
            try:
                work()
            except (KafkaError, PipelineError, OSError) as exc:
                if self._stopping.is_set():  # `leave` has failed what it waited for
                    return
                log.warning("%s: %s; trying again", self._thread.name, first_line(exc))
                self._stopping.wait(RETRY_SECONDS)

    def _produce(self) -> None:
        producer: Any = open_client(
            KafkaProducer, **self._options, client_id=self.client.client_id, acks="all", delivery_timeout_ms=10_000,
            request_timeout_ms=5_000, max_block_ms=5_000,
        )  # fmt: skip
        self._kafka, value = producer, bytes(self.client.bytes_per_request)
        try:
            while self._hold_off():
                # One request each: nothing is gathered, and the next waits for the answer.
                producer.send(self.client.topic, value=value).get(timeout=10)
                self._used(len(value))
        finally:
            close_producer(producer)

    def _consume(self) -> None:
        # kafka-python fetches ahead once per poll, and not on its own: the pace of the polls is the pace of the
        # fetches. A broker answers a fetch of 1 byte with one whole batch; asked for more it cuts the last
        # batch, and the cut part is charged and read again. No group: a demo must not wait for one to form.
        consumer: Any = open_client(
            KafkaConsumer, **self._options, client_id=self.client.client_id, group_id=None,
            enable_auto_commit=False, max_partition_fetch_bytes=1, fetch_max_bytes=1, max_poll_records=10_000,
        )  # fmt: skip
        self._kafka = consumer
        try:
            partition = TopicPartition(self.client.topic, 0)
            consumer.assign([partition])
            consumer.seek_to_end(partition)
            while self._hold_off():
                read = consumer.poll(200).values()
                size_bytes = sum(len(record.value or b"") for records in read for record in records)
                if size_bytes:
                    self._used(size_bytes)
        finally:
            consumer.close(timeout_ms=1000)

    def _hold_off(self) -> bool:
        """Wait until the client may send or read again. False if it shall stop."""
        while not self._stopping.is_set():
            blocked_ms = self._view.remaining_ms(self.client.user, self.client.client_id, wall_ms())
            self.blocked = blocked_ms > 0
            wait_ms = self._pace.wait_ms(time.monotonic() * 1000, blocked_ms)
            if wait_ms <= 0:
                return True
            before = time.monotonic()
            self._stopping.wait(min(wait_ms, LOOK_EVERY_MS) / 1000)
            if self.blocked:
                self.held_ms += (time.monotonic() - before) * 1000
        return False

    def _used(self, size_bytes: int) -> None:
        self.sent_bytes += size_bytes
        self.requests += 1
        if self._in_full.is_set():
            self._pace.bytes_per_second = self.client.bytes_per_second
        self._pace.used(size_bytes, time.monotonic() * 1000)
