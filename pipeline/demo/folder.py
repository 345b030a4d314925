"""The demo's clients and its folder: who they are, what is in the folder, its mark, and the lock of the demo in it.

Ten clients of a shop's platform listen to the throttle topic. One sends five times its quota and one reads twice its
quota; the others should notice nothing. Six of them stay well below their quotas. Two are a tenant that lends: one
sends more than its own quota, which the other leaves free. Two stock clients, both over quota, know nothing of
throttles: brokers make them wait. The quotas cover six of Kafka's eight levels. Nothing heavy is imported here.
"""

import json
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from pipeline.command_line import CONFIG, TABLES_ROOT, About, carry, command_text, path_text
from pipeline.errors import UsageError
from pipeline.process import ProcessLock
from pipeline.settings.model import Settings
from quota.entity import QUOTA_TYPES

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
        ("mobile-ios", "", 60_000.0, None, None, "mobile", "half of the tenant"),
        ("mobile-android", "", 60_000.0, None, None, "mobile", "half of the tenant"),
        ("<default>", "scorer", None, 200_000.0, None, "fraud", "scorers of any team"),
        ("<default>", "", 120_000.0, None, 100.0, "platform", "whoever has no agreement of their own"),
        ("", "dashboard", None, 60_000.0, None, "platform", "all dashboards together"),
    )
)
"""Rows of `quotas`, at the levels 1, 1, 2, 3, 1, 1, 3, 3, 3, 4, 6 and 7."""

DEMO_TENANT: Final[Mapping[str, Any]] = {
    "tenant": "mobile",
    "user_patterns": ("mobile-*",),
    "producer_byte_rate": 120_000.0,
    "lend": True,
    "owner": "mobile",
    "note": "both apps together",
}
"""A row of `tenants`."""

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
    # Together they stay within the bound of their tenant.
    DemoClient("mobile-ios", "app", "produce", "orders", 60_000, 1.5, requests_per_second=10),
    DemoClient("mobile-android", "app", "produce", "orders", 60_000, 0.1, requests_per_second=10),
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


def demo_users() -> Iterator[str]:
    """The users the broker must know, each once."""
    return iter(dict.fromkeys(client.user for client in (*DEMO_CLIENTS, *STOCK_CLIENTS)))


MARK: Final = ".kquota-demo"
_MARK_TEXT: Final = "Made by `kquota demo`. `kquota demo --fresh` deletes the demo's data in this folder.\n"


class DemoFolder:
    """Where the demo keeps everything.

    The first demo in a new or empty folder leaves the mark `.kquota-demo` there. The demo uses no other folder that has
    content, so it can never work on, or delete, the tables of a real job.

    Attributes:
        broker: Data and logs of the first broker.
        settings_file: The settings with which every command works on this demo's broker and tables.
        candidate: Quotas to try with `what-if`.
        demo_log: The log of the demo's own process, while a screen is shown.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.broker = root / "broker"
        self.tables = root / "tables"
        self.checkpoint = root / "checkpoint"
        self.sync_log = root / "sync.log"
        self.dashboard_log = root / "dashboard.log"
        self.demo_log = root / "demo.log"
        self.settings_file = root / "kquota.toml"
        self.candidate = root / "candidate.yaml"
        self.password_file = root / "passwords.json"

    def brokers(self, count: int) -> list[Path]:
        """Data and logs of each of so many brokers, in the order of their ids."""
        return [self.broker, *(self.root / f"broker-{node_id}" for node_id in range(2, count + 1))]

    def former_brokers(self) -> int:
        """The number of brokers of the demo before; 0 if there was none."""
        count = 0
        while self.brokers(count + 1)[-1].exists():
            count += 1
        return count

    def choose_brokers(self, wanted: int | None) -> int:
        """The number of brokers of the next demo: as many as the one before, if there was one.

        Another number is a `UsageError`: topics would have partitions on brokers that are not there.
        """
        former = self.former_brokers()
        if former and wanted is not None and wanted != former:
            msg = f"the demo in this folder has {former} brokers; --brokers {wanted} cannot change that"
            raise UsageError(msg, "leave --brokers out, or start over with --fresh")
        return former or wanted or 1

    @contextmanager
    def claimed(self) -> Iterator[None]:
        """Mark the folder as the demo's own, made if it is missing, and keep other demos out until the end.

        Commands that are printed meanwhile find the demo's settings.

        Raises:
            UsageError: It has content and no mark; nothing in it is touched.
            Conflict: Another process runs a demo there.
        """
        if self.root.exists() and any(self.root.iterdir()) and not (self.root / MARK).exists():
            msg = f"{self.root} is not a demo's folder: it has content and no {MARK}"
            raise UsageError(msg, "give another --folder; if an old demo made this one, delete it yourself")
        self.root.mkdir(parents=True, exist_ok=True)
        (self.root / MARK).write_text(_MARK_TEXT, encoding="utf-8")
        carry(CONFIG, path_text(self.settings_file))
        if TABLES_ROOT in os.environ:
            carry(TABLES_ROOT, str(self.tables))  # else that variable would win over the file
        fix = f"stop that one, give another --folder, or see what it does: {command_text('status')}"
        with ProcessLock(self.root / "demo.lock", f"another demo runs in {self.root}", fix):
            yield

    def passwords(self) -> dict[str, str]:
        """The clients' passwords: random at the first start, the same at later starts."""
        file = self.password_file
        file.touch(mode=0o600)
        stored: dict[str, str] = json.loads(file.read_text() or "{}")
        missing = {user: secrets.token_hex(8) for user in demo_users() if user not in stored}
        if missing:  # all of them, or those of users that later releases have brought
            file.write_text(json.dumps({**stored, **missing}))
        return {**stored, **missing}


# Files for the user: settings for all commands, and quotas to try with `what-if`.

_HEAD: Final = "# Written by the demo at each start. With it every command of kquota works on this demo.\n"
_CANDIDATE_HEAD: Final = """\
# Quotas to try with what-if. They are the demo's own, with twice as much for alice/etl and half as much for
# search. Change them as you like; the demo does not write this file again.
"""


def write_settings(folder: DemoFolder, settings: Settings) -> None:
    """Write the settings file: where broker, topics, tables, checkpoint and lock of this demo are."""
    stream = settings.stream
    text = _toml(
        {
            "job": settings.job,
            "run_dir": str(settings.run_dir),
            "kafka": {
                name: getattr(settings.kafka, name)
                for name in ("bootstrap_servers", "usage_topic", "throttle_topic", "marker_topic")
            },
            "tables": {"root": settings.tables.root},
            "stream": {"checkpoint": stream.checkpoint, "trigger_ms": stream.trigger_ms},
            "sync": {"users": list(settings.sync.users)},
        }
    )
    folder.settings_file.write_text(_HEAD + text, encoding="utf-8")


def write_candidate(folder: DemoFolder) -> None:
    """Write the candidate if there is none."""
    if folder.candidate.exists():
        return
    factors = {("alice", "etl"): 2.0, ("search", ""): 0.5}
    lines = []
    for row in DEMO_QUOTAS:
        entity = {name: row[name] for name in ("user", "client_id")}
        factor = factors.get((row["user"], row["client_id"]), 1.0)
        bounds = {name: row[name] * factor for name in QUOTA_TYPES if row[name] is not None}
        # A JSON object on one line is YAML.
        lines.append(f"  - {json.dumps(entity | bounds)}\n")
    folder.candidate.write_text(f"{_CANDIDATE_HEAD}quotas:\n{''.join(lines)}", encoding="utf-8")


def _toml(values: Mapping[str, Any]) -> str:
    """Values first, then one table for each branch. Text is quoted as JSON quotes it, which TOML reads alike."""
    plain = [f"{key} = {_value(value)}\n" for key, value in values.items() if not isinstance(value, Mapping)]
    branches = [f"\n[{key}]\n{_toml(value)}" for key, value in values.items() if isinstance(value, Mapping)]
    return "".join([*plain, *branches])


def _value(value: Any) -> str:
    # TOML refuses the one control character that JSON leaves as it is.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


# Commands that the demo proposes.


def while_it_runs(about: About = "tables") -> list[str]:
    """Commands for another terminal, once a throttle is recorded: why, what a member of a tenant may use, an edit."""
    return [
        command_text("throttles", "explain", "alice", "etl", about=about),
        command_text("quotas", "effective", "mobile-ios", "app", about=about),
        command_text("quotas", "alter", "--user", "search", "--add-config", "consumer_byte_rate=1MB/s", about=about),
    ]


def at_the_end(decision_id: str | None, batches: int, candidate: Path) -> list[str]:
    """Three commands for when the demo has ended; `decision_id` is the beginning of one of its decisions, if any."""
    what_if = command_text("what-if", "--quotas", path_text(candidate), "--since", "1h")
    if decision_id is not None:
        return [command_text("throttles", "explain", decision_id), command_text("throttles", "list", "--all"), what_if]
    first = [command_text("quotas", "describe"), command_text("quotas", "effective", "alice", "etl")]
    return [*first, what_if if batches else command_text("quotas", "history")]
