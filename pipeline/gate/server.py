"""The side-car: the gate's HTTP application on a socket, until it is asked to stop."""

import socket
from threading import Thread
from typing import Final

from prometheus_client import CollectorRegistry

from pipeline.gate.errors import ListenBusy, ListenUnguarded
from pipeline.gate.gate import Gate
from pipeline.gate.http import build_app
from pipeline.gate.listening import Listen
from pipeline.web_server import bound_socket, web_server

_FINISH_SECONDS: Final = 5


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
