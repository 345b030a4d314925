"""Who is blocked until when, from records of the throttle topic: the rule, without Kafka, clock or thread."""

from collections.abc import Iterator
from typing import Final, NamedTuple

from pipeline.clock import Moment
from schemas.client_key import ClientKey
from schemas.throttle_record import ThrottleRecord

FORGET_AFTER_MS: Final = 3_600_000


class Lease(NamedTuple):
    """What holds for one client, by the newest record of it.

    Attributes:
        until_ms: End, exclusive, on the clock the state is asked on; 0 after a release.
        record: The newest record.
    """

    until_ms: int
    record: ThrottleRecord


def lease_end_ms(record: ThrottleRecord, now: Moment) -> int:
    """End of a throttle on this machine's steady clock; 0 for a release.

    As far from now as `throttled_until_ms` is by the wall clock, but never farther than the record's whole
    `throttle_time_ms`: a machine whose clock is behind the driver's would otherwise hold its clients longer by
    that much. One whose clock is ahead lets them go early.

    Args:
        record: As read from the topic.
        now: When it was read.
    """
    if record.action == "release":
        return 0
    return now.steady_ms + min(record.throttled_until_ms - now.wall_ms, record.throttle_time_ms)


class ThrottleState:
    """Who is blocked until when, from records in any order.

    It fails open: a throttle ends at its end whether or not anything more is heard, and a client nothing was
    heard of is not blocked. Safe to read from any thread while one thread applies.

    Args:
        cluster: Records of other clusters are ignored; null: all are taken as one cluster's.
    """

    def __init__(self, cluster: str | None = None) -> None:
        self._cluster = cluster
        self._last: dict[ClientKey, Lease] = {}

    def __len__(self) -> int:
        return len(self._last)

    def apply(self, record: ThrottleRecord, until_ms: int | None = None) -> bool:
        """Take one record; whether it changed anything.

        Of a client's records on a broker the one with the highest `publish_seq` holds. One that is older, or
        comes again, is dropped: a late copy never brings an ended throttle back. A release blocks no longer,
        from now on.

        Args:
            record: As read from the topic.
            until_ms: Its end on another clock than the wall clock; null: `throttled_until_ms`.
        """
        if self._cluster is not None and record.cluster != self._cluster:
            return False
        key = ClientKey(record.broker_id, record.user, record.client_id)
        last = self._last.get(key)
        if last is not None and record.publish_seq <= last.record.publish_seq:
            return False
        end_ms = record.throttled_until_ms if until_ms is None else until_ms
        self._last[key] = Lease(end_ms if record.action == "throttle" else 0, record)
        return True

    def lease(self, user: str, client_id: str, broker_id: str = "") -> Lease | None:
        """What holds for a client; None if nothing was heard of it.

        With a broker, the later of that broker's throttle and the cluster's; without, the cluster's alone.
        """
        return self.lease_of(ClientKey(broker_id, user, client_id))

    def lease_of(self, client: ClientKey) -> Lease | None:
        """`lease` for who has the key already: asked for each caller that is let go."""
        own = self._last.get(client)
        if not client.broker_id:
            return own
        lease = self._last.get(client._replace(broker_id=""))
        if lease is None or (own is not None and own.until_ms > lease.until_ms):
            return own
        return lease

    def blocked_until_ms(self, user: str, client_id: str, broker_id: str = "") -> int:
        """End of the throttle, exclusive, in epoch ms; 0 if none was heard of or it was released.

        The end may be in the past.
        """
        lease = self.lease(user, client_id, broker_id)
        return 0 if lease is None else lease.until_ms

    def remaining_ms(self, user: str, client_id: str, now_ms: int, broker_id: str = "") -> int:
        """How much longer the client must wait at `now_ms`; 0 at the end and after it."""
        return max(0, self.blocked_until_ms(user, client_id, broker_id) - now_ms)

    def running(self, now_ms: int) -> Iterator[Lease]:
        """The throttles that have not ended, in no order."""
        return (lease for lease in list(self._last.values()) if lease.until_ms > now_ms)

    def prune(self, now_ms: int) -> int:
        """Forget throttles that ended `FORGET_AFTER_MS` ago or earlier, and releases; how many.

        Forgetting a release lets a still older record of the same client in; it would have to come after it
        on the topic, and would have ended.
        """
        old = [key for key, last in list(self._last.items()) if last.until_ms + FORGET_AFTER_MS <= now_ms]
        for key in old:
            del self._last[key]
        return len(old)
