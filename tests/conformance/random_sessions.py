"""Random quota sessions from a seed, in the format of sessions.jsonl.gz, without answers.

Kafka's sample windows begin at the first request of a sensor, those of the engine at multiples of their length. The two
agree on *aligned* sessions. All sessions here are aligned: a client that sends in a window also sends at its start; and
an edit that can lead to another sensor (a quota is set or deleted) happens at the start, before anybody sends. Inside a
window only the bounds of entities that already have one are changed.
"""

import random
from typing import Any, Final

from bench.conformance import MEASURES

Session = dict[str, Any]
Step = dict[str, Any]
Entity = tuple[str | None, str | None]

DEFAULT: Final = "<default>"
USERS: Final = ("alice", "bob doe", "CN=svc,OU=x", "zoë", "a*b~c+d/é")
CLIENTS: Final = ("etl", "x y@#", "batch-loader", "")
BYTE_BOUNDS: Final = (1, 10, 333, 4096, 1_000_000, 52_428_800)
# Kafka adds percents as doubles, the engine adds nanoseconds as integers. The sums differ in the last digit, which
# matters only when X is exactly a half. With bounds above 2 and nanoseconds from wide ranges that is one case in 10^5.
PERCENT_BOUNDS: Final = (2.5, 10, 33.3, 50, 200, 750.25)
MOST_WINDOWS: Final = 7
EPOCH_MS: Final = 1_700_000_000_000


def draw_session(seed: int) -> Session:
    return _Drawing(seed).session()


class _Drawing:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.seed = seed
        self.quota_type = self.random.choice(list(MEASURES))
        self.num_samples = self.random.randint(1, 11)
        self.window_ms = self.random.randint(1, 5) * 1000
        self.users = self.random.sample(USERS, self.random.randint(1, 3))
        self.clients = self.random.sample(CLIENTS, self.random.randint(1, 3))
        # Only a few different offsets, so that an event is often exactly num_samples windows after another one.
        self.offsets_ms = [1, self.window_ms - 1, *(self.random.randrange(1, self.window_ms) for _ in range(2))]
        self.bounds: dict[Entity, float] = {}
        self.steps: list[Step] = []

    def session(self) -> Session:
        start_ms = EPOCH_MS // self.window_ms * self.window_ms + self.window_ms * self.random.randrange(60)
        for _ in range(self.random.randint(1, 5)):
            self.set_or_delete(start_ms)
        for _ in range(self.random.randint(1, MOST_WINDOWS)):
            self.window(start_ms)
            start_ms += self.window_ms * self.random.choice([1, 1, 1, 2, 3, self.num_samples, self.num_samples + 1, 25])
        return {
            "seed": self.seed,
            "aligned": True,
            "quota_type": self.quota_type,
            "num_samples": self.num_samples,
            "sample_window_ms": self.window_ms,
            "steps": self.steps,
        }

    def window(self, start_ms: int) -> None:
        for _ in range(self.random.choice([0, 0, 0, 1, 1, 2, 4])):
            self.set_or_delete(start_ms)
        pairs = [(user, client) for user in self.users for client in self.clients]
        senders = self.random.sample(pairs, min(len(pairs), self.random.randint(1, 3)))
        for sender in senders:
            self.request(start_ms, sender)
        for offset_ms in sorted(self.random.choices(self.offsets_ms, k=self.random.randint(0, 4))):
            if self.bounds and self.random.random() < 0.2:
                self.set_bound(start_ms + offset_ms, self.random.choice(list(self.bounds)))
            self.request(start_ms + offset_ms, self.random.choice(senders))

    def request(self, at_ms: int, sender: tuple[str, str]) -> None:
        user, client_id = sender
        step = {"op": "record", "t": at_ms, "user": user, "client_id": client_id, "value": self.value()}
        self.steps.append(step)

    def value(self) -> int:
        """Bytes or nanoseconds: none, few, about those of a window, exactly what a quota allows, or far too many."""
        bound = self.random.choice(list(self.bounds.values()) or [1000.0])
        per_second = bound * (10_000_000 if self.quota_type == "request_percentage" else 1)
        granted = int(per_second * max(self.num_samples - 1, 1) * self.window_ms / 1000)
        kinds = [0, self.random.randint(1, 1000), self.random.randint(0, 2 * granted), granted, granted + 1]
        return min(self.random.choice([*kinds, self.random.randint(0, 10 * granted), 1 << 40]), 1 << 40)

    def set_or_delete(self, at_ms: int) -> None:
        if self.bounds and self.random.random() < 0.35:
            entity = self.random.choice(list(self.bounds))
            del self.bounds[entity]
            self.edit(at_ms, entity, None)
            return
        user = self.random.choice([None, DEFAULT, *self.users])
        named = [client for client in self.clients if client]
        client = self.random.choice([DEFAULT, *named] if user is None else [None, DEFAULT, *named])
        self.set_bound(at_ms, (user, client))

    def set_bound(self, at_ms: int, entity: Entity) -> None:
        bounds = PERCENT_BOUNDS if self.quota_type == "request_percentage" else BYTE_BOUNDS
        self.bounds[entity] = self.random.choice(bounds)
        self.edit(at_ms, entity, self.bounds[entity])

    def edit(self, at_ms: int, entity: Entity, bound: float | None) -> None:
        user, client_id = entity
        self.steps.append({"op": "quota", "t": at_ms, "user": user, "client_id": client_id, "bound": bound})


def is_aligned(session: Session) -> bool:
    """True if every sensor's first request in a sample window is at the window's start. The session has answers."""
    window_ms = session["sample_window_ms"]
    begun: set[tuple[str, str, int]] = set()
    for step in (step for step in session["steps"] if step["op"] == "record"):
        sensor_window = (*step["sensor"], step["t"] // window_ms)
        if sensor_window not in begun and step["t"] % window_ms:
            return False
        begun.add(sensor_window)
    return True
