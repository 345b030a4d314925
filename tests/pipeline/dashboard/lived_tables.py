"""Tables that a real job has written, without Kafka and Spark: its clients send, are throttled, and obey."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.settings.model import EngineSettings, Settings, StreamSettings
from pipeline.stream.job_tables import RollUps
from pipeline.tables.layout import TABLES, create_missing
from pipeline.tables.quotas.edit import QuotaChange
from pipeline.tables.quotas.table import EditAudit, QuotaTable, TenantTable
from pipeline.tables.quotas.tenants import new_tenant
from schemas.throttle_record import ThrottleRecord
from tests.faults.hand_job import HandJob

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
            create_missing(self.root, [TABLES["tenants"]])
            rows = [{**new_tenant(row["tenant"]), **row} for row in tenants]
            TenantTable(self.root).commit(lambda _: rows, EditAudit("ada", "console", "0", "who shares what"))
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
