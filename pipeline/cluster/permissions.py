"""The rights this client lacks: checked before work begins, and read from the broker's refusals."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from kafka import errors as kafka_errors

from pipeline.cluster.acls import Acl, Resource
from pipeline.cluster.errors import PermissionMissing, TokenRefused
from pipeline.cluster.oauth import TokenProvider

# kafka-python has no types.
_ERRORS: Final[Any] = kafka_errors

_REFUSED: Final[Mapping[type[Exception], Resource]] = {
    _ERRORS.TopicAuthorizationFailedError: "topic",
    _ERRORS.GroupAuthorizationFailedError: "group",
    _ERRORS.TransactionalIdAuthorizationFailedError: "transactional-id",
    _ERRORS.ClusterAuthorizationFailedError: "cluster",
}


def missing_acls(admin: Any, wanted: Iterable[Acl]) -> list[Acl]:
    """Those of `wanted` that the cluster does not allow this client, in their order.

    A topic that does not exist is skipped. For a transactional id the cluster only says whether it may be described.
    Rights on the cluster itself are not asked for; a refused call tells them.

    Args:
        admin: A connected `kafka.KafkaAdminClient`.
        wanted: What the client is about to do.
    """
    acls = list(wanted)
    allowed: dict[tuple[Resource, str], frozenset[str] | None] = {}
    topics = sorted({acl.name for acl in acls if acl.resource == "topic"})
    for topic in admin.describe_topics(topics) if topics else ():
        allowed["topic", topic["name"]] = _operations(topic)
    for acl in acls:
        if acl.resource == "group":
            allowed["group", acl.name] = _described_operations(
                lambda name: admin.describe_groups([name])[name], acl.name
            )
        elif acl.resource == "transactional-id":
            allowed["transactional-id", acl.name] = _described_operations(
                lambda name: admin.describe_transactions([name]), acl.name
            )
    return [
        acl
        for acl in acls
        if (known := allowed.get((acl.resource, acl.name))) is not None and acl.operation not in known
    ]


def refuse_unpermitted(admin: Any, wanted: Iterable[Acl], options: Mapping[str, Any], bootstrap_servers: str) -> None:
    """Raise if the cluster does not allow this client all it is about to do.

    Args:
        admin: A connected `kafka.KafkaAdminClient`.
        wanted: What the client is about to do.
        options: kafka-python options it has signed in with.
        bootstrap_servers: Of the cluster.

    Raises:
        PermissionMissing: with all that is missing, and the commands that grant it.
    """
    missing = missing_acls(admin, wanted)
    if missing:
        raise PermissionMissing(missing, principal_of(options), bootstrap_servers)


def permission_missing(
    error: BaseException | None, wanted: Sequence[Acl], options: Mapping[str, Any], bootstrap_servers: str
) -> PermissionMissing | None:
    """The error that names what a refused call was not allowed; None if it was not refused for that.

    A broker names the kind of the resource, and mostly its name. The operation is known from the call.

    Args:
        error: What kafka-python raised.
        wanted: What the call needs.
        options: As of `refuse_unpermitted`.
        bootstrap_servers: Of the cluster.
    """
    resource = next((resource for kind, resource in _REFUSED.items() if isinstance(error, kind)), None)
    if resource is None:
        return None
    acls = [acl for acl in wanted if acl.resource == resource]
    if not acls:
        return None
    named = [acl for acl in acls if acl.name in str(error)]
    return PermissionMissing(named or acls, principal_of(options), bootstrap_servers)


def principal_of(options: Mapping[str, Any]) -> str:
    """The principal of a client, as `User:alice`. For a certificate only the cluster knows it.

    Args:
        options: kafka-python options it has signed in with.
    """
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
    """Allowed operations as kafka-acls names them; None if they are not known."""
    error = _ERRORS.for_code(described.get("error_code", 0))
    if error in _REFUSED:
        return frozenset()
    names = described.get("authorized_operations")
    if error is not _ERRORS.NoError or described.get("error") or names is None:
        return None
    return frozenset("".join(word.capitalize() for word in name.split("_")) for name in names)
