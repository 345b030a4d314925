"""Where the demo's alerts go: a webhook on this machine, in the place of your chat or your Alertmanager."""

import json
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, Final, Self

_MOST_BYTES: Final = 10_000_000

Heard = Callable[[Mapping[str, Any]], None]
"""Takes one alert of a message, as Alertmanager's webhooks have it. Called from threads of the receiver."""


class AlertReceiver:
    """Listens from `__enter__` to `__exit__`, on a free port of this machine only."""

    def __init__(self, heard: Heard) -> None:
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(heard))
        self._thread = Thread(target=self._server.serve_forever, name="demo-alerts", daemon=True)

    @property
    def url(self) -> str:
        """The address at which messages are taken."""
        return f"http://127.0.0.1:{self._server.server_port}/alerts"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _handler(heard: Heard) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            try:
                size = int(self.headers.get("Content-Length", ""))
                message: Any = json.loads(self.rfile.read(size)) if 0 <= size <= _MOST_BYTES else None
                alerts = [{**alert, "labels": {**alert["labels"]}} for alert in message["alerts"]]
            except (ValueError, TypeError, KeyError):
                self.send_error(400)
                return
            for alert in alerts:
                heard(alert)
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Print nothing: the demo prints the alerts itself."""

    return Handler
