"""The side-car: the gate's HTTP application on a socket, until it is asked to stop."""

import ipaddress
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from threading import Thread
from typing import Final, NamedTuple

from prometheus_client import CollectorRegistry

from pipeline.gate.errors import GateTokenInvalid, ListenAddressInvalid, ListenBusy, ListenUnguarded
from pipeline.gate.gate import Gate
from pipeline.gate.http import build_app
from pipeline.web_server import bound_socket, web_server

TOKEN_VARIABLE: Final = "KQUOTA_GATE_TOKEN"  # noqa: S105 - the name of a variable
_FINISH_SECONDS: Final = 5


class Listen(NamedTuple):
    """Where to listen.

    Attributes:
        host: A name or an address.
        port: 0 means any free one.
    """

    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        """Only this machine can connect. Every host name except localhost counts as reachable from outside."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


def parse_listen(text: str) -> Listen:
    """Read HOST:PORT. An IPv6 address stands in brackets.

    Raises:
        ListenAddressInvalid: The text is something else.
    """
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ListenAddressInvalid(text)
    if not (host and colon and port.isascii() and port.isdecimal() and int(port) < 65_536):
        raise ListenAddressInvalid(text)
    return Listen(host, int(port))


def read_token(
    token_file: Path | None, environ: Mapping[str, str] = os.environ, variable: str = TOKEN_VARIABLE
) -> str | None:
    """The bearer token: the first line of the file, else the environment variable, else None.

    Raises:
        GateTokenInvalid: The file can not be read, or the token is empty or has a character that is not visible ASCII.
    """
    source = variable if token_file is None else str(token_file)
    if token_file is None:
        if variable not in environ:
            return None
        token = environ[variable]
    else:
        try:
            token = token_file.read_text(encoding="utf-8").partition("\n")[0].strip()
        except (OSError, UnicodeDecodeError) as exc:
            raise GateTokenInvalid(source, f"a file that can not be read ({type(exc).__name__})") from exc
    if not token:
        raise GateTokenInvalid(source, "an empty one")
    if not (token.isascii() and token.isprintable() and " " not in token):
        raise GateTokenInvalid(source, "one with other characters")
    return token


class GateServer:
    """One listening socket in front of a gate.

    Args:
        gate: Started. `run` closes it at the end.
        listen: Where to listen.
        token: See `pipeline.gate.http.build_app`.
        registry: Likewise.

    Raises:
        ListenUnguarded: Other machines could connect, and there is no token.
        ListenBusy: The system does not let it listen on the address.
    """

    def __init__(
        self, gate: Gate, listen: Listen, token: str | None, registry: CollectorRegistry | None = None
    ) -> None:
        if not listen.is_loopback and token is None:
            raise ListenUnguarded(listen.host)
        self._socket = _bound(listen)
        self._server = web_server(build_app(gate, token, registry), lifespan="off", finish_seconds=_FINISH_SECONDS)
        self._closing = Thread(target=gate.close, args=(1.0,), name="gate-closing")

    @property
    def port(self) -> int:
        """The port in use."""
        return int(self._socket.getsockname()[1])

    def run(self) -> None:
        """Answer requests until `stop`. Returns when all waiting requests have been answered, or after 5 s."""
        try:
            self._server.run(sockets=[self._socket])
        finally:
            self._socket.close()
            self.stop()
            self._closing.join()

    def stop(self) -> None:
        """Answer the waiting requests and make `run` return. From any thread or signal handler; may be repeated."""
        self._server.should_exit = True
        if self._closing.ident is None:
            self._closing.start()


def _bound(listen: Listen) -> socket.socket:
    try:
        return bound_socket(listen.host, listen.port, backlog=1024)
    except OSError as exc:
        raise ListenBusy(listen.host, listen.port, exc.strerror or str(exc)) from exc
