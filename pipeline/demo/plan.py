"""The clients of the demo: who they are, what each may use, how much each uses.

Eight clients of a shop's platform that listen to the throttle topic. One sends five times its quota and one reads twice
its quota; the other six stay well below theirs and should notice nothing. Two stock clients, both over quota, know
nothing of throttles: brokers make them wait. The quotas cover six of Kafka's eight levels.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Literal

from quota.entity import QUOTA_TYPES
from schemas.names import THROTTLE_TOPIC

Role = Literal["produce", "consume"]

_QUOTA_COLUMNS: Final = ("user", "client_id", *QUOTA_TYPES, "owner", "note")
DEMO_QUOTAS: Final[tuple[Mapping[str, Any], ...]] = tuple(
    {**dict(zip(_QUOTA_COLUMNS, row, strict=True)), "mode": "enforce"}
    for row in (
        ("alice", "etl", 100_000.0, None, None, "data-platform", "nightly loads; agreed with alice"),
        ("billing", "invoices", 60_000.0, None, None, "finance", "month end included"),
        ("inventory", "<default>", 80_000.0, None, None, "warehouse", "any scanner gateway"),
        ("search", "", None, 100_000.0, None, "search", "all indexers together"),
        ("erp", "exporter", 200_000.0, None, None, "back office", "exports; a program that obeys nothing"),
        ("archive", "copier", None, 100_000.0, None, "back office", "copies the exports; neither does it"),
        ("clickstream", "", 400_000.0, None, None, "web", "all trackers together"),
        ("<default>", "scorer", None, 200_000.0, None, "fraud", "scorers of any team"),
        ("<default>", "", 120_000.0, None, 100.0, "platform", "whoever has no agreement of their own"),
        ("", "dashboard", None, 60_000.0, None, "platform", "all dashboards together"),
    )
)
"""Rows of `quotas`, at the levels 1, 1, 2, 3, 1, 1, 3, 4, 6 and 7."""

DEMO_TOPICS: Final[Mapping[str, Mapping[str, str]]] = {
    topic: {"retention.ms": "900000", "retention.bytes": "33554432", "segment.bytes": "8388608"}
    for topic in ("clicks", "orders", "invoices", "payments", "stock", "exports")
}
"""Topic name to settings. The demo leaves about 40 MB per partition."""

SPLIT_TOPIC: Final = "exports"
"""Has a partition on each broker; the other topics have one in all."""


@dataclass(frozen=True, slots=True)
class DemoClient:
    """One client and its load.

    Attributes:
        quota_bytes_per_second: The bound its <user, client-id> resolves to.
        load_factor: Its rate as a multiple of that; above 1 it is noisy.
        requests_per_second: Into how many produce requests a second the load is cut. A consumer fetches what
            one of them wrote at a time.
        listens: Whether it obeys throttles; else brokers make it wait.
    """

    user: str
    client_id: str
    role: Role
    topic: str
    quota_bytes_per_second: int
    load_factor: float
    requests_per_second: int = 20
    listens: bool = True

    @property
    def bytes_per_second(self) -> float:
        """Its target rate."""
        return self.quota_bytes_per_second * self.load_factor

    @property
    def bytes_per_request(self) -> int:
        """Payload of one request, rounded."""
        return round(self.bytes_per_second / self.requests_per_second)


DEMO_CLIENTS: Final = (
    DemoClient("alice", "etl", "produce", "orders", 100_000, 5.0),
    DemoClient("search", "indexer", "consume", "clicks", 100_000, 2.0),
    # Writes more than the noisy indexer reads, so that there is always something to read.
    DemoClient("clickstream", "tracker", "produce", "clicks", 400_000, 0.7, requests_per_second=40),
    DemoClient("billing", "invoices", "produce", "invoices", 60_000, 0.8),
    DemoClient("payments", "ledger", "produce", "payments", 120_000, 0.6),
    DemoClient("inventory", "sync", "produce", "stock", 80_000, 0.5),
    DemoClient("fraud", "scorer", "consume", "clicks", 200_000, 0.4),
    DemoClient("bi", "dashboard", "consume", "payments", 60_000, 0.3),
)


STOCK_CLIENTS: Final = (
    DemoClient("erp", "exporter", "produce", SPLIT_TOPIC, 200_000, 2.5, requests_per_second=40, listens=False),
    # Reads all that the exporter may write.
    DemoClient("archive", "copier", "consume", SPLIT_TOPIC, 100_000, 2.0, listens=False),
)


def split_shares(brokers: int) -> tuple[float, ...]:
    """The part of the split topic's requests that goes to each partition: nine tenths to the first of several."""
    others = brokers - 1
    return (0.9, *[0.1 / others] * others) if others else (1.0,)


@dataclass(frozen=True, slots=True)
class DemoPlan:
    """Everything the process of the demo clients needs to know, as one JSON file.

    Attributes:
        view_bootstrap_servers: Where the throttle topic is followed, without sign-in.
        cluster: The cluster whose throttles are obeyed; None = of any cluster.
        split_shares: The part of the split topic's requests that goes to each of its partitions.
    """

    bootstrap_servers: str
    view_bootstrap_servers: str
    passwords: Mapping[str, str]
    throttle_topic: str = THROTTLE_TOPIC
    cluster: str | None = None
    clients: tuple[DemoClient, ...] = DEMO_CLIENTS
    split_shares: tuple[float, ...] = (1.0,)

    def __post_init__(self) -> None:
        missing = sorted({client.user for client in self.clients} - set(self.passwords))
        if missing:
            msg = f"users without a password: {', '.join(missing)}"
            raise ValueError(msg)

    def write(self, path: Path) -> None:
        """Write the plan, readable by its owner alone: it holds passwords."""
        path.touch(mode=0o600)
        path.write_text(json.dumps(asdict(self), indent=2), encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> "DemoPlan":
        """Read a plan; a `ValueError` or `TypeError` if it is none or lacks something."""
        stored = json.loads(path.read_text(encoding="utf-8"))
        clients = tuple(DemoClient(**client) for client in stored["clients"])
        return cls(**stored | {"clients": clients, "split_shares": tuple(stored["split_shares"])})


def demo_users() -> Iterator[str]:
    """The users the broker must know, each once."""
    return iter(dict.fromkeys(client.user for client in (*DEMO_CLIENTS, *STOCK_CLIENTS)))
