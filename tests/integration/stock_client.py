"""A stock client: plain kafka-python, and nothing of kquota. `python -m tests.integration.stock_client FILE`.

FILE is a JSON object with the fields of `StockWork`. One JSON line with the counters comes each second on stdout. Ends
on SIGTERM and Ctrl-C.
"""

import json
import logging
import math
import signal
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from typing import Any, Final

from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import KafkaError

from pipeline.demo.clients import CLOSE_SECONDS, close_producer

log = logging.getLogger("stock client")

_REPORT_EVERY_SECONDS: Final = 1.0
_RETRY_SECONDS: Final = 1.0
_PATIENCE_SECONDS: Final = 600.0  # brokers may mute a client for minutes
_ANSWERS_KEPT: Final = 10_000


@dataclass(frozen=True, slots=True)
class StockWork:
    """What the client does.

    Attributes:
        shares: For each partition, the part of the requests that go there; a consumer reads all partitions.
        bytes_per_second: What a producer sends while nothing slows it; a consumer reads whatever there is.
        options: Of the client class of kafka-python: address, sign-in, client_id.
    """

    role: str
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
        answer_ms: How long each request took, from the call to the answer; the newest ones, the oldest first.
    """

    def __init__(self, work: StockWork, stopping: Event) -> None:
        self.shares = tuple(work.shares)
        self.sent_bytes = [0] * len(self.shares)
        self.answer_ms: deque[float] = deque(maxlen=_ANSWERS_KEPT)
        self._work = work
        self._stopping = stopping
        self.client = KafkaProducer(**work.options, delivery_timeout_ms=int(_PATIENCE_SECONDS * 1000))

    def start(self) -> None:
        """Begin. Once only."""
        for partition in range(len(self.shares)):
            Thread(target=self._send, args=(partition,), name=f"partition {partition}", daemon=True).start()

    def close(self) -> None:
        """Leave; what has not been sent is lost."""
        self._stopping.set()
        close_producer(self.client)

    def _send(self, partition: int) -> None:
        value = bytes(round(self._work.bytes_per_second / self._work.requests_per_second))
        due = time.monotonic()
        while not self._stopping.wait(max(0.0, due - time.monotonic())):
            share = self.shares[partition]
            if not share:
                due = time.monotonic() + _REPORT_EVERY_SECONDS
                continue
            began = time.monotonic()
            try:
                self.client.send(self._work.topic, value, partition=partition).get(_PATIENCE_SECONDS)
            except KafkaError as exc:
                due = time.monotonic() + _RETRY_SECONDS
                if not self._stopping.is_set():
                    log.error("%s; retrying", exc)
                continue
            self.answer_ms.append((time.monotonic() - began) * 1000)
            self.sent_bytes[partition] += len(value)
            span_seconds = 1 / (self._work.requests_per_second * share)
            due = max(due, time.monotonic() - span_seconds) + span_seconds


class StockConsumer:
    """Reads a topic from its present end, in a thread. Its fields are those of `StockProducer`, for all partitions.

    It times nothing: `answer_ms` stays empty.
    """

    def __init__(self, work: StockWork, stopping: Event) -> None:
        self.sent_bytes = [0]
        self.answer_ms: deque[float] = deque()
        self._stopping = stopping
        self.client = KafkaConsumer(**work.options, group_id=None, enable_auto_commit=False)
        partitions = [TopicPartition(work.topic, partition) for partition in range(len(work.shares))]
        self.client.assign(partitions)
        self.client.seek_to_end(*partitions)
        self._thread = Thread(target=self._read, name="reader", daemon=True)

    def start(self) -> None:
        """Begin. Once only."""
        self._thread.start()

    def close(self) -> None:
        """Leave."""
        self._stopping.set()
        self._thread.join(CLOSE_SECONDS)
        if not self._thread.is_alive():  # it is not safe for several threads
            with suppress(KafkaError):
                self.client.close(timeout_ms=int(CLOSE_SECONDS * 1000))

    def _read(self) -> None:
        while not self._stopping.is_set():
            try:
                read = self.client.poll(200).values()
            except KafkaError as exc:
                log.error("%s; retrying", exc)
                self._stopping.wait(_RETRY_SECONDS)
                continue
            self.sent_bytes[0] += sum(len(record.value or b"") for records in read for record in records)


def broker_throttle_ms(client: Any) -> tuple[float, float]:
    """How long brokers made a client wait after a request, by its own metrics: mean and longest of a minute, in ms."""
    metrics = client.metrics() or {}
    found = metrics.get("producer-metrics") or metrics.get("consumer-metrics") or {}  # of all brokers together
    mean, longest = (float(found.get(f"throttle-time-{kind}", 0.0)) for kind in ("avg", "max"))
    return (mean if math.isfinite(mean) else 0.0, longest if math.isfinite(longest) else 0.0)


def report(work: StockWork, running: StockProducer | StockConsumer) -> dict[str, Any]:
    """The counters, as printed once a second, and the times of the requests since the last report."""
    mean_ms, longest_ms = broker_throttle_ms(running.client)
    return {
        "user": work.options.get("sasl_plain_username", ""),
        "client_id": work.options["client_id"],
        "role": work.role,
        "sent_bytes": sum(running.sent_bytes),
        "broker_throttle_mean_ms": mean_ms,
        "broker_throttle_max_ms": longest_ms,
        "answer_ms": [round(running.answer_ms.popleft(), 1) for _ in range(len(running.answer_ms))],
    }


def run(work: StockWork, stopping: Event) -> None:
    """Produce or consume until `stopping`."""
    running = StockProducer(work, stopping) if work.role == "produce" else StockConsumer(work, stopping)
    running.start()
    while not stopping.wait(_REPORT_EVERY_SECONDS):
        sys.stdout.write(f"{json.dumps(report(work, running))}\n")
        sys.stdout.flush()
    running.close()


def main(path: str) -> None:
    """Entry point of the module."""
    logging.basicConfig(level=logging.ERROR)
    logging.getLogger("kafka").setLevel(logging.CRITICAL)  # it logs every throttle, and every retry
    stopping = Event()
    for kind in (signal.SIGTERM, signal.SIGINT):
        signal.signal(kind, lambda *_: stopping.set())
    run(StockWork(**json.loads(Path(path).read_text(encoding="utf-8"))), stopping)


if __name__ == "__main__":
    main(sys.argv[1])
