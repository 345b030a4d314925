"""The gate: a program's own requests wait here while the throttle topic says that their client is throttled.

    with Gate.connect("broker:9092") as gate:
        with gate.acquire("alice", "etl", request_bytes=len(body)):
            handle(body)

It fails open. A throttle ends at its own end even if no further record comes. A gate that has not reached the broker
yet, or has lost it, makes only those clients wait whose throttle it knows and whose throttle still runs. A closed gate
makes nobody wait.
"""

import logging
import threading
from collections.abc import Iterator, Mapping
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from pipeline.clock import Clock, SystemClock
from pipeline.gate.follower import Follower, FollowerState, KafkaFollower
from pipeline.gate.limits import GateLimits
from pipeline.gate.loop_waker import LoopWaker
from pipeline.gate.occupancy import Occupancy
from pipeline.gate.passage import NOT_THROTTLED, Passage, TaskPassage, timed_out
from pipeline.gate.throttle_state import Lease
from pipeline.gate.waiting_room import WaitingRoom
from purgatory.timer import Reaper
from schemas.names import THROTTLE_TOPIC, ClientKey
from schemas.throttle_record import ThrottleRecord

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Throttled:
    """A throttle that runs now.

    Attributes:
        remaining_ms: How much longer the client must wait, at least; the throttle may be renewed.
        record: The record that says so.
    """

    remaining_ms: int
    record: ThrottleRecord


@dataclass(frozen=True, slots=True)
class GateStats:
    """All gauges of a gate.

    Attributes:
        state: See `Gate.state`.
        unreadable: How many records of the topic were skipped.
        occupancy: Purgatory and memory pool.
    """

    state: FollowerState
    unreadable: int
    occupancy: Occupancy


class Gate:
    """Makes callers of throttled clients wait.

    It has two threads: one follows the topic, the other is the reaper of the purgatory. Any thread and any event loop
    may acquire. Start it before use, or make it with `connect`. As a context manager it starts and closes itself.

    Args:
        follower: Where the records come from.
        limits: How many bytes may wait.
        cluster: Records of other clusters are ignored; None: all records count as records of one cluster.
        clock: Throttles are timed on its steady time.
    """

    def __init__(
        self,
        follower: Follower,
        limits: GateLimits | None = None,
        cluster: str | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._follower = follower
        self._waker = LoopWaker()
        self._waiting_room = WaitingRoom(limits or GateLimits(), cluster, clock or SystemClock(), self._waker.together)
        self._reaper = Reaper(self._waiting_room, "gate-reaper", _log_failure)
        self._started = False

    @classmethod
    def connect(
        cls,
        bootstrap_servers: str,
        limits: GateLimits | None = None,
        *,
        topic: str = THROTTLE_TOPIC,
        cluster: str | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> Self:
        """Make a gate that follows a topic, and start it.

        Returns at once. A broker that is away is no error: the gate is open until it has read the topic.

        Args:
            bootstrap_servers: host:port[,host:port…] of the cluster that has the topic.
            limits: How many bytes may wait.
            topic: The throttle topic.
            cluster: See the class.
            options: Further kafka-python options, as of `client_properties.kafka_options`.
        """
        gate = cls(KafkaFollower(bootstrap_servers, topic, options, name="gate-follower"), limits, cluster)
        gate.start()
        return gate

    def start(self) -> None:
        """Start both threads; returns at once. May be repeated."""
        if not self._started:
            self._started = True
            self._reaper.start()
            self._follower.start(self._waiting_room.apply)

    def close(self, timeout_seconds: float = 5.0) -> None:
        """Wake all callers at once, then stop both threads. May be repeated.

        Args:
            timeout_seconds: How long to wait for a follower that is trying to reach a broker that is away. A
                follower that takes longer ends by itself some seconds later.
        """
        self._waiting_room.close()
        self._follower.close(timeout_seconds)
        self._reaper.close()
        self._waiting_room.advance_clock(0)  # removes the task that woke the reaper for the last time

    def wait_until_caught_up(self, timeout_ms: int) -> bool:
        """Wait until all throttles that ran at the start are known; False if that takes longer (the gate is open)."""
        return self._follower.wait_until_caught_up(timeout_ms / 1000)

    @property
    def state(self) -> FollowerState:
        """See `Follower.state`.

        connecting and closed: the gate is open. stale: known throttles still run to their end, then it is open.
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

        A client that is not throttled passes at once and is charged nothing. A caller that has to wait is charged
        the bytes of its request from the moment it comes until the block ends.

        Args:
            user: The user, as authenticated.
            client_id: The client-id; "" if it has none.
            request_bytes: What the request takes in memory; 0 charges nothing.
            broker_id: Also wait for throttles of this broker; "" means only those of the whole cluster count.
            timeout_ms: The longest wait; None: as long as it takes.

        Raises:
            GateDepleted: The client is throttled and the memory pool is depleted (`when_full` refuse).
            GateTimeout: It still has to wait after timeout_ms.
            RequestSizeRefused: request_bytes is below 0 or above the gate's `max_request_bytes`.
        """
        asleep = threading.Lock()  # waking a thread by a lock costs less than by an event
        asleep.acquire()
        client = ClientKey(broker_id, user, client_id)
        caller = self._waiting_room.enter(client, request_bytes, asleep.release)
        if caller is None:
            yield NOT_THROTTLED
            return
        began_ms = self._waiting_room.now_ms()
        try:
            timeout_seconds = -1 if timeout_ms is None else max(timeout_ms, 0) / 1000
            if not asleep.acquire(timeout=timeout_seconds) and not caller.is_completed:
                raise timed_out(self._waiting_room, client, timeout_ms or 0)
            yield Passage(was_throttled=True, waited_ms=self._waiting_room.now_ms() - began_ms)
        finally:
            self._waiting_room.leave(caller)

    def acquire_async(
        self,
        user: str,
        client_id: str = "",
        *,
        request_bytes: int = 0,
        broker_id: str = "",
        timeout_ms: int | None = None,
    ) -> AbstractAsyncContextManager[Passage]:
        """`acquire` for a coroutine, with the same arguments and errors. A cancelled task leaves nothing behind."""
        client = ClientKey(broker_id, user, client_id)
        return TaskPassage(self._waiting_room, self._waker, client, request_bytes, timeout_ms)

    def throttle_of(self, user: str, client_id: str = "", broker_id: str = "") -> Throttled | None:
        """The client's running throttle, without waiting; None if it may go on."""
        lease = self._waiting_room.lease(ClientKey(broker_id, user, client_id))
        return None if lease is None else self._throttled(lease)

    def throttles(self) -> list[Throttled]:
        """All running throttles; the one that ends first comes first."""
        return sorted(map(self._throttled, self._waiting_room.leases()), key=lambda throttled: throttled.remaining_ms)

    def stats(self) -> GateStats:
        """All gauges, read now."""
        return GateStats(self._follower.state, self._follower.unreadable, self._waiting_room.occupancy())

    def _throttled(self, lease: Lease) -> Throttled:
        return Throttled(max(lease.until_ms - self._waiting_room.now_ms(), 0), lease.record)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _log_failure(failure: Exception) -> None:
    log.error("a caller that may go on could not be woken: %s", failure)
