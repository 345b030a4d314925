"""Opens kafka-python clients so that a failure tells its cause in one line.

kafka-python 3.0 tries until its bootstrap time-out and then says only `Unable to bootstrap from …`. Why an
attempt failed stands in its log, as the exception object of the attempt; those are collected here.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import Any, Final, TypeVar

from kafka import errors as kafka_errors

from pipeline.cluster.errors import ClusterUnreachable, SignInRefused
from pipeline.errors import PipelineError

Client = TypeVar("Client")

CONNECT_TIMEOUT_MS: Final = 6_000


def open_client(
    make: Callable[..., Client], bootstrap_servers: str, timeout_ms: int = CONNECT_TIMEOUT_MS, **options: Any
) -> Client:
    """Make a `KafkaProducer`, `KafkaConsumer` or `KafkaAdminClient` and wait until it is connected.

    Args:
        make: The class.
        bootstrap_servers: host:port[,host:port…].
        timeout_ms: How long to try. A wrong password takes all of it: the client tries again regardless.
        options: Further keyword arguments; those of `client_properties.kafka_options` and the class's own.

    Raises:
        SignInRefused: the broker refused the credentials.
        ClusterUnreachable: anything else that kept the client from connecting.
    """
    options = options | {"bootstrap_servers": bootstrap_servers.split(","), "bootstrap_timeout_ms": timeout_ms}
    with _COLLECTOR.collecting() as causes:
        try:
            return make(**options)
        except (kafka_errors.KafkaError, OSError) as exc:
            raise explain(bootstrap_servers, options, [*causes, exc], timeout_ms) from exc


class LostWhileSigningIn(OSError):
    """The broker spoke this protocol and then closed the connection."""


class _CauseCollector(logging.Handler):
    """Sits between the network part of kafka-python and the rest of its log, whatever level that is set to.

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


def explain(
    address: str, options: Mapping[str, Any], causes: Sequence[BaseException], timeout_ms: int
) -> PipelineError:
    """The error that tells why a client did not connect.

    Args:
        address: What was tried.
        options: kafka-python options it was tried with.
        causes: What the attempts failed with, the latest last. A refusal goes before anything else.
        timeout_ms: How long it was tried.
    """

    def latest(*kinds: type[BaseException]) -> BaseException | None:
        return next((cause for cause in reversed(causes) if isinstance(cause, kinds)), None)

    refused = latest(
        kafka_errors.SaslAuthenticationFailedError,
        kafka_errors.UnsupportedSaslMechanismError,
        kafka_errors.IllegalSaslStateError,
        kafka_errors.AuthorizationError,
    )
    if refused is not None:
        return SignInRefused(address, options.get("sasl_plain_username", ""), _words(refused))
    protocol = options.get("security_protocol", "PLAINTEXT")
    if protocol.startswith("SASL_") and latest(LostWhileSigningIn) is not None:
        # kafka-python often sees the end of the connection before the answer that gives the reason.
        reason = "it closes the connection at sign-in, as it does on a wrong user or password"
        return SignInRefused(address, options.get("sasl_plain_username", ""), reason)
    failed = latest(kafka_errors.KafkaConnectionError, OSError)
    words = _words(failed) if failed is not None else f"no answer within {timeout_ms / 1000:g} s"
    for sign, cause, remedy in (
        ("ECONNREFUSED", "connection refused", "start the broker, or correct --bootstrap-server"),
        ("DNS", "the host name has no address", "correct the host name in --bootstrap-server"),
        (
            "disconnected",
            f"the broker closes the connection to a {protocol} client",
            "set security.protocol of the client properties to that of the listener",
        ),
        ("Handshake", words, "set security.protocol and ssl.ca.location to match the listener"),
    ):
        if sign in words:
            return ClusterUnreachable(address, cause, remedy)
    return ClusterUnreachable(address, words, "check the address, the network and the broker's log")


def _words(error: BaseException) -> str:
    # kafka-python puts the class name, often twice, and a number before the text.
    return str(error).split("Error: ")[-1].removeprefix("Authentication failed: ")
