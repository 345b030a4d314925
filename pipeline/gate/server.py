"""The side-car: the gate's HTTP application on a socket, until it is asked to stop."""

from threading import Thread
from typing import Final

from prometheus_client import CollectorRegistry

from pipeline.gate.gate import Gate
from pipeline.gate.http import build_app
from pipeline.web import Listen, WebServer, refuse_unguarded

TOKEN_VARIABLE: Final = "KQUOTA_GATE_TOKEN"  # noqa: S105 - the name of a variable
_FINISH_SECONDS: Final = 5


class GateServer:
    """One listening socket in front of a gate.

    Args:
        gate: Started. `run` closes it at the end.
        listen: Where to listen.
        token: See `pipeline.gate.http.build_app`.
        registry: Likewise.

    Raises:
        ListenRefused: Other machines could connect without a token, or the system does not let it listen there.
    """

    def __init__(
        self, gate: Gate, listen: Listen, token: str | None, registry: CollectorRegistry | None = None
    ) -> None:
        refuse_unguarded(listen, token, TOKEN_VARIABLE)
        self._server = WebServer(build_app(gate, token, registry), listen, finish_seconds=_FINISH_SECONDS)
        self._closing = Thread(target=gate.close, args=(1.0,), name="gate-closing")

    @property
    def port(self) -> int:
        """The port in use."""
        return self._server.port

    def run(self) -> None:
        """Answer requests until `stop`. Returns when all waiting requests have been answered, or after 5 s."""
        try:
            self._server.run()
        finally:
            self.stop()
            self._closing.join()

    def stop(self) -> None:
        """Answer the waiting requests and make `run` return. From any thread or signal handler; may be repeated."""
        self._server.stop()
        if self._closing.ident is None:
            self._closing.start()
