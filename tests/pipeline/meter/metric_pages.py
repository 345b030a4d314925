"""Targets that answer over HTTP as a test wants it, and the rate of a sensor as Kafka shows it."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

Answer = Callable[[BaseHTTPRequestHandler], None]


def page(body: bytes, status: int = 200, length: int | None = None) -> Answer:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(body) if length is None else length))
        handler.end_headers()
        handler.wfile.write(body)

    return answer


def endless(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.end_headers()
    with suppress(OSError):
        while True:
            handler.wfile.write(b"# filler\n" * 10_000)


class Exporter:
    """What answers, and how often it was asked."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.asked = 0
        self.url = ""

    def show(self, *lines: str) -> None:
        self.answer = page("".join(f"{line}\n" for line in lines).encode())


@contextmanager
def exporter(answer: Answer) -> Iterator[Exporter]:
    served = Exporter(answer)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            served.asked += 1
            served.answer(self)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    served.url = f"http://127.0.0.1:{server.server_port}/metrics"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield served
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def silent() -> Iterator[str]:
    """A target that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/metrics"


@dataclass(slots=True)
class Sample:
    start_ms: int
    last_ms: int
    value: float = 0.0


@dataclass(slots=True)
class KafkaSensor:
    """Kafka 4.3.1's `SampledStat` and `Rate`: N + 1 samples in a ring, which begin with requests.

    A new one begins with the first request after the current one is full, and a scrape empties old ones.
    """

    num_samples: int = 11
    sample_window_ms: int = 1000
    samples: list[Sample] = field(default_factory=list)
    current: int = 0

    def record(self, value: float, now_ms: int) -> None:
        """A request was charged."""
        if not self.samples:
            self.samples.append(Sample(now_ms, now_ms))
        if now_ms - self.samples[self.current].start_ms >= self.sample_window_ms:
            self.current = (self.current + 1) % (self.num_samples + 1)
            if self.current == len(self.samples):
                self.samples.append(Sample(now_ms, now_ms))
            self.samples[self.current] = Sample(now_ms, now_ms)
        sample = self.samples[self.current]
        sample.value += value
        sample.last_ms = now_ms

    def rate(self, now_ms: int) -> float:
        """What a scrape shows, per second."""
        for at, sample in enumerate(self.samples):
            if now_ms - sample.last_ms >= self.num_samples * self.sample_window_ms:
                self.samples[at] = Sample(now_ms, now_ms)
        if not self.samples:
            return 0.0
        elapsed_ms = now_ms - min(sample.start_ms for sample in self.samples)
        missing = max(self.num_samples - 1 - elapsed_ms // self.sample_window_ms, 0)
        window_ms = max(elapsed_ms + missing * self.sample_window_ms, 1)
        return sum(sample.value for sample in self.samples) / (window_ms / 1000)
