"""The one reader: it keeps the newest versions of all tables open, and reads only what is new.

`look` is called a few times per second, from one thread. What it found is one immutable `State`.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from pipeline.activity import JobSigns
from pipeline.dashboard.batch_parts import BatchParts
from pipeline.dashboard.health import Health, health
from pipeline.dashboard.live_rates import SECONDS_KEPT, USAGE_COLUMNS, LiveRates, SensorRate
from pipeline.dashboard.recent_table import RecentTables
from pipeline.dashboard.running_throttles import RunningThrottles
from pipeline.dashboard.state import Source, State
from pipeline.dashboard.watched_table import WatchedTable
from pipeline.errors import PipelineError
from pipeline.settings.model import EngineSettings
from pipeline.tables.errors import TableMissing
from pipeline.tables.layout import TABLES
from pipeline.tables.port import Condition
from pipeline.tables.quotas.source import QuotaSource
from pipeline.tables.quotas.table import QuotaTable
from quota.engine import Scope
from quota.errors import QuotaError
from quota.snapshot import QuotaSnapshot
from schemas.throttle_record import ThrottleEventRow

log = logging.getLogger(__name__)

_NEEDED: Final = ("quotas", "batches", "usage", "throttle_events")
_LOOK_BACK_MS: Final = 6 * 3_600_000
"""How far before the newest record the beginning of a running throttle is looked for."""
_BATCHES_KEPT: Final = 240
_MOST_RECENT: Final = 200
# No instants: a table of pyarrow tells them slowly.
_EVENT_COLUMNS: Final = tuple(
    name for name in ThrottleEventRow.model_fields if name not in {"date", "evaluated_at", "throttled_until"}
)


class TablesReader:
    """What is new in the tables, as a `State`.

    Args:
        root: Root of the tables.
        signs: Of the job.
        scope: Of the quotas; None = what the quota table says.
    """

    def __init__(self, root: str, signs: JobSigns, scope: Scope | None = None) -> None:
        self.root = root
        self.tables: Mapping[str, WatchedTable] = {name: WatchedTable(root, name) for name in TABLES}
        self.quota_table: QuotaTable | None = None
        self.batches: list[dict[str, Any]] = []
        """The newest rows of `batches`, oldest first."""
        self.batch_parts = BatchParts()
        self.recent = RecentTables.of(self.tables)
        self._signs = signs
        self._was_seen = False
        self._scope = scope
        self._quotas: QuotaSource | None = None
        self._quota_facts: dict[str, Any] = {}
        self._owners: dict[tuple[str, str], str | None] = {}
        self._rates: LiveRates | None = None
        self._running = RunningThrottles()
        self._resolved: dict[tuple[str, str], list[dict[str, Any]]] = {}
        self._committed_at_ms: dict[str, int | None] = {}
        self._seq = 0
        self._sensors: Sequence[SensorRate] = ()
        self._last_health: Health | None = None

    def look(self, now_ms: int) -> State:
        """The state at `now_ms`, by wall clock. Raises nothing: what can not be read is in its `health`."""
        new = {name for name, table in self.tables.items() if table.refresh(now_ms)}
        failure = self._failure()
        try:
            for name in new:
                self._committed_at_ms[name] = self.tables[name].committed_at_ms()
            if failure is None:
                self._read(new)
        except (PipelineError, QuotaError) as exc:
            log.warning("the tables can not be read: %s", exc)
            failure = str(exc)
        return self._state(now_ms, failure, bool(new))

    def owners(self) -> Mapping[tuple[str, str], str | None]:
        """Who is responsible for a quota, by user and client-id of its row."""
        return self._owners

    def snapshot(self) -> QuotaSnapshot | None:
        """The quotas in force; None before they could be read."""
        return None if self._quotas is None else self._quotas.pin()

    def quotas_at(self, version: int) -> QuotaSnapshot:
        """The quotas of a version.

        Raises:
            TableMissing: There is no such version any more.
        """
        if self._quotas is None:
            raise TableMissing(self.tables["quotas"].uri)
        return self._quotas.at(version)

    def engine_settings(self) -> EngineSettings:
        """Those of the newest batch; the defaults before it."""
        return EngineSettings() if self._rates is None else self._rates.settings

    def _failure(self) -> str | None:
        return next(
            (str(failure) for name in _NEEDED if (failure := self.tables[name].failure) is not None),
            None,
        )

    def _read(self, new: set[str]) -> None:
        if "quotas" in new or self._quotas is None:
            self._read_quotas()
        if "batches" in new:
            self._read_batches()
        if "usage" in new:
            self._read_usage()
        if "throttle_events" in new:
            self._read_events()
        if "decisions" in new and self.recent.decisions.keeps:
            self.recent.decisions.follow()

    def _read_quotas(self) -> None:
        if self.quota_table is None or self._quotas is None:
            self.quota_table = QuotaTable(self.root)
            self._quotas = QuotaSource(self.quota_table)
        self._quotas.poll()
        newest = self.quota_table.read()
        self._quota_facts = {
            "version": self._quotas.pin().version,
            "newest_version": newest.version,
            "rows": len(newest.rows),
            "mode": newest.mode,
            "scope": self._scope or newest.scope,
        }
        self._owners = {(row["user"], row["client_id"]): row["owner"] for row in newest.rows}
        self._resolved = {}
        if self._rates is not None:
            self._rates.load(self._quotas.pin(), self._owners, self._window(self._rates))

    def _read_batches(self) -> None:
        table = self.tables["batches"]
        if self.batches:
            since = self.batches[-1]["processed_at_ms"]
            rows = table.rows(None, [("evaluated_at_ms", ">=", self.batches[-1]["evaluated_at_ms"])])
            known = {(row["query_id"], row["batch_id"]) for row in self.batches[-20:]}
            found = [row for row in rows if (row["query_id"], row["batch_id"]) not in known]
            found = [row for row in found if row["processed_at_ms"] >= since]
        else:
            newest_ms = table.newest_value("evaluated_at_ms")
            if newest_ms is None:
                return
            found = table.rows(None, [("evaluated_at_ms", ">=", newest_ms - 120_000)])
        found.sort(key=lambda row: (row["processed_at_ms"], row["batch_id"]))
        self.batches = [*self.batches, *found][-_BATCHES_KEPT:]

    def _read_usage(self) -> None:
        if not self.batches or self._quotas is None:
            return
        settings = EngineSettings.model_validate_json(self.batches[-1]["engine_settings"])
        new = self.recent.usage.follow(USAGE_COLUMNS)
        if self._rates is None or self._rates.settings != settings:
            self._begin_rates(settings)
        elif new is not None:
            self._record(self._rates, new)

    def _begin_rates(self, settings: EngineSettings) -> None:
        """A new engine, with the usage of its windows; and sums of some minutes before."""
        table, quotas = self.tables["usage"], self._quotas
        newest_ms = table.newest_value("evaluated_at_ms")
        if newest_ms is None or quotas is None:
            return
        scope = self._scope or quotas.scope
        rates = LiveRates(settings, scope)
        begin_ms = newest_ms - settings.rate_span_ms
        rates.load(quotas.pin(), self._owners)
        sums = table.query(
            "SELECT sample_start_ms / 1000 AS second, sum(produced_bytes) AS produced_bytes, "  # noqa: S608 - our numbers
            "sum(fetched_bytes) AS fetched_bytes, sum(request_count) AS request_count FROM source "
            f"WHERE evaluated_at_ms >= {newest_ms - SECONDS_KEPT * 1_000} AND evaluated_at_ms < {begin_ms} GROUP BY 1"
        )
        names = ("produced_bytes", "fetched_bytes", "request_count")
        seconds_ms = [second * 1_000 for second in sums["second"].to_pylist()]
        rates.add_totals(seconds_ms, {name: sums[name].to_pylist() for name in names})
        self._rates = rates
        self._record(rates, table.read(USAGE_COLUMNS, [("evaluated_at_ms", ">=", begin_ms)]))

    def _record(self, rates: LiveRates, rows: pa.Table) -> None:
        if not rows.num_rows:
            return
        # Late rows would not count, but an engine refuses windows in the future of its instant.
        rates.record(rows, max(rows["evaluated_at_ms"].to_pylist()))

    def _window(self, rates: LiveRates) -> pa.Table:
        since: Condition = ("evaluated_at_ms", ">=", rates.at_ms - rates.settings.rate_span_ms)
        until: Condition = ("evaluated_at_ms", "<=", rates.at_ms)
        return self.tables["usage"].read(USAGE_COLUMNS, [since, until])

    def _read_events(self) -> None:
        new = self.recent.events.follow(_EVENT_COLUMNS)
        if self._running.newest_seq >= 0:
            self._running.apply([] if new is None else new.select(_EVENT_COLUMNS).to_pylist())
            return
        table = self.tables["throttle_events"]
        newest_ms = table.newest_value("evaluated_at_ms")
        if newest_ms is None:
            return
        # Two steps, so that a quiet cluster with a long history costs as little as a busy one.
        short = table.rows(_EVENT_COLUMNS, [("evaluated_at_ms", ">=", newest_ms - _LOOK_BACK_MS // 12)])
        self._running.apply(short)

    def _state(self, now_ms: int, failure: str | None, is_new: bool) -> State:
        process = self._signs.process()
        self._was_seen = self._was_seen or process is not None
        batch = self.batches[-1] if self.batches else None
        waited_ms = self._signs.last_wait_ms()
        found = health(now_ms, batch, process, was_seen=self._was_seen, waited_ms=waited_ms, failure=failure)
        running, recent = self._running.running(now_ms), self._running.recent(_MOST_RECENT)
        if is_new or self._last_health is None or found.state != self._last_health.state:
            self._seq += 1
        self._last_health = found
        rates = self._rates
        return State(
            now_ms=now_ms,
            seq=self._seq,
            health=found,
            cluster=None if batch is None else batch["cluster"],
            quotas=self._quota_facts,
            batch=batch,
            running=running,
            levels=self._levels([*(one.row for one in running), *recent]),
            sensors=self._told_sensors(is_new),
            rates_at_ms=0 if rates is None else rates.at_ms,
            seconds=() if rates is None else rates.totals(),
            active_clients=0 if rates is None else rates.active_clients,
            recent=recent,
            sources=tuple(
                Source(name, table.version, self._committed_at_ms.get(name), _told(table.failure))
                for name, table in self.tables.items()
            ),
        )

    def _told_sensors(self, is_new: bool) -> Sequence[SensorRate]:
        """All rates; those of the last look if nothing is new, as ten thousand take as long as all else of a look."""
        if is_new:
            self._sensors = () if self._rates is None else self._rates.sensors()
        return self._sensors

    def _levels(self, rows: list[Mapping[str, Any]]) -> Mapping[tuple[str, str, str], Mapping[str, Any]]:
        """The levels of the clients of these records, by the quotas in force; each client is resolved once."""
        if self._rates is None:
            return {}
        clients = {(row["user"], row["client_id"]) for row in rows}
        self._resolved = {client: self._resolved[client] for client in clients & self._resolved.keys()}
        new = sorted(clients - self._resolved.keys())
        if new:
            found = self._rates.resolve([user for user, _ in new], [client_id for _, client_id in new])
            for row in found:
                self._resolved.setdefault((row["user"], row["client_id"]), []).append(row)
        return {(*client, row["quota_type"]): row for client, of_client in self._resolved.items() for row in of_client}


def _told(failure: PipelineError | None) -> str | None:
    return None if failure is None else str(failure)
