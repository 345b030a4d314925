"""A real HTTP server that takes messages as a test tells it to, and keeps what came."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from typing import Any


@dataclass
class Received:
    """One request."""

    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def message(self) -> Any:
        return json.loads(self.body)


@dataclass
class Inbox:
    """What came, and what is answered.

    Attributes:
        answers: Statuses of the next answers, then 200; 0 = no answer until `go_on` is set.
        requests: What came, oldest first.
        location: Where redirects lead to.
    """

    answers: list[int] = field(default_factory=list)
    requests: list[Received] = field(default_factory=list)
    location: str = ""
    go_on: Event = field(default_factory=Event)
    url: str = ""

    @property
    def taken(self) -> list[Any]:
        """The messages, of all requests."""
        return [request.message for request in self.requests]

    def alerts(self) -> list[tuple[str, str, str]]:
        """(alert, user, status) of all alerts in all messages."""
        return [
            (alert["labels"]["alertname"], alert["labels"].get("user", ""), alert["status"])
            for message in self.taken
            for alert in message["alerts"]
        ]


@contextmanager
def receiving(port: int = 0) -> Iterator[Inbox]:
    """A server on this machine while the block runs."""
    inbox = Inbox()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            inbox.requests.append(Received(self.path, dict(self.headers), body))
            status = inbox.answers.pop(0) if inbox.answers else 200
            if status == 0:
                inbox.go_on.wait()
                self.close_connection = True
                return
            self.send_response(status)
            if inbox.location:
                self.send_header("Location", inbox.location)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def do_GET(self) -> None:
            inbox.requests.append(Received(f"GET {self.path}", {}, b"{}"))
            self.send_error(404)

        def log_message(self, *_arguments: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", port), Handler) as server:
        inbox.url = f"http://127.0.0.1:{server.server_port}/hook/s3cret"
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield inbox
        finally:
            inbox.go_on.set()
            server.shutdown()
            thread.join()
