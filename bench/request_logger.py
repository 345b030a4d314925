"""What a broker pays for its request log: CPU, megabytes a second, and the time of a produce request.

    python -m bench.request_logger [--requests-per-second 5000] [--seconds 20] [--rounds 2]

A broker without the log and one with it, in turn; each is a new one, gets the load for a third of the time to warm up,
and is measured then. The load is produce requests of one record of 100 bytes, acks=1, over 16 connections, sent at the
time at which they are due; the time of a request counts from then. Broker and load share the machine.

    CPU       of the broker's process, percent of one core
    log       what the broker writes into the request log
    p50, p99  from the time at which a request is due to its response, ms
"""

import selectors
import socket
import struct
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

import numpy as np
from kafka import KafkaAdminClient
from kafka.record.memory_records import MemoryRecordsBuilder

from bench.load import produce_request
from bench.machine import arguments as options
from bench.machine import cpu_seconds
from pipeline.cluster.topics import TopicSpec, create_topics
from pipeline.demo.broker import BrokerOptions, EmbeddedBroker

_TOPIC: Final = "load"
_ADMIN: Final[Callable[..., Any]] = KafkaAdminClient  # has no types
_CONNECTIONS: Final = 16
_STEP_SECONDS: Final = 0.001


class Cost(NamedTuple):
    """What one broker showed. In the units of the table."""

    cpu_percent: float
    log_megabytes_per_second: float
    requests_per_second: float
    p50_ms: float
    p99_ms: float


class Connection:
    """One connection; requests wait on it in order, and so do their responses."""

    def __init__(self, host: str, port: int) -> None:
        self.socket = socket.create_connection((host, port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.due: deque[float] = deque()
        self._received = bytearray()

    def send(self, request: bytes, due: float) -> None:
        self.due.append(due)
        self.socket.sendall(request)

    def receive(self) -> Iterator[float]:
        """Take what has arrived: of each response the time at which its request was due."""
        self._received += self.socket.recv(65_536)
        while len(self._received) >= 4:
            end = 4 + struct.unpack_from(">i", self._received)[0]
            if len(self._received) < end:
                return
            del self._received[:end]
            yield self.due.popleft()


def main() -> None:
    arguments = options(__doc__, requests_per_second=5_000, seconds=20.0, rounds=2)
    print(f"{arguments.requests_per_second:,} produce requests a second, median of {arguments.rounds} rounds")
    print(f"{'request log':<12} {'CPU %':>7} {'log MB/s':>9} {'requests/s':>11} {'p50 ms':>8} {'p99 ms':>8}")
    measured: dict[bool, list[Cost]] = {False: [], True: []}
    for _ in range(arguments.rounds):
        for logged, costs in measured.items():
            costs.append(measure(logged, arguments.requests_per_second, arguments.seconds))
    for logged, costs in measured.items():
        cpu, log, rate, p50, p99 = (median(column) for column in zip(*costs, strict=True))
        print(f"{'on' if logged else 'off':<12} {cpu:>7.1f} {log:>9.2f} {rate:>11,.0f} {p50:>8.2f} {p99:>8.2f}")


def measure(logged: bool, requests_per_second: int, seconds: float) -> Cost:
    """One broker, with its request log or without, after a third of the time to warm up."""
    options = BrokerOptions(request_log=logged, heap_mib=1024, quick_start=False)
    with (
        tempfile.TemporaryDirectory() as folder,
        EmbeddedBroker(Path(folder), options=options) as broker,
        connected(broker) as connections,
    ):
        requests = requests_of(["load"])
        load(connections, requests, requests_per_second, seconds / 3)
        pid = broker.pid or 0
        cpu_began_seconds, log_bytes, began = cpu_seconds(pid), _log_bytes(broker.request_log_path), time.monotonic()
        waited_ms = np.array(load(connections, requests, requests_per_second, seconds)) * 1_000
        spent = time.monotonic() - began
        cpu_percent = (cpu_seconds(pid) - cpu_began_seconds) / spent * 100
        log_megabytes = (_log_bytes(broker.request_log_path) - log_bytes) / 1e6
    p50, p99 = np.percentile(waited_ms, [50, 99])
    return Cost(cpu_percent, log_megabytes / spent, len(waited_ms) / spent, float(p50), float(p99))


@contextmanager
def connected(broker: EmbeddedBroker) -> Iterator[list[Connection]]:
    """Connections to a broker, with the topic that they write to."""
    with closing(_ADMIN(bootstrap_servers=broker.bootstrap_servers)) as admin:
        create_topics(admin, [TopicSpec(_TOPIC, "demo", _CONNECTIONS, "any", {}, {})])
    host, port = broker.bootstrap_servers.split(":")
    connections = [Connection(host, int(port)) for _ in range(_CONNECTIONS)]
    try:
        yield connections
    finally:
        for connection in connections:
            connection.socket.close()


def requests_of(client_ids: Sequence[str]) -> list[bytes]:
    """Requests to be sent in turn, as many as a multiple of the connections; the client-ids in turn."""
    count = -(-len(client_ids) // _CONNECTIONS) * _CONNECTIONS
    return [request(number % _CONNECTIONS, client_ids[number % len(client_ids)]) for number in range(count)]


def load(
    connections: list[Connection], requests: Sequence[bytes], requests_per_second: int, seconds: float
) -> list[float]:
    """Send requests for a time, and wait for the last response; how long each one took, in seconds."""
    waited: list[float] = []
    with selectors.DefaultSelector() as selector:
        for connection in connections:
            selector.register(connection.socket, selectors.EVENT_READ, connection)
        began, sent, wanted = time.monotonic(), 0, int(requests_per_second * seconds)
        while len(waited) < wanted:
            due = min(wanted, int((time.monotonic() - began) * requests_per_second))
            for number in range(sent, due):
                place = number % len(connections)
                connections[place].send(requests[number % len(requests)], began + number / requests_per_second)
            sent = max(sent, due)
            for key, _ in selector.select(_STEP_SECONDS):
                for at in key.data.receive():
                    waited.append(time.monotonic() - at)  # noqa: PERF401 - the time must be read each time
    return waited


def request(partition: int, client_id: str) -> bytes:
    builder = MemoryRecordsBuilder(magic=2, compression_type=0, batch_size=1_024)
    builder.append(timestamp=time.time_ns() // 1_000_000, key=None, value=bytes(100), headers=[])
    builder.close()
    return produce_request(_TOPIC, partition, bytes(builder.buffer()), client_id)


def _log_bytes(log: Path) -> int:
    # Rolled at 64 MiB, and three of them are kept: enough for half a minute at 5 MB/s.
    return sum(path.stat().st_size for path in log.parent.glob(f"{log.name}*"))


if __name__ == "__main__":
    main()
