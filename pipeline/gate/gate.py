"""The gate: a program's own requests wait here while the throttle topic has a running throttle of their client.

    with Gate.connect("broker:9092") as gate:
        with gate.acquire("alice", "etl", request_bytes=len(body)):
            handle(body)

It fails open. A throttle ends at its own end even if no further record comes. A gate that has not reached the broker
yet, or has lost it, makes only those clients wait whose throttle it knows and whose throttle still runs. A closed gate
lets every caller pass.
"""

import asyncio
import logging
import math
import threading
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple, Self

from pipeline.clock import Clock, SystemClock
from pipeline.errors import PipelineError
from pipeline.gate.follower import FollowerState, KafkaFollower
from pipeline.gate.waiting_room import GateLimits, Lease, Occupancy, WaitingCaller, WaitingRoom
from pipeline.process import restart_in_children
from purgatory.timer import Reaper
from schemas.names import THROTTLE_TOPIC, ClientKey
from schemas.throttle_record import ThrottleRecord


class Passage(NamedTuple):
    """What a caller gets when it may pass: whether its client was throttled, and how long it waited, in steady time."""

    was_throttled: bool
    waited_ms: int


NOT_THROTTLED: Final = Passage(was_throttled=False, waited_ms=0)


class GateTimeout(PipelineError, TimeoutError):
    """A caller still had to wait after its time-out.

    `remaining_ms` is how much longer the throttle lasts, as known now; 0 when the caller waited only for memory.
    """

    def __init__(self, user: str, client_id: str, timeout_ms: int, remaining_ms: int) -> None:
        self.user = user
        self.client_id = client_id
        self.timeout_ms = timeout_ms
        self.remaining_ms = remaining_ms
        super().__init__(
            f"{user}/{client_id} is still throttled after {timeout_ms} ms, for {remaining_ms} ms more",
            f"come back in {-(-remaining_ms // 1000)} s, or wait longer",
        )


def _timed_out(waiting_room: WaitingRoom, client: ClientKey, timeout_ms: int) -> GateTimeout:
    """The error for a caller that still has to wait after timeout_ms."""
    lease = waiting_room.lease(client)
    remaining_ms = 0 if lease is None else max(lease.until_ms - waiting_room.now_ms(), 0)
    return GateTimeout(client.user, client.client_id, timeout_ms, remaining_ms)


def _sleep(asleep: threading.Lock, caller: WaitingCaller, timeout_ms: int | None) -> bool:
    """Sleep until the caller may pass; False if it still has to wait after timeout_ms."""
    give_up_at = math.inf if timeout_ms is None else time.monotonic() + timeout_ms / 1000
    while True:
        seconds = min(caller.sleep_seconds(), give_up_at - time.monotonic())
        if asleep.acquire(timeout=max(seconds, 0)) or caller.try_again():
            return True
        if time.monotonic() >= give_up_at:
            return False


async def _sleep_in_loop(awake: asyncio.Event, caller: WaitingCaller, timeout_ms: int | None) -> bool:
    """`_sleep` for a task."""
    give_up_at = math.inf if timeout_ms is None else time.monotonic() + timeout_ms / 1000
    while True:
        seconds = min(caller.sleep_seconds(), give_up_at - time.monotonic())
        with suppress(TimeoutError):
            await asyncio.wait_for(awake.wait(), max(seconds, 0))
        if caller.try_again():
            return True
        if time.monotonic() >= give_up_at:
            return False


def _wake_task(loop: asyncio.AbstractEventLoop, awake: asyncio.Event) -> None:
    with suppress(RuntimeError):  # the loop is closed, so no task waits there
        loop.call_soon_threadsafe(awake.set)


log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Throttled:
    """A throttle that runs now; it lasts at least `remaining_ms` longer, as it may be renewed."""

    remaining_ms: int
    record: ThrottleRecord


@dataclass(frozen=True, slots=True)
class GateStats:
    """All gauges of a gate."""

    state: FollowerState
    unreadable: int
    occupancy: Occupancy


class Gate:
    """Makes callers of throttled clients wait.

    It has two threads: one follows the topic, the other is the reaper of the purgatory. Any thread and any event loop
    may acquire. Start it before use, or make it with `connect`. As a context manager it starts and closes itself.

    Args:
        cluster: Records of other clusters are ignored; None: those of each cluster count, on their own.
        clock: Throttles are timed on its steady time.
    """

    def __init__(
        self,
        follower: KafkaFollower,
        limits: GateLimits | None = None,
        cluster: str | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._follower = follower
        self._waiting_room = WaitingRoom(limits or GateLimits(), cluster, clock or SystemClock())
        self._reaper = self._new_reaper()
        self._started = False
        restart_in_children(self)

    def _new_reaper(self) -> Reaper:
        failed = partial(log.error, "a caller whose throttle ended could not be woken: %s")
        return Reaper(self._waiting_room, "gate-reaper", failed)

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

        Returns at once. A broker that is away is not an error: the gate is open until it has read the topic.

        Args:
            bootstrap_servers: host:port[,host:port…] of the cluster that has the topic.
            options: Further kafka-python options, as of `client_properties.kafka_options`.
        """
        gate = cls(KafkaFollower(bootstrap_servers, topic, options), limits, cluster)
        gate.start()
        return gate

    def start(self) -> None:
        """Start both threads; returns at once. May be repeated."""
        if not self._started:
            self._started = True
            self._reaper.start()
            self._follower.start(self._waiting_room.apply)

    def restart(self) -> None:
        """Called in a child of `fork()`: wake the parent's callers there, make new locks, start both threads again.

        Throttles that were known stay known, while the child reads the topic from its start.
        """
        self._waiting_room.restart()
        self._reaper = self._new_reaper()
        if self._started and self.state != "closed":
            self._reaper.start()
        self._follower.restart()

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
        """See `KafkaFollower.state`.

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
        """Wait until the client may pass; do the work inside the `with` block.

        A client that is not throttled passes at once and is charged nothing. A caller that has to wait is charged
        the bytes of its request from the moment it comes until the block ends.

        Args:
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
            if not _sleep(asleep, caller, timeout_ms):
                raise _timed_out(self._waiting_room, client, timeout_ms or 0)
            yield Passage(was_throttled=True, waited_ms=self._waiting_room.now_ms() - began_ms)
        finally:
            self._waiting_room.leave(caller)

    @asynccontextmanager
    async def acquire_async(
        self,
        user: str,
        client_id: str = "",
        *,
        request_bytes: int = 0,
        broker_id: str = "",
        timeout_ms: int | None = None,
    ) -> AsyncIterator[Passage]:
        """`acquire` for a coroutine, with the same arguments and errors. A cancelled task leaves nothing behind."""
        awake, client = asyncio.Event(), ClientKey(broker_id, user, client_id)
        wake = partial(_wake_task, asyncio.get_running_loop(), awake)
        caller = self._waiting_room.enter(client, request_bytes, wake)
        if caller is None:
            yield NOT_THROTTLED
            return
        began_ms = self._waiting_room.now_ms()
        try:
            if not await _sleep_in_loop(awake, caller, timeout_ms):
                raise _timed_out(self._waiting_room, client, timeout_ms or 0)
            yield Passage(was_throttled=True, waited_ms=self._waiting_room.now_ms() - began_ms)
        finally:
            self._waiting_room.leave(caller)

    def throttle_of(self, user: str, client_id: str = "", broker_id: str = "") -> Throttled | None:
        """The running throttle that holds the client longest; None if the client may pass. This does not wait."""
        lease = self._waiting_room.lease(ClientKey(broker_id, user, client_id))
        return None if lease is None else self._throttled(lease)

    def throttles(self) -> list[Throttled]:
        """All running throttles, of clients and of users; the one that ends first comes first."""
        return sorted(map(self._throttled, self._waiting_room.leases()), key=lambda throttled: throttled.remaining_ms)

    def stats(self) -> GateStats:
        """All gauges, read now."""
        return GateStats(self._follower.state, self._follower.unreadable, self._waiting_room.occupancy())

    def _throttled(self, lease: Lease) -> Throttled:
        return Throttled(max(lease.until_ms - self._waiting_room.now_ms(), 0), lease.record)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_failure: object) -> None:
        self.close()
