"""Until when each client is blocked, from the records of the throttle topic."""

from collections.abc import Iterator
from typing import NamedTuple

from pipeline.clock import Moment
from schemas.names import ClientKey
from schemas.throttle_record import ThrottleRecord


class Lease(NamedTuple):
    """The throttle of one client, by its newest record; its end, exclusive, is on the clock of the state's caller."""

    until_ms: int
    record: ThrottleRecord


def lease_end_ms(record: ThrottleRecord, now: Moment) -> int:
    """End of a throttle on this machine's steady clock; 0 for a release.

    It is as far from now as `throttled_until_ms` is by the wall clock, but never farther than the record's whole
    `throttle_time_ms`. Without that limit a machine whose clock is behind the driver's would make its clients wait
    longer, by the difference of the clocks. A machine whose clock is ahead lets them go earlier, by the difference.
    """
    if record.action == "release":
        return 0
    return now.steady_ms + min(record.throttled_until_ms - now.wall_ms, record.throttle_time_ms)


class ThrottleState:
    """Until when each client is blocked, from the records of one topic, each once and in the order of the topic.

    Of a client the last record counts. Its `publish_seq` is not compared: it begins again with a new life of the job,
    whose tables and topics were recreated.

    It fails open: a throttle ends at its own end even if no further record comes, and a client without records is
    not blocked. Any thread may read while one thread applies records.

    Args:
        cluster: Records of other clusters are ignored. None: records of every cluster count, each cluster's on its own,
            and a client is blocked until the last of its throttles ends.
    """

    def __init__(self, cluster: str | None = None) -> None:
        self._cluster = cluster
        self._clusters: dict[str, dict[ClientKey, Lease]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._clusters.values()))

    def apply(self, record: ThrottleRecord, until_ms: int) -> bool:
        """Apply one record; False for one of another cluster, which is ignored. Of a release nothing is kept.

        Args:
            until_ms: Its end, on the clock of the caller.
        """
        if self._cluster is not None and record.cluster != self._cluster:
            return False
        key = record.client
        of_cluster = self._clusters.setdefault(record.cluster, {})
        if record.action == "release":
            of_cluster.pop(key, None)
        else:
            of_cluster[key] = Lease(until_ms, record)
        return True

    def forget(self) -> list[ClientKey]:
        """Forget all throttles: another topic takes this one's place. Returns their clients."""
        clusters, self._clusters = self._clusters, {}
        return [key for of_cluster in clusters.values() for key in of_cluster]

    def lease_of(self, client: ClientKey) -> Lease | None:
        """The throttle of a client, which may have ended; None if there is none.

        With a broker: the one that ends later of that broker's throttle and the whole cluster's. Without a broker:
        only the whole cluster's. It runs for every waiting caller, so it is quick.
        """
        keys = (client, client._replace(broker_id="")) if client.broker_id else (client,)
        found: Lease | None = None
        for of_cluster in list(self._clusters.values()):
            for key in keys:
                lease = of_cluster.get(key)
                if lease is not None and (found is None or lease.until_ms > found.until_ms):
                    found = lease
        return found

    def running(self, now_ms: int) -> Iterator[Lease]:
        """The throttles that have not ended, in no order."""
        return (
            lease
            for of_cluster in list(self._clusters.values())
            for lease in list(of_cluster.values())
            if lease.until_ms > now_ms
        )

    def prune(self, now_ms: int) -> int:
        """Forget the throttles that have ended; returns how many."""
        pruned = 0
        for of_cluster in self._clusters.values():
            for key in [key for key, lease in list(of_cluster.items()) if lease.until_ms <= now_ms]:
                del of_cluster[key]
                pruned += 1
        return pruned
