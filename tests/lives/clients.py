"""Clients of a life: each uses what it wants, unless it obeys and is held. Their gates read the topic of the job.

A gate here is the waiting room of the real one with the records of the topic. What it must know is kept a second time,
in the simplest way, and compared with it at every record and every instant.
"""

import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from pipeline.clock import Moment
from pipeline.gate.waiting_room import GateLimits, WaitingCaller, WaitingRoom
from schemas.names import ClientKey
from schemas.throttle_record import Target, ThrottleRecord
from tests.fakes.clock import ManualClock
from tests.fakes.topic import TopicBroker
from tests.faults.generator import RATES

MEASURES: Final = dict(zip(RATES, ("produced_bytes", "fetched_bytes", "io_time_ns"), strict=True))
_NS_PER_PERCENT_SECOND: Final = 10_000_000
_LONGEST_SLEEP_MS: Final = 1_000
Obeys = Literal["gate", "side-car", "never"]


@dataclass(frozen=True, slots=True)
class GateClock:
    """The clock of a machine that is ahead of the driver's, or behind."""

    clock: ManualClock
    ahead_ms: int

    def now(self) -> Moment:
        now = self.clock.now()
        return Moment(now.wall_ms + self.ahead_ms, now.steady_ms)


class Gate:
    """A gate that may be cut off from the topic or start again, and what it must know.

    Attributes:
        is_cut: Records wait until it is not.
        found: What was not as it must be.
    """

    def __init__(self, broker: TopicBroker, clock: GateClock, has_threads: bool) -> None:
        self.is_cut = False
        self.found: list[str] = []
        self.compared = 0
        self._broker, self._clock, self._has_threads = broker, clock, has_threads
        self.start()

    def start(self) -> None:
        """A new process: it has no callers, and reads the topic from its start."""
        self.room = WaitingRoom(GateLimits(), None, self._clock)
        self._read = 0
        self._known: dict[Target, tuple[int, ThrottleRecord]] = {}
        self._callers: dict[ClientKey, WaitingCaller] = {}

    def turn(self) -> None:
        """Time has passed; read what is new, one record at a time."""
        if self._has_threads:
            self.room.advance_clock(0)
        self._compare("at its end")
        while not self.is_cut and self._read < len(self._broker.records):
            self._apply(self._broker.records[self._read])
            self._read += 1

    def _apply(self, record: ThrottleRecord) -> None:
        now = self._clock.now()
        if record.action == "release":
            self._known.pop(record.target, None)
        else:
            left_ms = min(record.throttled_until_ms - now.wall_ms, record.throttle_time_ms)
            self._known[record.target] = now.steady_ms + left_ms, record
        self.room.apply([record])
        self._compare(f"after publish_seq {record.publish_seq}")

    def holds(self, client: ClientKey) -> bool:
        """Whether it must hold a client, by the newest record of each target."""
        now_ms = self._clock.now().steady_ms
        return any(now_ms < end_ms and _holds(one, client) for end_ms, one in self._known.values())

    def _compare(self, when: str) -> None:
        """Who waits is held, and who is held waits. A gate without threads lets its callers ask for themselves."""
        for client, caller in self._callers.items():
            self.compared += 1
            waits = not (caller.is_completed or (not self._has_threads and caller.try_again()))
            if waits and not self.holds(client):
                self.found.append(f"gate: {client} waits {when}, and no throttle holds it")
            if self.holds(client) != (self.room.lease(client) is not None):
                self.found.append(f"gate: {client} has {self.room.lease(client)} {when}; held: {self.holds(client)}")

    def may_pass(self, client: ClientKey) -> bool:
        """Whether a caller of the client may go on; the first time that it may not, it begins to wait."""
        if client not in self._callers:
            caller = self.room.enter(client, 0, lambda: None)
            if (caller is None) == self.holds(client):
                self.found.append(f"gate: {client} must {'wait' if caller is None else 'pass'}")
            if caller is None:
                return True
            self._callers[client] = caller
        if not self._callers[client].is_completed:
            return False
        self.room.leave(self._callers.pop(client))
        return True


def _holds(record: ThrottleRecord, client: ClientKey) -> bool:
    is_same = record.client_id in {None, client.client_id} and record.user == client.user
    return is_same and client.client_id not in (record.except_client_ids or ())


@dataclass
class Client:
    """One client: by how much it goes above its bound, and whether it obeys."""

    key: ClientKey
    obeys: Obeys
    gate: Gate
    quota_type: str
    factor: float
    is_active: bool = True
    asks_at_ms: int = 0

    def used_in(self, slice_ms: int) -> int:
        per_second = RATES[self.quota_type] * self.factor
        per_second *= _NS_PER_PERCENT_SECOND if self.quota_type == "request_percentage" else 1
        return round(per_second * slice_ms / 1_000)

    def may_pass(self, now_ms: int) -> bool:
        """An obeying client waits in its gate, or asks a side-car and sleeps as long as that says, at most a second."""
        if self.obeys == "gate":
            return self.gate.may_pass(self.key)
        if self.obeys == "never":
            return True
        if now_ms < self.asks_at_ms:
            return False
        lease = self.gate.room.lease(self.key)
        if lease is not None:
            self.asks_at_ms = min(lease.until_ms, now_ms + _LONGEST_SLEEP_MS)
        return lease is None


CALM: Final = ("calm-0", "calm-1")
"""They never use more than a tenth of their quota, whatever it is edited to."""
STEADY: Final = ("steady-0", "steady-1", "steady-2")
"""They have quotas of their own, in no tenant."""


@dataclass
class Clients:
    """All of a life, and the events that they have caused since they were asked last."""

    random: random.Random
    clock: ManualClock
    broker: TopicBroker
    happened: Counter[str]
    events: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        clocks = [GateClock(self.clock, ahead_ms) for ahead_ms in (0, self.random.choice((-5_000, 0, 700)))]
        self.gates = [
            Gate(self.broker, clock, has_threads) for clock, has_threads in zip(clocks, (True, False), strict=True)
        ]
        draw, types = self.random, list(RATES)
        obeys: tuple[Obeys, ...] = ("gate", "gate", "side-car", "never")
        names = [*CALM, *STEADY, *(f"offender-{number}" for number in range(4))]
        self.members = [
            Client(
                ClientKey("", user, draw.choice(("app", "etl"))),
                draw.choice(obeys),
                draw.choice(self.gates),
                draw.choice(types),
                0.05 if user in CALM else draw.choice((0.5, 1.2, 2.0, 4.0, 9.0)),
            )
            for user in names
        ]

    def turn(self, slice_ms: int, event_time_ms: int) -> None:
        """Let every client use what it wants in a slice of time that has just passed, if it may."""
        for gate in self.gates:
            gate.turn()
        for one in self.members:
            if not one.is_active:
                continue
            if not one.may_pass(self.clock.steady_ms):
                self.happened[f"slices waited: {one.obeys}"] += 1
                continue
            names = {"user": one.key.user, "client_id": one.key.client_id}
            self.events.append(
                {"event_time_ms": event_time_ms, **names, MEASURES[one.quota_type]: one.used_in(slice_ms)}
            )

    def take(self) -> list[dict[str, Any]]:
        taken, self.events = self.events, []
        return taken

    def change_one(self) -> None:
        """One of them begins, ends, or wants another amount."""
        one = self.random.choice(self.members[len(CALM) :])
        one.is_active = self.random.random() < 0.7
        one.factor = self.random.choice((0.5, 1.2, 2.0, 4.0, 9.0, 30.0))

    def trouble_a_gate(self) -> None:
        """A gate loses its broker, has it again, or starts anew."""
        gate = self.random.choice(self.gates)
        if self.random.random() < 0.3:
            gate.start()
        else:
            gate.is_cut = not gate.is_cut
