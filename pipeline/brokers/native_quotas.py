"""The client quotas of a cluster's brokers, over one connection that is made again when it is lost."""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from threading import Event
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from kafka import KafkaAdminClient
from kafka import errors as kafka_errors

from pipeline.brokers.entity import NativeQuota
from pipeline.brokers.errors import NativeQuotasUnsupported
from pipeline.brokers.requests import (
    AlterRefusal,
    QuotaChanges,
    alter_request,
    batches_of,
    describe_request,
    quotas_in,
    refusals_in,
    unsendable,
)
from pipeline.cluster.access import ClusterAccess
from pipeline.cluster.acls import ALTER_QUOTAS, DESCRIBE_QUOTAS, Acl
from pipeline.cluster.connecting import as_cluster_error
from pipeline.cluster.errors import ClusterUnreachable

log = logging.getLogger(__name__)

PAUSES_SECONDS: Final = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
"""How long to rest before each further try of a call that was not answered."""

# kafka-python has no types.
_ERRORS: Final[Any] = kafka_errors

_REQUESTS: Final = {
    DESCRIBE_QUOTAS: "DescribeClientQuotas (API 48)",
    ALTER_QUOTAS: "AlterClientQuotas (API 49)",
}
"""The right that a request needs -> the request."""

Outcome = TypeVar("Outcome")


class NativeQuotas:
    """Reads and changes Kafka's own client quotas. Not safe for several threads. Use it in a `with` block, or close it.

    A call that is not answered is made again, over a new connection and with back-off: to describe changes nothing, and
    to alter twice is the same as once. A cluster that can not be reached at the start is not waited for.

    Args:
        access: Of the cluster.
        pauses_seconds: The rests before the second try and each further one; empty = one try.
        stopping: Ends the rests and with them the tries, when it is set.

    Raises:
        ClusterUnreachable: No broker answers.
        SignInRefused: The credentials are refused.
    """

    def __init__(
        self,
        access: ClusterAccess,
        pauses_seconds: Sequence[float] = PAUSES_SECONDS,
        stopping: Event | None = None,
    ) -> None:
        self._access = access
        self._pauses_seconds = tuple(pauses_seconds)
        self._stopping = stopping or Event()
        self._admin: Any = access.open(KafkaAdminClient)

    def describe(self) -> list[NativeQuota]:
        """Every quota of every entity, ips among them, in no certain order.

        Raises:
            NativeQuotasUnsupported: The brokers are older than 2.6.
            PermissionMissing: It needs DescribeConfigs on the cluster.
            ClusterUnreachable: No answer, at any try.
            SignInRefused: The credentials are refused, at a new connection.
        """
        return self._called(DESCRIBE_QUOTAS, lambda admin: quotas_in(_sent(admin, describe_request())))

    def alter(self, changes: QuotaChanges, *, validate_only: bool = False) -> list[AlterRefusal]:
        """Change values of any number of entities; values that are not named stay.

        They are sent in requests of some thousands of entities. If it raises, the entities of earlier requests are
        changed; to repeat all of it does no harm.

        Args:
            changes: Entity to its new values by key; None removes one.
            validate_only: Change nothing, only ask what would be refused.

        Returns:
            The entities that were refused, with the reason. All others are changed. Other clients, and `describe`, see
            it as soon as the broker they ask has heard of it, mostly within some ms.

        Raises:
            As `describe`; PermissionMissing: It needs AlterConfigs on the cluster.
        """
        refused = unsendable(changes)
        left_out = {refusal.entity for refusal in refused}
        sent = {entity: values for entity, values in changes.items() if entity not in left_out}
        for batch in batches_of(sent):
            refused += self._altered(batch, validate_only)
        return refused

    def broker_ids(self) -> list[int]:
        """The ids of the brokers that are up, in order. A broker that is fenced, as it is at its start, is none.

        Raises:
            As `describe`.
        """
        brokers = self._called(DESCRIBE_QUOTAS, lambda admin: admin.describe_cluster()["brokers"])
        return sorted(broker["broker_id"] for broker in brokers if not broker.get("is_fenced"))

    def close(self) -> None:
        """Leave the cluster. Harmless when called twice."""
        admin, self._admin = self._admin, None
        if admin is not None:
            admin.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _altered(self, batch: QuotaChanges, validate_only: bool) -> list[AlterRefusal]:
        request = partial(alter_request, batch, validate_only=validate_only)
        return self._called(ALTER_QUOTAS, lambda admin: refusals_in(_sent(admin, request())))

    def _called(self, right: Acl, call: Callable[[Any], Outcome]) -> Outcome:
        """What a call returns, tried again as long as the cluster does not answer it and the pauses last."""
        for rest_seconds in self._pauses_seconds:
            try:
                return self._tried(right, call)
            except ClusterUnreachable as exc:
                log.warning("%s; next try in %g s", exc, rest_seconds)
                if self._stopping.wait(rest_seconds):
                    raise
        return self._tried(right, call)

    def _tried(self, right: Acl, call: Callable[[Any], Outcome]) -> Outcome:
        if self._admin is None:
            self._admin = self._access.open(KafkaAdminClient)
        try:
            with as_cluster_error(self._access.bootstrap_servers):
                try:
                    return call(self._admin)
                except _ERRORS.IncompatibleBrokerVersion as exc:
                    raise NativeQuotasUnsupported(self._access.bootstrap_servers, _REQUESTS[right]) from exc
                except _ERRORS.KafkaError as exc:
                    refusal = self._access.refusal(exc, [right])
                    raise refusal or exc from exc
        except ClusterUnreachable:
            self.close()  # brokers may be at other addresses when they are back
            raise


def _sent(admin: Any, request: Any) -> Any:
    """The response to a request, from any broker: they pass on to the controller what it must do."""
    return admin._manager.run(admin._manager.send, request)
