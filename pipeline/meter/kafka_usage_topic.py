"""The usage topic on a real broker, and the port that a meter writes to."""

from collections.abc import Sequence
from typing import Any, Final, Protocol

from kafka import errors as kafka_errors

from pipeline.cluster.access import ClusterAccess
from pipeline.cluster.acls import METER_IDENTITIES, Acl
from pipeline.cluster.connecting import as_cluster_error
from pipeline.cluster.errors import PermissionMissing, TopicMissing
from pipeline.cluster.marked_transactions import Mark, MarkedTransactions
from pipeline.cluster.permissions import principal_of
from pipeline.meter.log_place import LogPlace
from pipeline.meter.meter_mark import place_of
from pipeline.meter.usage_batch import Message

# kafka-python has no types.
_ERRORS: Final[Any] = kafka_errors


class UsageWriter(Protocol):
    """Port to the usage topic: messages and mark in one transaction. `MarkedTransactions` says what calls raise."""

    @property
    def partition_count(self) -> int:
        """Partitions of the usage topic."""
        ...

    def place_of(self, mark: Mark) -> LogPlace:
        """The place that a mark says. Raises `MeterMarkDamaged`."""
        ...

    def open(self) -> Mark | None:
        """Fence every earlier writer of this broker; its mark, None if there is none."""
        ...

    def committed(self) -> Mark | None:
        """The mark, without fencing anybody."""
        ...

    def commit(self, messages: Sequence[Message], mark: Mark) -> None:
        """Store messages and mark, all or nothing."""
        ...

    def close(self) -> None:
        """Leave; aborts an open transaction. Harmless when called twice."""
        ...


class KafkaUsageTopic:
    """The usage topic of a cluster, for the meter of one broker.

    Args:
        broker_id: Whose log is metered; group and transactional id are named after it.
        topic: The usage topic. Its partitions are counted once, at the start.
        marker_topic: As of `MarkedTransactions`.
        access: How to reach the cluster.
        transaction_timeout_ms: As of `MarkedTransactions`.

    Raises:
        TopicMissing: One of the topics does not exist.
        PermissionMissing: The user may not write to the usage topic, or not read the marker topic.
        ClusterUnreachable, SignInRefused: There is no connection.
    """

    def __init__(
        self, broker_id: str, topic: str, marker_topic: str, access: ClusterAccess, transaction_timeout_ms: int
    ) -> None:
        self._group = group_of(broker_id)
        self._topic, self._marker_topic = topic, marker_topic
        self._bootstrap_servers = access.bootstrap_servers
        with access.admin() as admin, as_cluster_error(access.bootstrap_servers):
            self._partition_count = _partitions(admin, Acl("topic", topic, "Write"), access)
            _partitions(admin, Acl("topic", marker_topic, "Read"), access)
        self._transactions = MarkedTransactions(self._group, marker_topic, topic, access, transaction_timeout_ms)

    @property
    def partition_count(self) -> int:
        """See `UsageWriter.partition_count`."""
        return self._partition_count

    def place_of(self, mark: Mark) -> LogPlace:
        """See `UsageWriter.place_of`."""
        return place_of(mark, self._group, self._marker_topic, self._bootstrap_servers)

    def open(self) -> Mark | None:
        """See `UsageWriter.open`."""
        return self._transactions.open()

    def committed(self) -> Mark | None:
        """See `UsageWriter.committed`."""
        return self._transactions.committed()

    def commit(self, messages: Sequence[Message], mark: Mark) -> None:
        """See `UsageWriter.commit`."""
        self._transactions.commit(
            lambda producer: [producer.send(self._topic, value=value, partition=number) for number, value in messages],
            mark,
        )

    def close(self) -> None:
        """See `UsageWriter.close`."""
        self._transactions.close()


def group_of(broker_id: str) -> str:
    """Name of group and transactional id of a broker's meter."""
    return f"{METER_IDENTITIES}{broker_id}"


def _partitions(admin: Any, wanted: Acl, access: ClusterAccess) -> int:
    (described,) = admin.describe_topics([wanted.name])
    if _ERRORS.for_code(described["error_code"]) is _ERRORS.TopicAuthorizationFailedError:
        raise PermissionMissing([wanted], principal_of(access.client_options()), access.bootstrap_servers)
    if not described["partitions"]:
        purpose: Any = "usage" if wanted.operation == "Write" else "marker"
        raise TopicMissing(wanted.name, access.bootstrap_servers, purpose)
    return len(described["partitions"])
