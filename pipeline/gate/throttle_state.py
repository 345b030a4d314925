"""Until when each client is blocked, from the records of the throttle topic, and a view that follows the topic."""

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from pipeline.clock import Moment, wall_ms
from pipeline.gate.follower import KafkaFollower
from pipeline.process import restart_in_children
from schemas.names import THROTTLE_TOPIC, ClientKey
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

    def apply(self, record: ThrottleRecord, until_ms: int | None = None) -> bool:
        """Apply one record; False for one of another cluster, which is ignored. Of a release nothing is kept.

        Args:
            until_ms: Its end on another clock than the wall clock; None: `throttled_until_ms`.
        """
        if self._cluster is not None and record.cluster != self._cluster:
            return False
        key = ClientKey(record.broker_id, record.user, record.client_id)
        of_cluster = self._clusters.setdefault(record.cluster, {})
        if record.action == "release":
            of_cluster.pop(key, None)
        else:
            of_cluster[key] = Lease(record.throttled_until_ms if until_ms is None else until_ms, record)
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

    def blocked_until_ms(self, user: str, client_id: str, broker_id: str = "") -> int:
        """End of the throttle, exclusive; 0 without a throttle or after a release. It may be in the past."""
        lease = self.lease_of(ClientKey(broker_id, user, client_id))
        return 0 if lease is None else lease.until_ms

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


# For programs that check before they send. To wait until a throttle ends, use `pipeline.gate.gate`.

_PRUNE_EVERY_SECONDS: Final = 60.0


class ThrottleView:
    """Follows the throttle topic and answers from memory.

    It reads the topic as `KafkaFollower`. The throttles that it knows end by themselves.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        topic: str = THROTTLE_TOPIC,
        cluster: str | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self.state = ThrottleState(cluster)
        self._follower = KafkaFollower(bootstrap_servers, topic, options)
        self._prune_at = time.monotonic() + _PRUNE_EVERY_SECONDS
        restart_in_children(self)

    @property
    def unreadable(self) -> int:
        """The number of records that were skipped because they are not throttle records."""
        return self._follower.unreadable

    def start(self) -> None:
        """Begin to follow the topic on a daemon thread; returns at once. Call it once."""
        self._follower.start(self._apply)

    def restart(self) -> None:
        """Called in a child of `fork()`: follow the topic there, too. Throttles that were known stay known."""
        self._follower.restart()

    def wait_until_caught_up(self, timeout_seconds: float) -> bool:
        """Wait until everything that was on the topic at the start is known; False if that takes longer."""
        return self._follower.wait_until_caught_up(timeout_seconds)

    def close(self, timeout_seconds: float = 5.0) -> None:
        """Stop following. Known throttles stay until their own end. May be called twice, or before `start`."""
        self._follower.close(timeout_seconds)

    def blocked_until_ms(self, user: str, client_id: str, broker_id: str = "") -> int:
        """End of the client's throttle, exclusive, in epoch ms; 0 without a throttle or after a release.

        The end may be in the past. With a broker: the later end of that broker's throttle and the whole cluster's.
        """
        return self.state.blocked_until_ms(user, client_id, broker_id)

    def remaining_ms(self, user: str, client_id: str, now_ms: int, broker_id: str = "") -> int:
        """The time that the client must still wait, at `now_ms`; 0 at the end of the throttle and after it."""
        return max(0, self.blocked_until_ms(user, client_id, broker_id) - now_ms)

    def _apply(self, records: Sequence[ThrottleRecord], is_new_topic: bool) -> None:
        if is_new_topic:
            self.state.forget()
        for record in records:
            self.state.apply(record)
        if time.monotonic() >= self._prune_at:
            self._prune_at = time.monotonic() + _PRUNE_EVERY_SECONDS
            self.state.prune(wall_ms())
