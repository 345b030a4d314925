"""How this process reaches the cluster, as options of each client it uses."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, Self, TypeVar

from kafka import KafkaAdminClient

from pipeline.cluster.acls import Acl, PermissionMissing
from pipeline.cluster.client_properties import java_properties, kafka_options
from pipeline.cluster.connecting import open_client, permission_missing
from pipeline.command_line import COMMAND_CONFIG, carried, command_text
from pipeline.errors import PipelineError, UsageError
from pipeline.settings.model import KafkaSettings

Client = TypeVar("Client")


def topic_missing(topic: str, bootstrap_servers: str, purpose: Literal["usage", "throttle", "marker"]) -> PipelineError:
    """The error of a topic of the pipeline that does not exist; its fix is the command that creates it."""
    address = "--bootstrap-server", bootstrap_servers
    fix = command_text("topics", "create", *address, f"--{purpose}-topic", topic, about="cluster")
    return PipelineError(f"topic '{topic}' does not exist at {bootstrap_servers}", fix)


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
