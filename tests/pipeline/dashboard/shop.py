"""Tables that a real job has written, without Kafka and Spark: its clients send, are throttled, and obey.

And a small shop: who may use what, who uses what, and a minute of its life.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pipeline.dashboard.reader import TablesReader
from pipeline.job.status import JobSigns
from pipeline.settings.model import EngineSettings, Settings, StreamSettings, TablesSettings
from pipeline.stream.job_tables import RollUps
from pipeline.tables.quotas.edit import QuotaChange
from pipeline.tables.quotas.table import EditAudit, QuotaTable
from pipeline.tables.quotas.tenants import new_tenant
from schemas.throttle_record import ThrottleRecord
from tests.faults.hand_job import HandJob
from tests.pipeline.tables.factories import tenant_table

HOSTILE = "<img src=x onerror=alert(1)>"
"""A client-id that a page which is careless with names would run."""

Rates = Callable[[float], Mapping[str, float]]
"""Second of the run -> what a client uses per second, by measure."""


@dataclass(frozen=True)
class Sender:
    """A client that sends unless it is throttled."""

    user: str
    client_id: str
    rates: Rates
    broker_id: str = "1"


class LivedTables:
    """A job and its clients; time passes only in `live`.

    With `at_once`, all micro-batches of a `live` are one commit of each table, which is several times as fast. Its
    commits have none of the job's notes.
    """

    def __init__(
        self,
        folder: Path,
        quotas: Sequence[Mapping[str, Any]],
        senders: Sequence[Sender],
        start_ms: int,
        engine: EngineSettings = EngineSettings(),  # noqa: B008 - it is frozen
        at_once: bool = False,
        tenants: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        self.job = HandJob(folder, {"producer_byte_rate": 1e9}, in_memory=at_once)
        self._at_once = at_once
        self.job.settings = Settings(
            job="hand",
            cluster="test",
            kafka=self.job.settings.kafka,
            tables=self.job.settings.tables,
            engine=engine,
            stream=StreamSettings(max_decision_age_ms=60_000),
        )
        self.root = self.job.settings.tables.root
        self.edit(quotas, "who may use what", without=[("<default>", "")])
        if tenants:
            rows = [{**new_tenant(row["tenant"]), **row} for row in tenants]
            tenant_table(self.root).commit(lambda _: rows, EditAudit("ada", "console", "0", "who shares what"))
        self.senders = list(senders)
        self._seconds = 0.0
        self.job.clock.set_wall(start_ms)
        self.job.clock.steady_ms = start_ms
        self.job.start()
        self._store()

    @property
    def now_ms(self) -> int:
        return self.job.clock.wall_ms

    def edit(
        self, rows: Sequence[Mapping[str, Any]], reason: str = "", without: Sequence[tuple[str, str]] = ()
    ) -> None:
        named = {(row["user"], row["client_id"]) for row in rows}
        changes = [QuotaChange(*one, remove=True) for one in without if one not in named]
        for row in rows:
            values = {name: value for name, value in row.items() if name not in {"user", "client_id"}}
            changes.append(QuotaChange(row["user"], row["client_id"], values))
        self.job.quota_table.alter(changes, EditAudit("ada", "console", "0", reason))

    def send_garbage(self) -> None:
        self.job.send(b"not json", b'{"event_time_ms": 1, "user": "", "client_id": "<script>alert(1)</script>"}')

    def live(self, seconds: int, step_ms: int = 1_000) -> None:
        """Let seconds pass, with a micro-batch at the end of each step."""
        for _ in range(seconds * 1_000 // step_ms):
            held = self._held()
            events = [
                {
                    "event_time_ms": self.now_ms,
                    "user": sender.user,
                    "client_id": sender.client_id,
                    "broker_id": sender.broker_id,
                    "request_count": 20,
                    **{name: int(rate * step_ms / 1_000) for name, rate in sender.rates(self._seconds).items()},
                }
                for sender in self.senders
                if not any(record.holds(sender.user, sender.client_id) for record in held)
            ]
            self.job.send(json.dumps(events).encode())
            self.job.clock.advance(step_ms)
            self._seconds += step_ms / 1_000
            self.job.step()
        self._store()

    def roll_up(self) -> None:
        settings = self.job.settings.tables
        RollUps(settings, self.job.tables, QuotaTable(settings.root)).step()
        self._store()

    def restart(self) -> None:
        self.job.start()

    def _store(self) -> None:
        if self._at_once:
            self.job.store()
            self.job.rates.step()

    def _held(self) -> list[ThrottleRecord]:
        newest = {record.target: record for record in self.job.broker.records[-200:]}
        return [
            record
            for record in newest.values()
            if record.action == "throttle" and record.throttled_until_ms > self.now_ms
        ]


START_MS: Final = 1_700_000_040_000
"""On a minute's begin."""


def quota(user: str, client_id: str, **columns: Any) -> dict[str, Any]:
    """A row of `quotas`; what is not given is none."""
    bounds = dict.fromkeys(("producer_byte_rate", "consumer_byte_rate", "request_percentage", "owner", "note"))
    return {"user": user, "client_id": client_id, **bounds, "mode": "enforce", **columns}


QUOTAS: Final = (
    quota("alice", "etl", producer_byte_rate=100_000.0, owner="data-platform", note="nightly loads"),
    quota("search", "", consumer_byte_rate=100_000.0, owner="search"),
    quota("web", "", producer_byte_rate=400_000.0, owner="web"),
    quota("ml", "", consumer_byte_rate=50_000.0, mode="shadow", owner="ml"),
    quota("<default>", "", producer_byte_rate=120_000.0, owner="platform"),
)

SENDERS: Final = (
    Sender("alice", "etl", lambda _: {"produced_bytes": 500_000}),
    Sender("search", "indexer", lambda _: {"fetched_bytes": 60_000}),
    Sender("web", "tracker", lambda _: {"produced_bytes": 200_000}),
    Sender("web", "tracker-ios", lambda _: {"produced_bytes": 100_000}),
    Sender("ml", "train", lambda _: {"fetched_bytes": 90_000}),
    Sender("guest", HOSTILE, lambda _: {"produced_bytes": 300_000}),
)


def reader_of(
    root: str,
    process: Callable[[], str | None] = lambda: "7",
    last_wait_ms: int | None = None,
    stream: StreamSettings | None = None,
) -> TablesReader:
    """A reader of tables with the job that seems to run on this machine."""
    settings = Settings(tables=TablesSettings(root=root), stream=stream or StreamSettings())
    return TablesReader(settings, JobSigns(process, lambda: last_wait_ms))


TENANT: Final = {"tenant": "retail", "user_patterns": ("web", "kiosk"), "producer_byte_rate": 600_000.0, "lend": True}
KIOSK: Final = Sender("kiosk", "till", lambda _: {"produced_bytes": 200_000})
"""It borrows what the other member of the tenant leaves free."""


def lived_shop(
    folder: Path, start_ms: int, seconds: int = 80, at_once: bool = True, has_tenant: bool = False
) -> LivedTables:
    """Tables after some seconds of it. Unless they are written at once, see `LivedTables`, that takes seconds."""
    senders, tenants = ((*SENDERS, KIOSK), (TENANT,)) if has_tenant else (SENDERS, ())
    tables = LivedTables(folder, QUOTAS, senders, start_ms, at_once=at_once, tenants=tenants)
    tables.live(20)
    tables.send_garbage()
    tables.live(seconds - 40)
    tables.edit([quota("alice", "etl", producer_byte_rate=150_000.0, owner="data-platform")], "month end")
    tables.live(20)
    tables.roll_up()
    return tables


GHOST: Final = Sender("ghost", "gone", lambda _: {"produced_bytes": 900_000})


def set_back_shop(folder: Path, step_ms: int) -> LivedTables:
    """The clocks were ahead by so much for 15 s, until 16 s ago; a ghost sent something only then."""
    tables = LivedTables(folder, QUOTAS, SENDERS, START_MS, at_once=True)
    tables.live(15)
    tables.job.clock.set_wall(tables.now_ms + step_ms)
    tables.senders = [*SENDERS, GHOST]
    tables.live(15)
    tables.job.clock.set_wall(tables.now_ms - step_ms)
    tables.senders = [*SENDERS]
    tables.live(16)
    return tables
