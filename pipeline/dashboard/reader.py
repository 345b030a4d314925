"""The one reader of the dashboard, and the feed of the page: a look at the tables each second, as one `State`.

Each box of a view is a query over the newest version of a table.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from threading import Event
from typing import Any, Final

import pyarrow as pa
from deltalake import DeltaTable

from pipeline.clock import wall_ms
from pipeline.dashboard.state import MOST_TENANTS, State, nearest_tenants, tenant_row
from pipeline.documents import json_text
from pipeline.errors import PipelineError, TableMissing, Unreachable
from pipeline.job.status import JobSigns, health, stalled_after_ms
from pipeline.process import Background
from pipeline.settings.model import EngineSettings, Settings
from pipeline.tables.opening import open_table
from pipeline.tables.port import Condition, is_local, table_uri
from pipeline.tables.queries import Row, StoredTable, newest_batch_under, rows_of
from pipeline.tables.quotas.source import QuotaSource
from pipeline.tables.quotas.table import QuotaTable, TenantTable
from pipeline.tables.rates import Rates, read_rates
from pipeline.tables.throttles import holds_of, recent_events, running_throttles
from quota.effective import resolved
from quota.entity import Owners
from quota.errors import QuotaError
from quota.snapshot import QuotaSnapshot

log = logging.getLogger(__name__)

_LOOK_EVERY_SECONDS: Final = 1.0
_FIRST_SECONDS: Final = 60.0


class Feed:
    """The newest state, by a look at the tables each second. `start` it, and `close` it at the end."""

    def __init__(self, reader: "TablesReader", now: Callable[[], int] = wall_ms) -> None:
        self._reader = reader
        self.now = now
        self.state: State | None = None
        """The newest state; None before the first look is done."""
        self._has_looked = Event()
        self._thread = Background("dashboard-feed", self._look, lambda _: None)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def close(self) -> None:
        """End, and wait until it has."""
        self._thread.close()

    def newest(self) -> State:
        """The newest state. Waits for the first one: 20 s were seen on a busy machine.

        Raises:
            Unreachable: It did not come in a minute.
        """
        self._has_looked.wait(0 if self.state else _FIRST_SECONDS)
        if self.state is None:
            msg = "the dashboard has not read the tables yet"
            raise Unreachable(msg, "repeat this in a second")
        return self.state

    def _look(self) -> float:
        try:
            self.state = self._reader.look(self.now())
            self._has_looked.set()
        except Exception:
            log.exception("the dashboard could not read the tables; it retries")
        return _LOOK_EVERY_SECONDS


def encoded(document: Any) -> bytes:
    """A document as JSON in UTF-8. A number that JSON does not have is an error."""
    return json_text(document, allow_nan=False).encode()


_SECONDS_SHOWN: Final = 180
_RECENT: Final = 200
_NEAREST: Final = 20
_MEMBERS: Final = 12


class TablesReader:
    """What the tables hold now. Where the settings name no scope, the quota table does. `look` is for one thread."""

    def __init__(self, settings: Settings, signs: JobSigns) -> None:
        self.root = settings.tables.root
        self._min_hold_ms = settings.purgatory.min_hold_ms
        self._signs = signs
        self._was_seen = is_local(self.root)
        self._stalled_after_ms = stalled_after_ms(settings)
        self._scope = settings.scope
        self._table: QuotaTable | None = None
        self._quotas: QuotaSource | None = None
        self._found: dict[str, Any] = {}
        self._owners = Owners(())
        self._tenant_owners: dict[str, str | None] = {}
        self._tenants_version = -1
        self._seq = 0
        self._last: tuple[Any, ...] = ()
        self._newest_seen: tuple[tuple[str, int], int] = (("", -1), 0)

    def look(self, now_ms: int) -> State:
        """The state at `now_ms`, by wall clock. Raises nothing: what cannot be read is in its `health`."""
        failure = None
        try:
            self._found = self._read(now_ms)
        except (PipelineError, QuotaError) as exc:
            log.warning("the tables cannot be read: %s", exc)
            failure = str(exc)
        batch = self._found.get("batch")
        process = self._signs.process()
        self._was_seen = self._was_seen or process is not None
        found = health(
            now_ms,
            batch,
            process,
            was_seen=self._was_seen,
            waited_ms=self._signs.last_wait_ms(),
            collected_ms=self._collected_ms(now_ms, batch),
            failure=failure,
            stalled_after_ms=self._stalled_after_ms,
        )
        newest = next((row["publish_seq"] for row in self._found.get("recent", ())), None)
        key = (found.state, batch, newest, self._found.get("rates_at_ms"), self._found.get("quotas"))
        if key != self._last:
            self._seq, self._last = self._seq + 1, key
        return State(now_ms=now_ms, seq=self._seq, health=found, **self._found)

    def snapshot(self) -> QuotaSnapshot:
        """The quotas in force; `TableMissing` without their table."""
        return self._source().pin()

    def engine_settings(self) -> EngineSettings:
        """The engine settings of the newest batch; the defaults before the first one."""
        batch = self._found.get("batch")
        return EngineSettings() if batch is None else EngineSettings.model_validate_json(batch["engine_settings"])

    def query(self, table: str, sql: str) -> list[Row]:
        """The answer to a query over `source`, the newest version of a table; no rows without the table."""
        with suppress(TableMissing):
            return rows_of(StoredTable(self.opened(table)).answer(sql))
        return []

    def opened(self, table: str) -> DeltaTable:
        """The newest version of a table; `TableMissing` without it."""
        return open_table(table_uri(self.root, table))

    def shown_once(self) -> str:
        """A condition on usage: of times that the clock showed twice, because it was set back, only the second."""
        batch = self._found.get("batch")
        if batch is None or not batch["time_epoch"]:
            return ""
        epoch: list[Condition] = [("time_epoch", "=", batch["time_epoch"])]
        begin_ms = StoredTable(self.opened("usage")).smallest("evaluated_at_ms", epoch) or 0
        return f"AND (time_epoch = {batch['time_epoch']} OR sample_start_ms < {begin_ms}) "

    def owner(self, row: Mapping[str, Any]) -> str | None:
        """Who is responsible for the client of a row: by its quotas, else by the tenant that the row has."""
        return self._owners.of(row["user"], row["client_id"]) or self._tenant_owners.get(row.get("tenant") or "")

    def _source(self) -> QuotaSource:
        if self._quotas is None:
            self._table = QuotaTable(self.root)
            self._quotas = QuotaSource(self._table)
        return self._quotas

    def _read(self, now_ms: int) -> dict[str, Any]:
        """All that the view Now shows."""
        quotas = self._read_quotas()
        batch = newest_batch_under(self.root)
        held = running_throttles(self.root, now_ms, min_hold_ms=self._min_hold_ms)
        recent = recent_events(self.root, _RECENT)
        levels = _levels(self.snapshot(), held)
        since = holds_of(self.root, held)
        running = [
            {**row, **since[row["publish_seq"]], "level": levels[_pair_of(row)][row["quota_type"]],
             "owner": self.owner(row)} for row in held
        ]  # fmt: skip
        return {
            "cluster": None if batch is None else batch["cluster"],
            "quotas": quotas,
            "batch": batch,
            "running": sorted(running, key=lambda row: (row["since_ms"], row["publish_seq"])),
            "recent": [{**row, "owner": self.owner(row)} for row in recent],
            "seconds": [] if batch is None else self._seconds(batch),
            **read_rates(self.root, self._read_rates),
        }

    def _read_quotas(self) -> dict[str, Any]:
        source = self._source()
        source.poll()
        known = self._found.get("quotas")
        if self._table is not None and (known is None or self._table.version() != known["newest_version"]):
            newest = self._table.read()
            self._owners = Owners(newest.rows)
            known = {"newest_version": newest.version, "rows": len(newest.rows), "mode": newest.mode}
            known |= {"scope": self._scope or newest.scope}
        self._read_tenant_owners(source.pin().tenants_version)
        return {**(known or {}), "version": source.pin().version}

    def _read_tenant_owners(self, version: int) -> None:
        if version != self._tenants_version:
            rows = TenantTable(self.root).read(version).rows if version >= 0 else ()
            self._tenant_owners = {row["tenant"]: row["owner"] for row in rows}
            self._tenants_version = version

    def _read_rates(self, rates: Rates) -> dict[str, Any]:
        per_second = ("produced_bytes_per_second", "fetched_bytes_per_second", "requests_per_second")
        return {
            "rates_at_ms": rates.as_of_ms,
            "nearest": [{**row, "owner": self.owner(row)} for row in rates.nearest(_NEAREST)],
            "tenants": self._tenants(rates),
            "counts": {
                **rates.counts(),
                "active_clients": int(rates.facts.get("active_clients", 0)),
                **{name: float(rates.facts.get(name, 0.0)) for name in per_second},
            },
        }

    def _tenants(self, rates: Rates) -> list[dict[str, Any]]:
        """The fullest tenants, with the members that use the most."""
        tenants = self.snapshot().tenants
        if not tenants:
            return []
        found = nearest_tenants(rates.tenants(tenants), tenants)[:MOST_TENANTS]
        members = rates.members({row["tenant"] for row in found}, _MEMBERS)
        return [tenant_row(row, members) for row in found]

    def _seconds(self, batch: Mapping[str, Any]) -> list[tuple[int, int, int, int]]:
        """(second, produced bytes, fetched bytes, requests) of the last minutes, oldest first, without gaps.

        Nothing of before the first usage that is known, and not the newest second, which is not over.
        """
        since_ms = batch["evaluated_at_ms"] - _SECONDS_SHOWN * 1_000
        names = ("produced_bytes", "fetched_bytes", "request_count")
        sums = ", ".join(f"sum({name}) AS {name}" for name in names)
        rows = self.query(
            "usage",
            f"SELECT sample_start_ms / 1000 AS second, {sums} FROM source "  # noqa: S608 - numbers of ours
            f"WHERE evaluated_at_ms >= {since_ms} AND sample_start_ms >= {since_ms} {_of_epoch(batch)}GROUP BY 1",
        )
        of_second = {row["second"]: row for row in rows}
        if not of_second:
            return []
        none = dict.fromkeys(names, 0)
        found = ((second, of_second.get(second, none)) for second in range(min(of_second), max(of_second)))
        return [(second, *(row[name] or 0 for name in names)) for second, row in found]  # type: ignore[misc]

    def _collected_ms(self, now_ms: int, batch: Mapping[str, Any] | None) -> int | None:
        """When the newest batch was collected: not after it was first seen, whatever its clock shows."""
        if batch is None:
            return None
        key = batch["query_id"], batch["batch_id"]
        seen_key, seen_ms = self._newest_seen
        self._newest_seen = key, min(now_ms, seen_ms if seen_key == key else batch["processed_at_ms"])
        return self._newest_seen[1]


def _of_epoch(batch: Mapping[str, Any]) -> str:
    """A condition on usage: of the time epoch of a batch."""
    return f"AND time_epoch = {batch['time_epoch']} " if batch["time_epoch"] else ""


def client_of(row: Mapping[str, Any]) -> tuple[str, str]:
    """The user and the client-id of a row."""
    return row["user"], row["client_id"]


def names_table(clients: Sequence[tuple[str, str]]) -> pa.Table:
    """Clients as the columns user and client_id."""
    return pa.table(
        {name: pa.array([one[at] for one in clients], pa.string()) for at, name in enumerate(("user", "client_id"))}
    )


def _pair_of(row: Mapping[str, Any]) -> tuple[str, str]:
    """The client of a row; of a user that is held the one without a client-id: no quota gives it another sensor."""
    return row["user"], row["client_id"] or ""


def _levels(snapshot: QuotaSnapshot, rows: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str], dict[str, int | None]]:
    """The level of each quota type for the clients of some rows, by the quotas in force."""
    clients = sorted({_pair_of(row) for row in rows})
    found: dict[tuple[str, str], dict[str, int | None]] = {client: {} for client in clients}
    for row in resolved(names_table(clients), snapshot) if clients else ():
        found[client_of(row)][row["quota_type"]] = row["level"]
    return found
