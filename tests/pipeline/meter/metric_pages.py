"""Targets that answer over HTTP as a test wants it."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
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
