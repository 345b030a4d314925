"""Stock clients of brokers, plain kafka-python that knows nothing of kquota: sign-in, work, a topic on each broker."""

import logging
import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from typing import Any, Final

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import KafkaError

from pipeline.demo.broker import EmbeddedBroker, EmbeddedCluster, plain_sign_in
from pipeline.demo.clients import CLOSE_SECONDS, close_producer

log = logging.getLogger("stock client")

_REPORT_EVERY_SECONDS: Final = 1.0
_RETRY_SECONDS: Final = 1.0
_PATIENCE_SECONDS: Final = 600.0  # brokers may mute a client for minutes


@dataclass(frozen=True, slots=True)
class StockWork:
    """What a client does.

    Attributes:
        shares: For each partition, the part of the requests that go there; a consumer reads all partitions.
        bytes_per_second: What a producer sends while nothing slows it; a consumer reads whatever there is.
        options: Of the client class of kafka-python: address, sign-in, client_id.
    """

    topic: str
    shares: Sequence[float]
    bytes_per_second: float
    requests_per_second: float
    options: Mapping[str, Any]


class StockProducer:
    """Sends to each partition at its share of the rate; each waits for the last answer before it sends again.

    So a partition that a broker slows holds up no other one. Nothing that was missed is caught up.

    Attributes:
        shares: As in the work; may be replaced while it runs.
        sent_bytes: Payload that the brokers have taken, for each partition.
    """

    def __init__(self, work: StockWork, stopping: Event) -> None:
        self.shares = tuple(work.shares)
        self.sent_bytes = [0] * len(self.shares)
        self._work = work
        self._stopping = stopping
        self._client: Any = KafkaProducer(**work.options, delivery_timeout_ms=int(_PATIENCE_SECONDS * 1000))

    def start(self) -> None:
        for partition in range(len(self.shares)):
            Thread(target=self._send, args=(partition,), name=f"partition {partition}", daemon=True).start()

    def close(self) -> None:
        """Leave; what has not been sent is lost."""
        self._stopping.set()
        close_producer(self._client)

    def longest_throttle_ms(self) -> float:
        """By its own metric, which looks back for a minute."""
        longest_ms = float((self._client.metrics() or {}).get("producer-metrics", {}).get("throttle-time-max", 0.0))
        return longest_ms if math.isfinite(longest_ms) else 0.0

    def _send(self, partition: int) -> None:
        value = bytes(round(self._work.bytes_per_second / self._work.requests_per_second))
        due = time.monotonic()
        while not self._stopping.wait(max(0.0, due - time.monotonic())):
            share = self.shares[partition]
            if not share:
                due = time.monotonic() + _REPORT_EVERY_SECONDS
                continue
            try:
                self._client.send(self._work.topic, value, partition=partition).get(_PATIENCE_SECONDS)
            except KafkaError as exc:
                due = time.monotonic() + _RETRY_SECONDS
                if not self._stopping.is_set():
                    log.error("%s; retrying", exc)
                continue
            self.sent_bytes[partition] += len(value)
            span_seconds = 1 / (self._work.requests_per_second * share)
            due = max(due, time.monotonic() - span_seconds) + span_seconds


class StockConsumer:
    """Reads a topic from its present end, in a thread."""

    def __init__(self, work: StockWork, stopping: Event) -> None:
        self._stopping = stopping
        self._client: Any = KafkaConsumer(**work.options, group_id=None, enable_auto_commit=False)
        partitions = [TopicPartition(work.topic, partition) for partition in range(len(work.shares))]
        self._client.assign(partitions)
        self._client.seek_to_end(*partitions)
        self._thread = Thread(target=self._read, name="reader", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._stopping.set()
        self._thread.join(CLOSE_SECONDS)
        if not self._thread.is_alive():  # it is not safe for several threads
            with suppress(KafkaError):
                self._client.close(timeout_ms=int(CLOSE_SECONDS * 1000))

    def _read(self) -> None:
        while not self._stopping.is_set():
            try:
                self._client.poll(200)
            except KafkaError as exc:
                log.error("%s; retrying", exc)
                self._stopping.wait(_RETRY_SECONDS)


def stock_cluster(folder: Path, brokers: int, users: Iterable[str]) -> EmbeddedCluster:
    """Brokers that are not started yet, for users whose password is their name."""
    folders = [folder / f"broker-{number}" for number in range(1, brokers + 1)]
    return EmbeddedCluster(folders, {user: user for user in users})


def stock_work(
    broker: EmbeddedBroker | EmbeddedCluster,
    user: str,
    topic: str,
    shares: Sequence[float],
    bytes_per_second: float,
    requests_per_second: float,
    **options: Any,
) -> StockWork:
    """What a producer of such a user does, whose client-id is its name."""
    options = {**plain_sign_in(broker.sasl_bootstrap_servers, user, user), "client_id": user, **options}
    return StockWork(topic, shares, bytes_per_second, requests_per_second, options)


@contextmanager
def stock_producers(works: Mapping[Any, StockWork]) -> Iterator[dict[Any, StockProducer]]:
    """A producer for each work, by the same key; not started. They end with the block."""
    with ExitStack() as stack:
        producers = {}
        for key, work in works.items():
            producers[key] = StockProducer(work, Event())
            stack.callback(producers[key].close)
        yield producers


def topic_on_each(brokers: Sequence[EmbeddedBroker], topic: str) -> list[str]:
    """Create a topic with a partition on each broker; returns the brokers' ids."""
    admin: Any = KafkaAdminClient(bootstrap_servers=brokers[0].bootstrap_servers)
    assignments = {partition: [broker.node_id] for partition, broker in enumerate(brokers)}
    settings = {"retention.bytes": "67108864"}
    admin.create_topics({topic: {"assignments": assignments, "configs": settings}}, wait_for_metadata=True)
    admin.close()
    return [str(broker.node_id) for broker in brokers]
