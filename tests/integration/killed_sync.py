"""What stands around a sync that is killed: two brokers, a load that changes at random, and an eye on each broker."""

import random
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from threading import Event, Thread
from typing import Any, Final

from kafka import KafkaAdminClient

from pipeline.brokers.native import describe_request, quotas_in
from pipeline.clock import wall_ms
from pipeline.demo.broker import EmbeddedCluster
from pipeline.demo.stock_client import StockProducer
from tests.integration.stock_clients import stock_producers, stock_work, topic_on_each
from tests.pipeline.sync.usage_table import UsageTable

BOUND: Final = 100_000.0
FOREIGN: Final = {"of-others": 5e6, "taken-before": 7e6}
"""What others wrote; the second one has a row in the quota table too."""
EDITED_BOUNDS: Final = (0.8 * BOUND, BOUND)
"""The bounds of the users whose quota is edited all the time."""
RATE: Final = "producer_byte_rate"
TOPIC: Final = "load"
SPLITS: Final = ((0.9, 0.1), (0.1, 0.9), (0.5, 0.5), (1.0, 0.0), (0.0, 0.0))

_WANTS: Final = (0.0, 0.05, 0.3, 1.0, 3.0, 10.0)
_CHANGED_ONCE_IN: Final = 40
_EVERY_MS: Final = 1_000


class UsageRecorder:
    """Turns counters into rows, one for each second, broker and user; a commit each second, as a batch."""

    def __init__(self, root: str) -> None:
        self._table = UsageTable(root)
        self._counters: dict[tuple[str, str], int] = {}
        self._rows: dict[tuple[int, str, str], int] = defaultdict(int)
        self._due_ms = 0

    def saw(self, broker_id: str, user: str, total_bytes: int) -> None:
        more = total_bytes - self._counters.get((broker_id, user), 0)
        if more:
            self._counters[broker_id, user] = total_bytes
            self._rows[wall_ms() // 1_000 * 1_000, broker_id, user] += more

    def store(self) -> None:
        """Append what was seen since the last commit, if that is a second ago."""
        now_ms = wall_ms()
        if now_ms < self._due_ms or not self._rows:
            return
        self._due_ms = now_ms + _EVERY_MS
        used = [
            {
                "sample_start_ms": start_ms,
                "last_event_ms": min(start_ms + 999, now_ms),
                "broker_id": broker_id,
                "user": user,
                "produced_bytes": taken_bytes,
            }
            for (start_ms, broker_id, user), taken_bytes in self._rows.items()
        ]
        self._table.append(now_ms, *used)
        self._rows.clear()


class Eye:
    """Asks each broker again and again what it holds for users.

    Attributes:
        held: What the broker that was asked last holds.
        seen: All that was ever seen, as (broker, user, value); None = no value.
        looks: How often all brokers were asked.
    """

    def __init__(self, cluster: EmbeddedCluster) -> None:
        self.held: Mapping[str, float] = {}
        self.seen: set[tuple[int, str, float | None]] = set()
        self.looks = 0
        self._ids = [broker.node_id for broker in cluster.brokers]
        self._admin: Any = KafkaAdminClient(bootstrap_servers=cluster.bootstrap_servers)

    def look(self) -> None:
        for node_id in self._ids:
            manager = self._admin._manager
            quotas = quotas_in(manager.run(manager.send, describe_request(), node_id))
            named = {one.entity.row_names(): one.values.get(RATE) for one in quotas}
            self.held = {names[0]: value for names, value in named.items() if names and value is not None}
            gone = {user for broker, user, _ in self.seen if broker == node_id} - set(self.held)
            self.seen |= {(node_id, user, self.held.get(user)) for user in {*self.held, *gone}}
        self.looks += 1

    def close(self) -> None:
        self._admin.close()


class Load:
    """Stock producers, and users of whom only the usage is there: each broker takes of them what it would let through.

    What each wants of each broker changes at random, until `settle`.

    Args:
        recorder: Stores the usage, as the job would.
        eye: Knows what the brokers let through.
        users: Of whom only the usage is there.
        producers: Stock clients by user, with a partition on each broker.
        chance: Draws.
    """

    def __init__(
        self,
        recorder: UsageRecorder,
        eye: Eye,
        users: list[str],
        producers: Mapping[str, StockProducer],
        chance: random.Random,
    ) -> None:
        self._recorder, self._eye, self._producers, self._chance = recorder, eye, producers, chance
        self.wants = {user: self._drawn() for user in users}
        self._taken = {user: [0.0, 0.0] for user in users}
        self._is_settled = False
        self._at_ms = wall_ms()

    def settle(self) -> None:
        """Nothing changes any more."""
        self._is_settled = True

    def step(self) -> None:
        now_ms = wall_ms()
        took_seconds, self._at_ms = max(now_ms - self._at_ms, 0) / 1000, now_ms
        for user, taken in self._taken.items():
            if not self._is_settled and not self._chance.randrange(_CHANGED_ONCE_IN):
                self.wants[user] = self._drawn()
            level = self._eye.held.get(user, BOUND)
            for broker, wanted in enumerate(self.wants[user]):
                taken[broker] += min(wanted, level) * took_seconds
                self._recorder.saw(str(broker + 1), user, round(taken[broker]))
        for user, producer in self._producers.items():
            if not self._is_settled and not self._chance.randrange(_CHANGED_ONCE_IN):
                producer.shares = self._chance.choice(SPLITS)
            for broker, sent_bytes in enumerate(producer.sent_bytes):
                self._recorder.saw(str(broker + 1), user, sent_bytes)
        self._recorder.store()

    def _drawn(self) -> list[float]:
        return [self._chance.choice(_WANTS) * BOUND for _ in range(2)]


@contextmanager
def producers_of(cluster: EmbeddedCluster, users: list[str], load: float) -> Iterator[dict[str, StockProducer]]:
    """Producers that want `load` · `BOUND` each, and run until the end of the block. The topic is made here."""
    topic_on_each(cluster.brokers, TOPIC)
    works = {user: stock_work(cluster, user, TOPIC, SPLITS[0], load * BOUND, 20.0) for user in users}
    with stock_producers(works) as producers:
        for producer in producers.values():
            producer.start()
        yield producers


@contextmanager
def repeated(step: Any, rest_seconds: float) -> Iterator[None]:
    """Call it again and again on a thread, until the end of the block. What it raises ends the block's test."""
    stopping, failures = Event(), []

    def run() -> None:
        try:
            while not stopping.wait(rest_seconds):
                step()
        except BaseException as exc:
            failures.append(exc)

    thread = Thread(target=run, name="repeated")
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join()
    assert failures == []
