"""The gate: a program's own requests wait here while the throttle topic says that their client is throttled.

    with Gate.connect("broker:9092") as gate:
        with gate.acquire("alice", "etl", request_bytes=len(body)):
            handle(body)

It fails open. A throttle ends at its own end whether or not anything more is heard; a gate that has not reached the
broker yet, has lost it, or is closed, holds nobody whose throttle it does not know to be running.
"""

import logging
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from pipeline.clock import Clock, SystemClock
from pipeline.gate.follower import Follower, FollowerState, KafkaFollower
from pipeline.gate.loop_waker import LoopWaker
from pipeline.gate.passage import NOT_THROTTLED, Passage, TaskPassage, since_ms, timed_out
from pipeline.gate.throttle_state import Lease
from pipeline.gate.waiting_room import GateLimits, Occupancy, WaitingRoom
from purgatory.reaper import Reaper
from schemas.client_key import ClientKey
from schemas.throttle_record import ThrottleRecord

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Throttled:
    """A throttle that runs now.

    Attributes:
        remaining_ms: How much longer the client must wait, at least; it may be renewed.
        record: The record that says so.
    """

    remaining_ms: int
    record: ThrottleRecord


@dataclass(frozen=True, slots=True)
class GateStats:
    """All gauges of a gate.

    Attributes:
        state: See `Gate.state`.
        unreadable: Records of the topic that were skipped.
        occupancy: Purgatory and memory pool.
    """

    state: FollowerState
    unreadable: int
    occupancy: Occupancy


class Gate:
    """Holds callers of throttled clients. Two threads: one follows the topic, one is the reaper of the purgatory.

    Any thread and any event loop may acquire. Start it before use, or make it by `connect`; as a context manager it
    starts itself and closes.

    Args:
        follower: Where the records come from.
        room: How much may wait.
        cluster: Records of other clusters are ignored; None: all are taken as one cluster's.
        clock: Throttles are timed on its steady time.
    """

    def __init__(
        self, follower: Follower, room: GateLimits | None = None, cluster: str | None = None, clock: Clock | None = None
    ) -> None:
        self._follower = follower
        self._waker = LoopWaker()
        self._room = WaitingRoom(room or GateLimits(), cluster, clock or SystemClock(), self._waker.together)
        self._reaper = Reaper(self._room, "gate-reaper", _log_failure)
        self._started = False

    @classmethod
    def connect(
        cls,
        bootstrap_servers: str,
        room: GateLimits | None = None,
        *,
        topic: str = "quota.throttle.v1",
        cluster: str | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> Self:
        """A gate that follows a topic. Returns at once and never fails for a broker that is away: it is open then.

        Args:
            bootstrap_servers: host:port[,host:port…] of the cluster that has the topic.
            room: How much may wait.
            topic: The throttle topic.
            cluster: See the class.
            options: Further kafka-python options, as of `client_properties.kafka_options`.
        """
        gate = cls(KafkaFollower(bootstrap_servers, topic, options, name="gate-follower"), room, cluster)
        gate.start()
        return gate

    def start(self) -> None:
        """Start both threads; returns at once. Harmless when repeated."""
        if not self._started:
            self._started = True
            self._reaper.start()
            self._follower.start(self._room.take)

    def close(self, timeout_seconds: float = 5.0) -> None:
        """Let everybody go at once, then stop both threads. Harmless when repeated.

        Args:
            timeout_seconds: How long to wait for a follower that is just trying to reach a broker that is away; it
                ends by itself some seconds later.
        """
        self._room.close()
        self._follower.close(timeout_seconds)
        self._reaper.close()
        self._room.advance_clock(0)  # the reaper's last wake-up call is nobody's any more

    def wait_until_caught_up(self, timeout_ms: int) -> bool:
        """Wait until all throttles that ran at the start are known; False if that takes longer (the gate is open)."""
        return self._follower.wait_until_caught_up(timeout_ms / 1000)

    @property
    def state(self) -> FollowerState:
        """See `Follower.state`.

        connecting and closed: open; stale: what is known lapses, then open.
        """
        return self._follower.state

    @contextmanager
    def acquire(
        self,
        user: str,
        client_id: str = "",
        *,
        request_bytes: int = 0,
        broker_id: str = "",
        timeout_ms: int | None = None,
    ) -> Iterator[Passage]:
        """Wait until the client may go on; do the work inside the `with` block.

        A client that is not throttled passes at once and is charged nothing. The bytes of one that had to wait are
        charged from the moment it comes until the block ends.

        Args:
            user: The user, as authenticated.
            client_id: The client-id; "" if it has none.
            request_bytes: What the request takes in memory; 0 charges nothing.
            broker_id: Also wait for throttles of this broker; "" = those of the whole cluster alone.
            timeout_ms: The longest wait; None: as long as it takes.

        Raises:
            GateDepleted: The client is throttled and there is no room (`when_full` refuse).
            GateTimeout: It is still throttled after timeout_ms.
            RequestSizeRefused: request_bytes is more than the room takes.
        """
        began = time.monotonic()
        asleep = threading.Lock()  # cheaper to wake than an event
        asleep.acquire()
        client = ClientKey(broker_id, user, client_id)
        hold = self._room.enter(client, request_bytes, asleep.release)
        if hold is None:
            yield NOT_THROTTLED
            return
        try:
            timeout = -1 if timeout_ms is None else max(timeout_ms, 0) / 1000
            if not asleep.acquire(timeout=timeout) and not hold.is_completed:
                raise timed_out(self._room, client, timeout_ms or 0)
            yield Passage(was_throttled=True, waited_ms=since_ms(began))
        finally:
            self._room.leave(hold)

    def acquire_async(
        self,
        user: str,
        client_id: str = "",
        *,
        request_bytes: int = 0,
        broker_id: str = "",
        timeout_ms: int | None = None,
    ) -> AbstractAsyncContextManager[Passage]:
        """`acquire` for a coroutine; a cancelled task leaves nothing behind. Arguments and errors as there."""
        client = ClientKey(broker_id, user, client_id)
        return TaskPassage(self._room, self._waker, client, request_bytes, timeout_ms)

    def throttle_of(self, user: str, client_id: str = "", broker_id: str = "") -> Throttled | None:
        """The client's running throttle, without waiting; None if it may go on."""
        lease = self._room.lease(ClientKey(broker_id, user, client_id))
        return None if lease is None else self._throttled(lease)

    def throttles(self) -> list[Throttled]:
        """All running throttles, the one that ends first at the front."""
        return sorted(map(self._throttled, self._room.leases()), key=lambda throttled: throttled.remaining_ms)

    def stats(self) -> GateStats:
        """All gauges, read now."""
        return GateStats(self._follower.state, self._follower.unreadable, self._room.occupancy())

    def _throttled(self, lease: Lease) -> Throttled:
        return Throttled(max(lease.until_ms - self._room.now_ms(), 0), lease.record)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _log_failure(failure: Exception) -> None:
    log.error("a caller that was let go could not be woken: %s", failure)
