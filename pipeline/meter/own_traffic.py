"""Requests in a request log that are no client's usage: those of the cluster itself, and what meters send."""

from dataclasses import dataclass, field
from typing import Any, Final

from pipeline.cluster.acls import METER_IDENTITIES
from pipeline.meter.usage_topic import UsageTopic

_TRANSACTION_APIS: Final = frozenset({
    "INIT_PRODUCER_ID", "ADD_PARTITIONS_TO_TXN", "ADD_OFFSETS_TO_TXN", "TXN_OFFSET_COMMIT", "END_TXN",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class OwnTraffic:
    """Requests that are not reported: those of the cluster itself, and what meters send.

    A request is the cluster's if its listener **and** its principal are named here. Both are needed: on a cluster
    without authentication every client is `User:ANONYMOUS`, and an authenticated client may reach an internal
    listener.

    A produce request that writes only to the usage topic is left out, whoever sends it. If meters reported such
    requests, each report would be the next usage to report: each meter's for itself, and the meters' for each other,
    without end. The topic tells them, not their names: a meter sees the requests of all other meters, and does not
    know as whom they sign in. Only meters have the right to write to this topic. A meter writes in transactions, so
    the requests of transactions whose id is a meter's are left out too, and so are `WRITE_TXN_MARKERS`, which only
    brokers send. All other requests of a meter are reported like those of any client.

    Attributes:
        listeners: Listener names that brokers and controllers use among themselves.
        principals: Who they are there, `Type:name`.
        usage_topic: The topic that the meters write to.
    """

    listeners: frozenset[str] = frozenset({"CONTROLLER"})
    principals: frozenset[str] = frozenset({"User:ANONYMOUS"})
    usage_topic: UsageTopic = field(default_factory=UsageTopic)

    def covers(self, logged: dict[str, Any]) -> bool:
        """Whether a request is left out.

        Raises:
            KeyError, TypeError, AttributeError: The logged request lacks a part.
        """
        if logged["listener"] in self.listeners and logged["principal"] in self.principals:
            return True
        api, request = logged["requestHeader"]["requestApiKeyName"], logged["request"]
        if api == "PRODUCE":
            return self.usage_topic.is_all_of(request)
        if api == "FETCH":
            return _is_follower(request)
        if api in _TRANSACTION_APIS:
            return _is_of_meters(request)
        return bool(api == "WRITE_TXN_MARKERS")


def _is_follower(request: Any) -> bool:
    # Up to v14 the id is in the body, later in a tagged struct that consumers leave out. -1 means a consumer.
    if not request:
        return False
    replica_id: int = request.get("replicaId", (request.get("replicaState") or {}).get("replicaId", -1))
    return replica_id >= 0


def _is_of_meters(request: Any) -> bool:
    # Clients ask for one transaction. A broker asks for several (v4 and later), before it lets their records in.
    if not request:
        return False
    several = request.get("transactions")
    ids: list[str | None] = (
        [each["transactionalId"] for each in several]
        if several
        else [request.get("v3AndBelowTransactionalId") or request.get("transactionalId")]
    )
    return all(each is not None and each.startswith(METER_IDENTITIES) for each in ids)
