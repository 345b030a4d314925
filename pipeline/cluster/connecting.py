"""Opens kafka-python clients so that a failure names its cause in one line.

kafka-python 3.0 tries until its bootstrap time-out and then says only `Unable to bootstrap from …`. Why an
attempt failed is only in its log, as the exception object of the attempt. Those exceptions are collected here.

A constructor that raises leaves its network part behind, with its thread and its sockets, and that goes on trying.
Nobody else has a reference to it, so it is closed here.

kafka-python limits how long a connection and a request may take, but not a TLS handshake. `pipeline.cluster.handshake`
does that.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any, Final, TypeVar

from kafka import errors as kafka_errors
from kafka.net.compat import KafkaNetClient

from pipeline.cluster.causes import LostWhileSigningIn, connection_error
from pipeline.cluster.errors import ClusterUnreachable
from pipeline.cluster.handshake import BoundedHandshakes

Client = TypeVar("Client")

CONNECT_TIMEOUT_MS: Final = 6_000


def open_client(
    make: Callable[..., Client], bootstrap_servers: str, timeout_ms: int | None = None, **options: Any
) -> Client:
    """Make a `KafkaProducer`, `KafkaConsumer` or `KafkaAdminClient` and wait until it is connected.

    Args:
        make: The class.
        bootstrap_servers: host:port[,host:port…].
        timeout_ms: How long to try; None: `CONNECT_TIMEOUT_MS`. A wrong password takes all of it: the client tries
            again regardless. A TLS handshake may take as long, also later, when the client connects to other brokers.
            So a port that never answers a handshake takes all of it too, and of several addresses the last one up to
            twice as long.
        options: Further keyword arguments; those of `client_properties.kafka_options` and the class's own.

    Raises:
        SignInRefused: the broker refused the credentials.
        ClusterUnreachable: anything else that kept the client from connecting.
    """
    timeout_ms = CONNECT_TIMEOUT_MS if timeout_ms is None else timeout_ms
    options = options | {"bootstrap_servers": bootstrap_servers.split(","), "bootstrap_timeout_ms": timeout_ms}
    with _COLLECTOR.collecting() as causes:
        try:
            return _make_or_close(make, options)
        except (kafka_errors.KafkaError, OSError) as exc:
            raise connection_error(bootstrap_servers, options, [*causes, exc], timeout_ms) from exc


def _make_or_close(make: Callable[..., Client], options: dict[str, Any]) -> Client:
    """Call a constructor; if it raises, whatever it is, close the network part that it has made."""
    networks: list[Any] = []

    def network(**settings: Any) -> Any:
        loop = BoundedHandshakes(options["bootstrap_timeout_ms"], **settings)
        networks.append(KafkaNetClient(net=loop, **settings))
        return networks[-1]

    try:
        return make(**options, kafka_client=network)
    except BaseException:
        for made in networks:
            made.close()
        raise


@contextmanager
def as_cluster_error(bootstrap_servers: str) -> Iterator[None]:
    """Turn what kafka-python raises inside the block into the error an operator can act on.

    Raises:
        ClusterUnreachable: A call was not answered, or with an error of the broker's.
    """
    try:
        yield
    except kafka_errors.KafkaError as exc:
        cause = f"a call ends with {type(exc).__name__}: {exc}".rstrip(": ")
        raise ClusterUnreachable(bootstrap_servers, cause, "try again; if it stays, see the broker's log") from exc


class _CauseCollector(logging.Handler):
    """Collects the exceptions that the network part of kafka-python logs, whatever the level of its log is.

    Clients that connect at the same time in one process share the causes.
    """

    _SIGNING_IN: Final = "broker_version=("  # the connection was lost after the broker had told its version

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._wanted: list[list[BaseException]] = []
        self._installing = Lock()

    @contextmanager
    def collecting(self) -> Iterator[list[BaseException]]:
        causes: list[BaseException] = []
        self._install()
        self._wanted.append(causes)
        try:
            yield causes
        finally:
            self._wanted[:] = [other for other in self._wanted if other is not causes]

    def emit(self, record: logging.LogRecord) -> None:
        arguments = record.args if isinstance(record.args, tuple) else ()
        for causes in self._wanted:
            lost = [argument for argument in arguments if isinstance(argument, BaseException)]
            if self._SIGNING_IN in record.getMessage():
                lost = [LostWhileSigningIn(*cause.args) if "disconnected" in str(cause) else cause for cause in lost]
            causes.extend(lost)
        rest = logging.getLogger("kafka")
        if not self._wanted and rest.isEnabledFor(record.levelno):
            rest.handle(record)

    def _install(self) -> None:
        network = logging.getLogger("kafka.net")
        with self._installing:
            if self not in network.handlers:
                network.addHandler(self)
                network.setLevel(logging.WARNING)
                network.propagate = False


_COLLECTOR: Final = _CauseCollector()
