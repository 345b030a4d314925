"""A broker that requires a certificate or a password to sign in, and an ACL for everything else."""

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kafka import KafkaAdminClient
from kafka.admin import (
    ACL,
    ACLFilter,
    ACLOperation,
    ACLPermissionType,
    ACLResourcePatternType,
    ResourcePattern,
    ResourcePatternFilter,
    ResourceType,
    UserScramCredentialUpsertion,
)

from pipeline.cli.options import Source
from pipeline.cluster.acls import Acl
from pipeline.cluster.connecting import ClusterAccess
from pipeline.demo.broker import BrokerOptions, EmbeddedBroker
from pipeline.jvm.jars import fetch
from tests.pipeline.cluster.certificates import Authority, TokenEndpoint, TokenSigner, token_endpoint
from tests.waiting import wait_until

PASSWORD: Final = "c0rrect-h0rse"  # noqa: S105 - of users made for these tests
MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
USERS: Final = ("meter", "job", "gate", "operator")
_SECURITY: Final = "org.apache.kafka.common.security"


@dataclass(frozen=True)
class Secured:
    """The broker, and all that is needed to sign in to it.

    Attributes:
        broker: Everybody is an administrator on its PLAINTEXT listener.
        authority: Issued its certificate, for 127.0.0.1 alone; trusted on the SSL listener.
        endpoint: Gives tokens to `USERS`.
        folder: For files of the tests.
        admin: An administrator's client.
    """

    broker: EmbeddedBroker
    authority: Authority
    endpoint: TokenEndpoint
    folder: Path
    admin: Any

    def address(self, mechanism: str) -> str:
        """`host:port` for a SASL mechanism, or for SSL."""
        return self.broker.address("SSL" if mechanism == "SSL" else "SASL_SSL")

    def properties(self, mechanism: str, user: str = "meter", password: str = PASSWORD) -> dict[str, str]:
        """client.properties of a user, by a SASL mechanism or by certificate (SSL)."""
        trust = {"ssl.truststore.location": str(self.authority.certificate)}
        if mechanism == "SSL":
            keystore = self.authority.issue(user).keystore
            return {"security.protocol": "SSL", **trust, "ssl.keystore.location": str(keystore)}
        sasl = {"security.protocol": "SASL_SSL", **trust, "sasl.mechanism": mechanism}
        if mechanism == "OAUTHBEARER":
            login = (
                f'{_SECURITY}.oauthbearer.OAuthBearerLoginModule required clientId="{user}" clientSecret="{password}";'
            )
            return sasl | {"sasl.oauthbearer.token.endpoint.url": self.endpoint.url, "sasl.jaas.config": login}
        return sasl | {"sasl.username": user, "sasl.password": password}

    def access(self, mechanism: str, user: str = "meter") -> ClusterAccess:
        """As a command gets it from a client.properties file."""
        file = self.file(self.properties(mechanism, user))
        return ClusterAccess.from_settings(Source(None, self.address(mechanism), file).settings().kafka)

    def allow(self, user: str, acls: Iterable[Acl]) -> None:
        """Let a user do something; returns when the broker knows of it."""
        wanted = [_acl(acl, user) for acl in acls]
        self.admin.create_acls(wanted)
        self._wait_until(lambda there: set(wanted) <= there)

    def forbid(self, user: str, acls: Iterable[Acl]) -> None:
        """The opposite of `allow`."""
        unwanted = [_acl(acl, user) for acl in acls]
        self.admin.delete_acls([
            ACLFilter(acl.principal, acl.host, acl.operation, acl.permission_type, acl.resource_pattern)
            for acl in unwanted
        ])  # fmt: skip
        self._wait_until(lambda there: not set(unwanted) & there)

    def _wait_until(self, is_so: Callable[[set[Any]], bool]) -> None:
        every = ACLFilter(
            None,
            None,
            ACLOperation.ANY,
            ACLPermissionType.ANY,
            ResourcePatternFilter(ResourceType.ANY, None, ACLResourcePatternType.ANY),
        )
        wait_until(lambda: is_so(set(self.admin.describe_acls(every)[0])), "the broker to hear of its ACLs")

    def file(self, properties: dict[str, str]) -> Path:
        """As a client.properties file."""
        path = self.folder / "client.properties"
        path.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
        return path


@contextmanager
def secured_broker(folder: Path) -> Iterator[Secured]:
    """One that runs until the end of the block."""
    fetch()
    authority, signer = Authority(folder / "ca"), TokenSigner(folder)
    server = authority.issue("broker", "IP:127.0.0.1")
    listener = "listener.name.sasl_ssl"
    oauth = f"{listener}.oauthbearer.sasl"
    settings = {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(server.keystore),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(authority.certificate),
        "listener.name.ssl.ssl.client.auth": "required",
        "ssl.principal.mapping.rules": "RULE:^CN=([^,]+).*$/$1/",
        f"{listener}.sasl.enabled.mechanisms": ",".join(MECHANISMS),
        f"{listener}.scram-sha-256.sasl.jaas.config": f"{_SECURITY}.scram.ScramLoginModule required;",
        f"{listener}.scram-sha-512.sasl.jaas.config": f"{_SECURITY}.scram.ScramLoginModule required;",
        f"{oauth}.jaas.config": f"{_SECURITY}.oauthbearer.OAuthBearerLoginModule required;",
        f"{oauth}.server.callback.handler.class": f"{_SECURITY}.oauthbearer.OAuthBearerValidatorCallbackHandler",
        "sasl.oauthbearer.jwks.endpoint.url": signer.jwks.as_uri(),
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    options = BrokerOptions(
        settings=settings,
        java_options=(f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={signer.jwks.as_uri()}",),
    )
    secrets, tls = dict.fromkeys(USERS, PASSWORD), {"SSL": 0, "SASL_SSL": 0}
    with (
        token_endpoint(secrets, signer.token) as endpoint,
        EmbeddedBroker(folder / "broker", secrets, ports=tls, options=options) as broker,
    ):
        admin: Any = KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
        try:
            for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
                users = [UserScramCredentialUpsertion(user, mechanism, PASSWORD) for user in USERS]
                assert set(admin.alter_user_scram_credentials(users).values()) == {None}
            yield Secured(broker, authority, endpoint, folder, admin)
        finally:
            admin.close()


def _acl(acl: Acl, user: str) -> Any:
    operation = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", acl.operation).upper()
    resource = ResourcePattern(ResourceType[acl.resource.upper().replace("-", "_")], acl.name)
    return ACL(f"User:{user}", "*", ACLOperation[operation], ACLPermissionType.ALLOW, resource)
