"""How this process reaches a cluster: options of its clients, and clients that name the cause of a failure in one line.

kafka-python 3.0 tries until its bootstrap time-out and then raises only `Unable to bootstrap from …`. Why an
attempt failed is only in its log, as the exception object of the attempt. Those exceptions are collected here.

A constructor that raises leaves its network part behind, with its thread and its sockets, and that goes on trying.
There is no other reference to it, so it is closed here.
"""

import logging
import ssl
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from itertools import cycle
from shlex import quote
from threading import Lock
from typing import Any, Final, Literal, Self, TypeVar
from weakref import WeakKeyDictionary

from kafka import KafkaAdminClient
from kafka import errors as kafka_errors
from kafka.net.compat import KafkaNetClient
from kafka.net.selector import NetworkSelector

from pipeline.cluster.acls import Acl, PermissionMissing, Resource
from pipeline.cluster.client_properties import java_properties, kafka_options
from pipeline.cluster.sign_in import TokenProvider, TokenRefused
from pipeline.command_line import COMMAND_CONFIG, carried, command_text
from pipeline.errors import ClusterUnreachable, NotFound, PipelineError, Unreachable, UsageError
from pipeline.process import restart_in_children
from pipeline.settings.model import KafkaSettings
from schemas.names import MARKER_TOPIC, THROTTLE_TOPIC, USAGE_TOPIC


class BoundedHandshakes(NetworkSelector):  # type: ignore[misc] # kafka-python has no types
    """The event loop of a kafka-python client, with an end for each TLS handshake, from its first wait on.

    kafka-python 3.0 waits for it without end, and nothing else of the client goes on: a port that accepts connections
    and sends nothing (a firewall, a broker that hangs) would hold a command or a job for ever.
    """

    def __init__(self, timeout_ms: float, **settings: Any) -> None:
        super().__init__(**settings)
        self._timeout_seconds = timeout_ms / 1000
        self._ends: WeakKeyDictionary[ssl.SSLSocket, float] = WeakKeyDictionary()

    def wait_read(self, fileobj: Any, timeout_at: float | None = None) -> Any:
        """Wait until there is something to read, until an instant of the monotonic clock or a handshake's end."""
        # A socket has a TLS version from the end of its handshake on.
        if timeout_at is None and isinstance(fileobj, ssl.SSLSocket) and fileobj.version() is None:
            timeout_at = self._ends.setdefault(fileobj, time.monotonic() + self._timeout_seconds)
        return super().wait_read(fileobj, timeout_at)


# Why a client did not connect: exceptions of kafka-python, OpenSSL and the operating system as one line and a fix.


class LostWhileSigningIn(OSError):
    """The broker spoke this protocol and then closed the connection."""


def connection_error(
    address: str, options: Mapping[str, Any], causes: Sequence[BaseException], timeout_ms: int
) -> PipelineError:
    """The error of a client that did not connect, by what its attempts failed with, the latest last."""
    token = _latest(causes, TokenRefused)
    if isinstance(token, TokenRefused):
        return token
    protocol = options.get("security_protocol", "PLAINTEXT")
    return _refusal(address, options, causes) or _unreachable(address, protocol, causes, timeout_ms)


def _sign_in_refused(address: str, user: str, cause: str, fix: str = "") -> Unreachable:
    who = f"user '{user}'" if user else "the client"
    message = f"the Kafka broker at {address} refuses {who}: {cause}"
    return Unreachable(message, fix or "check sasl.mechanism, user and password of the client properties")


def _refusal(address: str, options: Mapping[str, Any], causes: Sequence[BaseException]) -> Unreachable | None:
    user = str(options.get("sasl_plain_username", ""))
    if _latest(causes, kafka_errors.IllegalSaslStateError) is not None:
        return _sign_in_refused(address, user, "this listener knows no SASL", _PROTOCOL)
    if _latest(causes, kafka_errors.UnsupportedSaslMechanismError) is not None:
        return _sign_in_refused(address, user, f"this listener does not have the mechanism {options['sasl_mechanism']}")
    refused = _latest(causes, kafka_errors.SaslAuthenticationFailedError, kafka_errors.AuthorizationError)
    if refused is not None:
        return _sign_in_refused(address, user, _words(refused))
    if options.get("security_protocol", "").startswith("SASL_") and _latest(causes, LostWhileSigningIn) is not None:
        # kafka-python often sees the end of the connection before the answer that gives the reason.
        reason = "it closes the connection at sign-in, as it does on a wrong mechanism, user or password"
        return _sign_in_refused(address, user, reason)
    alert = _latest(causes, kafka_errors.KafkaConnectionError, OSError)
    if alert is not None and "alert" in _words(alert):
        # Only the broker's log has which of the three it is.
        reason = "it wants a client certificate that it trusts and that has not expired"
        return _sign_in_refused(address, user, reason, _CERTIFICATE)
    return None


def _unreachable(address: str, protocol: str, causes: Sequence[BaseException], timeout_ms: int) -> ClusterUnreachable:
    failed = _latest(causes, kafka_errors.KafkaConnectionError, OSError)
    words = _words(failed) if failed is not None else f"no answer within {timeout_ms / 1000:g} s"
    for word, cause, fix in _KNOWN_CAUSES:
        if word in words:
            return ClusterUnreachable(address, cause.format(protocol=protocol), fix)
    return ClusterUnreachable(address, words, _LOOK_EVERYWHERE)


def _latest(causes: Sequence[BaseException], *kinds: type[BaseException]) -> BaseException | None:
    return next((cause for cause in reversed(causes) if isinstance(cause, kinds)), None)


_PROTOCOL: Final = "set security.protocol of the client properties to that of the listener"
_LOOK_EVERYWHERE: Final = "check the address, security.protocol of the client properties and the broker's log"
_CERTIFICATE: Final = "give such a certificate and its key, in PEM, in ssl.keystore.location of the client properties"
_KNOWN_CAUSES: Final = (
    ("ECONNREFUSED", "connection refused", "start the broker, or correct --bootstrap-server"),
    ("DNS", "the host name has no address", "correct the host name in --bootstrap-server"),
    ("certificate has expired", "its certificate has expired", "renew the broker's certificate"),
    ("certificate is not yet valid", "its certificate is not valid yet", "correct this machine's clock"),
    (
        "certificate is not valid for",
        "its certificate is for another name",
        "reach it by a name in its certificate, or add the one in --bootstrap-server to the certificate",
    ),
    (
        "certificate verify failed",
        "its certificate is not from an authority that is trusted here",
        "put the certificate of that authority, in PEM, into ssl.truststore.location of the client properties",
    ),
    (
        "I/O wait timed out",
        "it does not answer the TLS handshake",
        "check that this is the address of a broker's TLS listener, and see that broker's log",
    ),
    ("wrong version number", "it does not speak TLS on this port", _PROTOCOL),
    ("disconnected", "it closes the connection to a {protocol} client", _PROTOCOL),
    ("Handshake", "the TLS handshake fails", _PROTOCOL),
)
"""Word, cause, fix: the first whose word is in the text of the cause is used."""


def _words(error: BaseException) -> str:
    # kafka-python puts the class name, often twice, and a number before the text.
    return str(error).split("Error: ")[-1].removeprefix("Authentication failed: ")


Client = TypeVar("Client")
CONNECT_TIMEOUT_MS: Final = 6_000


def open_client(
    make: Callable[..., Client], bootstrap_servers: str, timeout_ms: int | None = None, **options: Any
) -> Client:
    """Make a `KafkaProducer`, `KafkaConsumer` or `KafkaAdminClient` and wait until it is connected.

    * `timeout_ms`: How long to try; None: `CONNECT_TIMEOUT_MS`. A wrong password takes all of it: the client tries
      again regardless. Of several addresses one that does not answer takes half of it at most. A TLS handshake may
      take as long, also later, when the client connects to other brokers.

    Raises:
        Unreachable: the broker refused the credentials.
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
    networks: list[Any] = []

    def network(**settings: Any) -> Any:
        timeout_ms = options["bootstrap_timeout_ms"]
        share_ms = timeout_ms / min(len(options["bootstrap_servers"]), 2)
        loop = BoundedHandshakes(share_ms, **settings)
        # From 10 to 30 s by default. Meanwhile the client learns of no new leader, if it asks a broker that is gone.
        setup = {"socket_connection_setup_timeout_ms": share_ms, "socket_connection_setup_timeout_max_ms": timeout_ms}
        networks.append(KafkaNetClient(net=loop, **setup, **settings))
        _take_turns(networks[-1]._manager, share_ms)
        return networks[-1]

    try:
        return make(**options, kafka_client=network)
    except BaseException:
        for made in networks:
            made.close()
        raise


def _take_turns(manager: Any, share_ms: float) -> None:
    """Let a broker that does not answer leave time for the others.

    kafka-python 3.0 takes any address, and waits for it as long as there is time at all.
    """
    turns, connect = cycle(manager.cluster.bootstrap_brokers()), manager.get_connection

    def get_connection(node_id: Any, timeout_ms: float | None = None, **settings: Any) -> Any:
        if timeout_ms is not None and manager.cluster.is_bootstrap(node_id):
            timeout_ms = min(timeout_ms, share_ms)
        return connect(node_id, timeout_ms=timeout_ms, **settings)

    manager.get_connection = get_connection
    manager.cluster.bootstrap_brokers = lambda: [next(turns)]


@contextmanager
def as_cluster_error(bootstrap_servers: str) -> Iterator[None]:
    """Turn what kafka-python raises inside the block into `ClusterUnreachable`."""
    try:
        yield
    except kafka_errors.KafkaError as exc:
        cause = f"a call ends with {type(exc).__name__}: {exc}".rstrip(": ")
        raise ClusterUnreachable(bootstrap_servers, cause, "try again; if it stays, see the broker's log") from exc


class _CauseCollector(logging.Handler):
    """Collects the exceptions that kafka-python's network part logs; clients that connect at one time share them."""

    _SIGNING_IN: Final = "broker_version=("  # the connection was lost after the broker had sent its version

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.restart()
        restart_in_children(self)

    def restart(self) -> None:
        """See `Restartable`; what the parent's threads still collected is of no use in a child."""
        self._wanted: list[list[BaseException]] = []
        self._installing = Lock()

    @contextmanager
    def collecting(self) -> Iterator[list[BaseException]]:
        causes: list[BaseException] = []
        network = logging.getLogger("kafka.net")
        with self._installing:
            if self not in network.handlers:
                network.addHandler(self)
                network.setLevel(logging.WARNING)
                network.propagate = False
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


_COLLECTOR: Final = _CauseCollector()


# The rights this client lacks: checked before work begins, and read from the broker's refusals.

_ERRORS: Final[Any] = kafka_errors
_REFUSED: Final[Mapping[type[Exception], Resource]] = {
    _ERRORS.TopicAuthorizationFailedError: "topic",
    _ERRORS.GroupAuthorizationFailedError: "group",
    _ERRORS.TransactionalIdAuthorizationFailedError: "transactional-id",
    _ERRORS.ClusterAuthorizationFailedError: "cluster",
}


def missing_acls(admin: Any, wanted: Iterable[Acl]) -> list[Acl]:
    """The rights among `wanted` that the cluster does not allow this client, in their order.

    A topic that does not exist is skipped. Of a transactional id it is only known whether it may be described. Rights
    on the cluster itself are not asked for; a refused call names them.
    """
    acls = list(wanted)
    allowed: dict[tuple[Resource, str], frozenset[str] | None] = {}
    topics = sorted({acl.name for acl in acls if acl.resource == "topic"})
    for topic in admin.describe_topics(topics) if topics else ():
        allowed["topic", topic["name"]] = _operations(topic)
    describe: dict[Resource, Callable[[str], Any]] = {
        "group": lambda name: admin.describe_groups([name])[name],
        "transactional-id": lambda name: admin.describe_transactions([name]),
    }
    for acl in acls:
        if acl.resource in describe:
            allowed[acl.resource, acl.name] = _described_operations(describe[acl.resource], acl.name)
    known = [(acl, allowed.get((acl.resource, acl.name))) for acl in acls]
    return [acl for acl, operations in known if operations is not None and acl.operation not in operations]


def refuse_unpermitted(admin: Any, wanted: Iterable[Acl], options: Mapping[str, Any], bootstrap_servers: str) -> None:
    """Raise `PermissionMissing`, with all that is missing, if this client may not do all it is about to do."""
    missing = missing_acls(admin, wanted)
    if missing:
        raise PermissionMissing(missing, principal_of(options), bootstrap_servers)


def permission_missing(
    error: BaseException | None, wanted: Sequence[Acl], options: Mapping[str, Any], bootstrap_servers: str
) -> PermissionMissing | None:
    """The error that names what a refused call was not allowed; None if it was not refused for that.

    A broker names the kind of the resource, and mostly its name. The operation is known from the call.
    """
    resource = next((resource for kind, resource in _REFUSED.items() if isinstance(error, kind)), None)
    acls = [acl for acl in wanted if acl.resource == resource]
    if not acls:
        return None
    named = [acl for acl in acls if acl.name in str(error)]
    return PermissionMissing(named or acls, principal_of(options), bootstrap_servers)


def principal_of(options: Mapping[str, Any]) -> str:
    """The principal of a client, as `User:alice`. For a certificate only the cluster knows it."""
    if "sasl_plain_username" in options:
        return f"User:{options['sasl_plain_username']}"
    provider = options.get("sasl_oauth_token_provider")
    if isinstance(provider, TokenProvider):
        try:
            return f"User:{provider.subject()}"
        except TokenRefused:
            return "User:<subject of its token>"
    return "User:<subject of its certificate>" if options.get("security_protocol") == "SSL" else "User:ANONYMOUS"


def _described_operations(describe: Callable[[str], Any], name: str) -> frozenset[str] | None:
    """Allowed operations on a resource that needs its own describe call; None if they are not known."""
    try:
        described = describe(name)
    except tuple(_REFUSED):
        return frozenset()
    except _ERRORS.KafkaError:  # it does not exist yet, or its coordinator does not
        return None
    return _operations(described) if "authorized_operations" in described else None


def _operations(described: Mapping[str, Any]) -> frozenset[str] | None:
    error = _ERRORS.for_code(described.get("error_code", 0))
    if error in _REFUSED:
        return frozenset()
    names = described.get("authorized_operations")
    if error is not _ERRORS.NoError or described.get("error") or names is None:
        return None
    return frozenset("".join(word.capitalize() for word in name.split("_")) for name in names)


_USUAL: Final[Mapping[str, str]] = {"usage": USAGE_TOPIC, "throttle": THROTTLE_TOPIC, "marker": MARKER_TOPIC}


def creating_topics(bootstrap_servers: str, names: Mapping[str, str]) -> str:
    """The command that creates the pipeline's topics, with variables for names that are not the usual ones.

    * `names`: purpose (usage, throttle or marker) -> name.
    """
    named = [f"KQUOTA_KAFKA__{one.upper()}_TOPIC={quote(name)}" for one, name in names.items() if name != _USUAL[one]]
    command = command_text("topics", "create", "--bootstrap-server", bootstrap_servers, about="cluster")
    return " ".join([*named, command])


def topic_missing(topic: str, bootstrap_servers: str, purpose: Literal["usage", "throttle", "marker"]) -> NotFound:
    """The error of a topic of the pipeline that does not exist; its fix is the command that creates it."""
    fix = creating_topics(bootstrap_servers, {purpose: topic})
    return NotFound(f"topic '{topic}' does not exist at {bootstrap_servers}", fix)


@dataclass(frozen=True, slots=True)
class ClusterAccess:
    """Addresses (host:port[,host:port…]) and client properties of one cluster.

    References to secrets are as they are written. The entries may also hold secrets, so they are never printed.
    """

    bootstrap_servers: str
    properties: Mapping[str, str] = field(repr=False, default_factory=dict)

    @classmethod
    def from_settings(cls, kafka: KafkaSettings) -> Self:
        """The access the settings describe; `UsageError` if they name no cluster."""
        if not kafka.bootstrap_servers:
            demo = command_text("demo", about="program")
            fix = f"pass --bootstrap-server host:port, or try {demo}, which brings its own broker"
            message = "the address of the Kafka cluster, 'kafka.bootstrap_servers', is not set"
            raise UsageError(message, fix)
        properties = {key: value.get_secret_value() for key, value in kafka.client.items()}
        return cls(kafka.bootstrap_servers, properties)

    def open(self, make: Callable[..., Client], **options: Any) -> Client:
        """A connected kafka-python client of a class, signed in. Raises as `client_options` and `open_client`."""
        return open_client(make, self.bootstrap_servers, **self.client_options() | options)

    def client_options(self) -> dict[str, Any]:
        """kafka-python options, without the address; raises `ClientPropertiesInvalid`."""
        options = kafka_options(self.properties, _source())
        options.pop("bootstrap_servers", None)
        return options

    def spark_options(self) -> dict[str, str]:
        """Client properties for Spark's Kafka source, in Java's keys, with secrets; raises as `client_options`."""
        return java_properties(self.properties, _source())

    def refusal(self, error: BaseException, wanted: Sequence[Acl]) -> PermissionMissing | None:
        """The error that names what a refused call was not allowed; None if it failed for something else."""
        return permission_missing(error, wanted, self.client_options(), self.bootstrap_servers)

    @contextmanager
    def admin(self, timeout_ms: int | None = None) -> Iterator[KafkaAdminClient]:
        """A connected admin client, closed at the end; as `open_client`."""
        with closing(self.open(KafkaAdminClient, timeout_ms=timeout_ms)) as client:
            yield client


def _source() -> str:
    """Where the client properties can be corrected: the file that the command was given, else the settings."""
    return carried(COMMAND_CONFIG) or "the settings under kafka.client"
