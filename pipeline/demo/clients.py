"""The demo's load: all clients of a plan in one process, `python -m pipeline.demo.clients`.

The plan has passwords, so it comes by stdin. The process ends, within a second or two, on SIGTERM, on Ctrl-C, and when
its stdin is closed: a parent that dies closes it, however it dies.
"""

import logging
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from threading import Event, Thread
from typing import Any, Final

from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import KafkaError
from pydantic import TypeAdapter

from pipeline.cluster.connecting import open_client
from pipeline.cluster.topics import TopicSpec, create_topics
from pipeline.demo.broker import plain_sign_in
from pipeline.demo.folder import DEMO_CLIENTS, DEMO_TOPICS, SPLIT_TOPIC, DemoClient
from pipeline.errors import PipelineError, first_line
from pipeline.gate.gate import Gate
from pipeline.log import set_up_logging
from pipeline.process import call_on_signals
from schemas.names import THROTTLE_TOPIC


@dataclass(slots=True)
class Pace:
    """When the next request of a client is due, by its rate and while it is throttled. Pure.

    A client that is late (it was blocked, or the broker was slow) continues at its rate. It does not catch up, so a
    throttled client returns to the rate it had before and not to a higher one.
    """

    bytes_per_second: float
    due_ms: float = 0.0

    def wait_ms(self, now_ms: float, blocked_ms: float) -> float:
        """How long to hold off at `now_ms`; 0 = go. `blocked_ms` is what is left of a throttle."""
        return max(0.0, blocked_ms, self.due_ms - now_ms)

    def used(self, size_bytes: int, now_ms: float) -> None:
        """Record that `size_bytes` were sent or read at `now_ms`; the next request is due when the rate allows it.

        A delay up to the span of one request is caught up. Otherwise rounding and scheduling would lower the rate.
        """
        span_ms = size_bytes / self.bytes_per_second * 1000
        self.due_ms = max(self.due_ms, now_ms - span_ms) + span_ms


log = logging.getLogger(__name__)

CLOSE_SECONDS: Final = 1.0


def close_producer(producer: Any) -> None:
    """End a producer of kafka-python and its thread. What it has not sent yet is lost; who waits for it gets an error.

    `KafkaProducer.close` first waits for unsent records. If they stay unsent, because a broker is away or mutes the
    connection, it raises and closes nothing, and does so again at the end of the process, with a traceback. So they are
    given up first, for which kafka-python has no public way.
    """
    producer._sender.force_close()
    producer._sender.join(CLOSE_SECONDS)
    with suppress(KafkaError):
        producer.close(timeout=CLOSE_SECONDS)


# How often a blocked client checks again, because a release can come before the end of a throttle.
LOOK_EVERY_MS: Final = 20
RETRY_SECONDS: Final = 1.0
_MUTED_SECONDS: Final = 600


class DemoClientThread:
    """Runs one client at its pace until it is stopped; connects again after any failure of the broker.

    One that does not listen to throttles waits for its brokers alone, which may mute it for minutes.

    Args:
        shares: For each partition of its topic, the part of the requests that go there.
        remaining_ms: How long a user and client-id must still wait now.
    """

    def __init__(
        self,
        client: DemoClient,
        options: Mapping[str, Any],
        shares: Sequence[float],
        remaining_ms: Callable[[str, str], int],
        stopping: Event,
    ) -> None:
        self.client = client
        self.sent_bytes = 0
        self._kafka: Any = None
        self._options = dict(options)
        self._shares = shares
        self._remaining_ms: Callable[[str, str], int] = remaining_ms if client.listens else lambda *_: 0
        self._stopping = stopping
        self._pace = Pace(client.bytes_per_second)
        self._thread = Thread(target=self._run, name=f"{client.user}/{client.client_id}", daemon=True)

    def start(self) -> None:
        """Begin. Once only."""
        self._thread.start()

    def leave(self) -> None:
        """Fail what a producer waits for: an answer of a broker that is away. The client is stopping."""
        if self._kafka is not None and self.client.role == "produce":
            self._kafka._sender.force_close()  # kafka-python has no public way

    def join(self, timeout_seconds: float) -> None:
        """Wait for the end."""
        self._thread.join(timeout_seconds)

    def _run(self) -> None:
        work = self._produce if self.client.role == "produce" else self._consume
        while not self._stopping.is_set():
            try:
                work()
            except (KafkaError, PipelineError, OSError) as exc:
                if self._stopping.is_set():  # `leave` has failed what it waited for
                    return
                log.warning("%s: %s; retrying", self._thread.name, first_line(exc))
                self._stopping.wait(RETRY_SECONDS)

    def _produce(self) -> None:
        patience: dict[str, Any] = {"delivery_timeout_ms": 10_000, "request_timeout_ms": 5_000, "max_block_ms": 5_000}
        if not self.client.listens:
            patience = {"delivery_timeout_ms": _MUTED_SECONDS * 1000}
        client_id, seconds = self.client.client_id, patience["delivery_timeout_ms"] / 1000
        producer: Any = open_client(KafkaProducer, **self._options, **patience, client_id=client_id, acks="all")
        self._kafka, value = producer, bytes(self.client.bytes_per_request)
        try:
            while self._hold_off():
                # One request each: nothing is gathered, and the next waits for the answer.
                (partition,) = random.choices(range(len(self._shares)), self._shares)  # noqa: S311 - no secret
                producer.send(self.client.topic, value=value, partition=partition).get(timeout=seconds)
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
            partitions = [TopicPartition(self.client.topic, number) for number in range(len(self._shares))]
            consumer.assign(partitions)
            consumer.seek_to_end(*partitions)
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
            blocked_ms = self._remaining_ms(self.client.user, self.client.client_id)
            wait_ms = self._pace.wait_ms(time.monotonic() * 1000, blocked_ms)
            if wait_ms <= 0:
                return True
            self._stopping.wait(min(wait_ms, LOOK_EVERY_MS) / 1000)
        return False

    def _used(self, size_bytes: int) -> None:
        self.sent_bytes += size_bytes
        self._pace.used(size_bytes, time.monotonic() * 1000)


@dataclass(frozen=True, slots=True)
class DemoPlan:
    """Everything the process of the demo clients needs to know.

    Attributes:
        view_bootstrap_servers: Where the throttle topic is followed, without sign-in.
        split_shares: The part of the split topic's requests that goes to each of its partitions.
    """

    bootstrap_servers: str
    view_bootstrap_servers: str
    passwords: Mapping[str, str]
    throttle_topic: str = THROTTLE_TOPIC
    clients: tuple[DemoClient, ...] = DEMO_CLIENTS
    split_shares: tuple[float, ...] = (1.0,)


_AS_JSON: Final = TypeAdapter(DemoPlan)


def start_demo_clients(plan: DemoPlan, **popen: Any) -> "subprocess.Popen[bytes]":
    """Start the load as a child of this process; it ends with it. Close its stdin, or terminate it, to stop it."""
    command = [sys.executable, "-m", "pipeline.demo.clients"]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, bufsize=0, **popen)  # noqa: S603 - our own module
    if child.stdin is not None:
        child.stdin.write(_AS_JSON.dump_json(plan) + b"\n")
    return child


def create_demo_topics(admin: Any, brokers: int) -> None:
    """Create the topics that the clients use; existing ones stay as they are."""
    partitions = {name: brokers if name == SPLIT_TOPIC else 1 for name in DEMO_TOPICS}
    specs = [TopicSpec(name, "demo", partitions[name], "any", {}, each) for name, each in DEMO_TOPICS.items()]
    create_topics(admin, specs)


def run(plan: DemoPlan, stopping: Event) -> None:
    """Run the clients until `stopping`; returns when all have closed their connections, or after 3 s."""
    gate = Gate.connect(plan.view_bootstrap_servers, topic=plan.throttle_topic)

    def remaining_ms(user: str, client_id: str) -> int:
        throttled = gate.throttle_of(user, client_id)
        return 0 if throttled is None else throttled.remaining_ms

    clients = []
    for one in plan.clients:
        options = plain_sign_in(plan.bootstrap_servers, one.user, plan.passwords[one.user])
        shares = plan.split_shares if one.topic == SPLIT_TOPIC else (1.0,)
        clients.append(DemoClientThread(one, options, shares, remaining_ms, stopping))
        clients[-1].start()
    stopping.wait()
    for client in clients:
        client.leave()
    for client in clients:
        client.join(3.0 / len(clients))
    gate.close(1.0)


def _listen_to_parent(stopping: Event) -> None:
    # Not sys.stdin: a thread that waits in its buffer makes the interpreter abort at exit.
    while os.read(0, 4096):
        pass
    stopping.set()


def main() -> None:
    """Entry point of the module."""
    set_up_logging("WARNING")
    with open(0, "rb", buffering=0, closefd=False) as given:
        plan = _AS_JSON.validate_json(given.readline())
    stopping = Event()
    Thread(target=_listen_to_parent, args=(stopping,), name="stdin-watch", daemon=True).start()
    with call_on_signals(stopping.set):
        run(plan, stopping)


if __name__ == "__main__":
    main()
