"""A small OAuth 2 token endpoint for tests: the client-credentials grant over HTTP."""

import base64
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.parse import parse_qs


class TokenEndpoint(ThreadingHTTPServer):
    """Gives a token to a client that knows a client's secret.

    Args:
        secrets: Client id to secret.
        sign: Client id to token.
    """

    daemon_threads = True

    def __init__(self, secrets: Mapping[str, str], sign: Callable[[str], str]) -> None:
        super().__init__(("127.0.0.1", 0), _Grant)
        self.secrets = dict(secrets)
        self.sign = sign
        self.forms: list[dict[str, list[str]]] = []
        self.answer: tuple[int, bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/token"


class _Grant(BaseHTTPRequestHandler):
    server: TokenEndpoint

    def do_POST(self) -> None:
        form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
        self.server.forms.append(form)
        basic = base64.b64decode(self.headers["Authorization"].removeprefix("Basic ")).decode()
        client_id, _, secret = basic.partition(":")
        if self.server.answer is not None:
            self._send(*self.server.answer)
        elif form.get("grant_type") != ["client_credentials"] or self.server.secrets.get(client_id) != secret:
            self._send(401, json.dumps({"error": "invalid_client"}).encode())
        else:
            token = {"access_token": self.server.sign(client_id), "token_type": "Bearer", "expires_in": 600}
            self._send(200, json.dumps(token).encode())

    def _send(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Location", "http://127.0.0.1:9/elsewhere")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing on stderr."""


@contextmanager
def token_endpoint(secrets: Mapping[str, str], sign: Callable[[str], str]) -> Iterator[TokenEndpoint]:
    """One that answers until the end of the block."""
    with TokenEndpoint(secrets, sign) as endpoint:
        thread = Thread(target=endpoint.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield endpoint
        finally:
            endpoint.shutdown()
            thread.join()
