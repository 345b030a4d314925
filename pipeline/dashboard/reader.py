"""The one reader: it keeps the newest versions of all tables open, reads only what is new, and feeds the page.

`look` is called a few times per second, from one thread. What it found is one immutable `State`.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from threading import Event, Lock, Thread
from typing import Any, Final

import pyarrow as pa

from pipeline.clock import wall_ms
from pipeline.dashboard.live_rates import SECONDS_KEPT, USAGE_COLUMNS, LiveRates, RunningThrottles
from pipeline.dashboard.recent import TIME, NewRows, WatchedTable
from pipeline.dashboard.state import Health, State, health
from pipeline.documents import json_text
from pipeline.errors import PipelineError
from pipeline.process import JobSigns
from pipeline.settings.model import EngineSettings, PurgatorySettings
from pipeline.tables.address import table_missing
from pipeline.tables.layout import TABLES
from pipeline.tables.port import Condition, of_newest_epoch
from pipeline.tables.queries import FILTER_FIRST, smallest
from pipeline.tables.quotas.source import QuotaSource
from pipeline.tables.quotas.table import QuotaTable
from quota.current_rates import SensorRates
from quota.engine import Scope
from quota.errors import QuotaError
from quota.snapshot import QuotaSnapshot
from schemas.throttle_record import ThrottleEventRow

# The feed: one thread that reads the tables repeatedly and wakes requests that wait for the next state.

log = logging.getLogger(__name__)

LOOK_EVERY_SECONDS: Final = 1.0


class Feed:
    """The newest state. `start` it, and `close` it at the end."""

    def __init__(self, reader: "TablesReader", now: Callable[[], int] = wall_ms) -> None:
        self._reader = reader
        self._now = now
        self.state: State | None = None
        """The newest state; None before the first look is done."""
        self._texts: dict[bool, bytes] = {}
        self._lock = Lock()
        self._waiting: set[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = set()
        self._over = Event()
        self._thread = Thread(target=self._follow, name="dashboard-feed", daemon=True)

    @property
    def is_over(self) -> bool:
        """Whether it was closed."""
        return self._over.is_set()

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def end(self) -> None:
        """Ask it to end; the streams end, too. From any thread or signal handler."""
        self._over.set()

    def close(self) -> None:
        """End, and wait until it has; whoever waits is woken."""
        self.end()
        self._wake()
        if self._thread.ident is not None:
            self._thread.join()

    def text(self, whole: bool) -> bytes:
        """The newest state as JSON: the view Now, or only what every view needs. b"" before the first look."""
        state = self.state
        if state is None:
            return b""
        with self._lock:
            if whole not in self._texts:
                self._texts[whole] = encoded(state.summary() if whole else state.head())
            return self._texts[whole]

    async def next_state(self, seconds: float) -> None:
        """Return at the next look's end, or after some seconds."""
        one = (asyncio.get_running_loop(), asyncio.Event())
        with self._lock:
            self._waiting.add(one)
        try:
            async with asyncio.timeout(seconds):
                await one[1].wait()
        except TimeoutError:
            pass
        finally:
            with self._lock:
                self._waiting.discard(one)

    def _follow(self) -> None:
        while not self._over.is_set():
            try:
                state = self._reader.look(self._now())
            except Exception:
                log.exception("the dashboard could not read the tables; it retries")
            else:
                with self._lock:
                    self.state = state
                    self._texts = {}
                self._wake()
            self._over.wait(LOOK_EVERY_SECONDS)

    def _wake(self) -> None:
        with self._lock:
            waiting = list(self._waiting)
        for loop, event in waiting:
            if not loop.is_closed():
                loop.call_soon_threadsafe(event.set)


def encoded(document: Any) -> bytes:
    """A document as JSON in UTF-8. A number that JSON does not have is an error."""
    return json_text(document, allow_nan=False).encode()


_NEEDED: Final = ("quotas", "batches", "usage", "throttle_events")
_LOOK_BACK_MS: Final = 30 * 60_000
"""How far before the newest record the beginning of a running throttle is looked for."""
_LOOK_BACK_PART_MS: Final = 3 * 60_000
_BATCHES_KEPT: Final = 240
# Without instants: pyarrow converts them slowly.
_EVENT_COLUMNS: Final = tuple(
    name for name in ThrottleEventRow.model_fields if name not in {"date", "evaluated_at", "throttled_until"}
)


class TablesReader:
    """What is new in the tables, as a `State`. Without a scope, that of the quota table holds."""

    def __init__(
        self,
        root: str,
        signs: JobSigns,
        scope: Scope | None = None,
        min_hold_ms: int = PurgatorySettings().min_hold_ms,
    ) -> None:
        self.root = root
        self.tables: Mapping[str, WatchedTable] = {name: WatchedTable(root, name) for name in TABLES}
        self.quota_table: QuotaTable | None = None
        self.batches: list[dict[str, Any]] = []
        """The newest rows of `batches`, oldest first."""
        self.epoch_begin_ms = 0
        """When the newest time epoch began, as far as usage is kept: usage of older ones counts until then."""
        self._new_usage = NewRows(self.tables["usage"], TIME)
        self._new_records = NewRows(self.tables["throttle_events"], "publish_seq")
        self.min_hold_ms = min_hold_ms
        self._signs = signs
        self._was_seen = False
        self._scope = scope
        self._quotas: QuotaSource | None = None
        self._quota_facts: dict[str, Any] = {}
        self.owners: dict[tuple[str, str], str | None] = {}
        """Who is responsible, by user and client-id of a row of `quotas`."""
        self._rates: LiveRates | None = None
        self._rates_epoch = 0
        self._running = RunningThrottles()
        self._resolved: dict[tuple[str, str], list[dict[str, Any]]] = {}
        self._committed_at_ms: dict[str, int | None] = {}
        self._seq = 0
        self._sensors = SensorRates.of(())
        self._last_health: Health | None = None
        self._newest_seen: tuple[tuple[str, int], int] = (("", -1), 0)

    def look(self, now_ms: int) -> State:
        """The state at `now_ms`, by wall clock. Raises nothing: what cannot be read is in its `health`."""
        new = {name for name, table in self.tables.items() if table.refresh(now_ms)}
        failure = next((str(cause) for name in _NEEDED if (cause := self.tables[name].failure) is not None), None)
        try:
            for name in new:
                self._committed_at_ms[name] = self.tables[name].committed_at_ms()
            if failure is None:
                self._read(new)
        except (PipelineError, QuotaError) as exc:
            log.warning("the tables cannot be read: %s", exc)
            failure = str(exc)
        return self._state(now_ms, failure, bool(new))

    def snapshot(self) -> QuotaSnapshot | None:
        """The quotas in force; None before they could be read."""
        return None if self._quotas is None else self._quotas.pin()

    def quotas_at(self, version: int) -> QuotaSnapshot:
        """The quotas of a version. Raises `TableMissing` if it does not exist any more."""
        if self._quotas is None:
            raise table_missing(self.tables["quotas"].uri)
        return self._quotas.at(version)

    def engine_settings(self) -> EngineSettings:
        """Those of the newest batch; the defaults before it."""
        return EngineSettings() if self._rates is None else self._rates.settings

    @property
    def time_epoch(self) -> int:
        """The newest time epoch of usage."""
        return self._new_usage.time_epoch

    def clients_seen(self) -> dict[tuple[str, str], int]:
        """Clients of the last minutes, and when each used something, in epoch ms. For any thread."""
        return {} if self._rates is None else self._rates.seen()

    def _read(self, new: set[str]) -> None:
        if "quotas" in new or self._quotas is None:
            self._read_quotas()
        if "batches" in new:
            self._read_batches()
        if "usage" in new:
            self._read_usage()
        if "throttle_events" in new:
            self._read_events()

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
        self.owners = {(row["user"], row["client_id"]): row["owner"] for row in newest.rows}
        self._resolved = {}
        if self._rates is not None:
            self._rates.load(self._quotas.pin(), self.owners, self._window(self._rates))

    def _read_batches(self) -> None:
        table = self.tables["batches"]
        newest = table.newest_instant()
        if newest is None:
            return
        since_ms = newest.evaluated_at_ms - 120_000
        if self.batches and self.batches[-1]["time_epoch"] == newest.time_epoch:
            since_ms = self.batches[-1]["evaluated_at_ms"]
        rows = table.rows(None, [*of_newest_epoch(newest.time_epoch), ("evaluated_at_ms", ">=", since_ms)])
        known = {(row["query_id"], row["batch_id"]) for row in self.batches}
        new = (row for row in rows if (row["query_id"], row["batch_id"]) not in known)
        found = [row | {"time_epoch": newest.time_epoch} for row in new]
        # Those of one instant by the wall clock, which may have been set back since.
        found.sort(key=lambda row: (row["evaluated_at_ms"], row["processed_at_ms"], row["batch_id"]))
        self.batches = [*self.batches, *found][-_BATCHES_KEPT:]

    def _read_usage(self) -> None:
        if not self.batches or self._quotas is None:
            return
        settings = EngineSettings.model_validate_json(self.batches[-1]["engine_settings"])
        new = self._new_usage.follow(USAGE_COLUMNS)
        time_epoch = self.time_epoch
        if self._rates is None or self._rates.settings != settings or self._rates_epoch != time_epoch:
            self._begin_rates(settings)
        elif new is not None:
            self._record(self._rates, new)

    def _begin_rates(self, settings: EngineSettings) -> None:
        """A new engine, with the usage of its windows; and sums of some minutes before."""
        table, snapshot = self.tables["usage"], self.snapshot()
        newest = table.newest_instant()
        if newest is None or snapshot is None or self._quotas is None:
            return
        rates = LiveRates(settings, self._scope or self._quotas.scope)
        time_epoch, newest_ms = newest
        begin_ms = newest_ms - settings.rate_span_ms
        rates.load(snapshot, self.owners)
        rates.add_totals(self._second_sums(newest_ms - SECONDS_KEPT * 1_000, begin_ms, time_epoch))
        self._rates, self._rates_epoch = rates, time_epoch
        self.epoch_begin_ms = 0
        if time_epoch:
            of_epoch: list[Condition] = [("time_epoch", "=", time_epoch)]
            self.epoch_begin_ms = smallest(table.opened(), "evaluated_at_ms", of_epoch, FILTER_FIRST) or 0
        since: list[Condition] = [*of_newest_epoch(time_epoch), ("evaluated_at_ms", ">=", begin_ms)]
        self._record(rates, table.read(USAGE_COLUMNS, since))

    def _second_sums(self, since_ms: int, until_ms: int, time_epoch: int) -> list[dict[str, Any]]:
        """The sums of usage of a time epoch that was evaluated in a span, by `second`; 0 = of every time epoch."""
        found: list[dict[str, Any]] = (
            self.tables["usage"]
            .query(
                "SELECT sample_start_ms / 1000 AS second, sum(produced_bytes) AS produced_bytes, "  # noqa: S608 - our numbers
                "sum(fetched_bytes) AS fetched_bytes, sum(request_count) AS request_count FROM source "
                f"WHERE evaluated_at_ms >= {since_ms} AND evaluated_at_ms < {until_ms} "
                f"{f'AND time_epoch = {time_epoch} ' if time_epoch else ''}GROUP BY 1"
            )
            .to_pylist()
        )
        return found

    def _record(self, rates: LiveRates, rows: pa.Table) -> None:
        if rows.num_rows:
            # Late rows would not count, but an engine refuses windows in the future of its instant.
            rates.record(rows, max(rows["evaluated_at_ms"].to_pylist()))

    def _window(self, rates: LiveRates) -> pa.Table:
        since: Condition = ("evaluated_at_ms", ">=", rates.at_ms - rates.settings.rate_span_ms)
        until: Condition = ("evaluated_at_ms", "<=", rates.at_ms)
        return self.tables["usage"].read(USAGE_COLUMNS, [*of_newest_epoch(self._rates_epoch), since, until])

    def _read_events(self) -> None:
        new = self._new_records.follow(_EVENT_COLUMNS)
        if self._running.newest_seq >= 0:
            self._running.apply([] if new is None else new.select(_EVENT_COLUMNS).to_pylist())
            return
        table = self.tables["throttle_events"]
        newest = table.newest_instant()
        if newest is None:
            return
        # A throttle lasts for seconds: whoever is held has a record in the newest time epoch, or soon will.
        # In parts: as rows they take ten times the memory that they take in the table.
        begin_ms = newest.evaluated_at_ms - _LOOK_BACK_MS
        for since_ms in range(begin_ms, newest.evaluated_at_ms + 1, _LOOK_BACK_PART_MS):
            part: list[Condition] = [("evaluated_at_ms", ">=", since_ms)]
            part += [("evaluated_at_ms", "<", since_ms + _LOOK_BACK_PART_MS)]
            self._running.apply(table.rows(_EVENT_COLUMNS, [*of_newest_epoch(newest.time_epoch), *part]))

    def _state(self, now_ms: int, failure: str | None, is_new: bool) -> State:
        process = self._signs.process()
        self._was_seen = self._was_seen or process is not None
        batch = self.batches[-1] if self.batches else None
        found = health(
            now_ms,
            batch,
            process,
            was_seen=self._was_seen,
            waited_ms=self._signs.last_wait_ms(),
            collected_ms=self._collected_ms(now_ms),
            failure=failure,
        )
        running, recent = self._running.running(now_ms, self.min_hold_ms), self._running.recent()
        if is_new or self._last_health is None or found.state != self._last_health.state:
            self._seq += 1
        self._last_health = found
        rates = self._rates
        if is_new and rates is not None:  # ten thousand rates take as long as all else of a look
            self._sensors = rates.sensors()
        return State(
            now_ms=now_ms,
            seq=self._seq,
            health=found,
            cluster=None if batch is None else batch["cluster"],
            quotas=self._quota_facts,
            batch=batch,
            running=running,
            levels=self._levels([*(one.row for one in running), *recent]),
            sensors=self._sensors,
            rates_at_ms=0 if rates is None else rates.at_ms,
            seconds=() if rates is None else rates.totals(),
            active_clients=0 if rates is None else rates.active_clients,
            per_second=(0.0, 0.0, 0.0) if rates is None else rates.per_second,
            recent=recent,
            sources=[self._source(name, table) for name, table in self.tables.items()],
            min_hold_ms=self.min_hold_ms,
        )

    def _source(self, name: str, table: WatchedTable) -> dict[str, Any]:
        newest = {"version": table.version, "committed_at_ms": self._committed_at_ms.get(name)}
        return {"name": name, **newest, "failure": None if table.failure is None else str(table.failure)}

    def _collected_ms(self, now_ms: int) -> int | None:
        """When the newest batch was collected: not after it was first seen, whatever its clock shows."""
        if not self.batches:
            return None
        batch = self.batches[-1]
        key = batch["query_id"], batch["batch_id"]
        seen_key, seen_ms = self._newest_seen
        self._newest_seen = key, min(now_ms, seen_ms if seen_key == key else batch["processed_at_ms"])
        return self._newest_seen[1]

    def _levels(self, rows: list[Mapping[str, Any]]) -> Mapping[tuple[str, str, str], Mapping[str, Any]]:
        """The levels of the clients of these records, by the quotas in force; each client is resolved once."""
        if self._rates is None:
            return {}
        clients = {(row["user"], row["client_id"]) for row in rows}
        self._resolved = {client: self._resolved[client] for client in clients & self._resolved.keys()}
        new = sorted(clients - self._resolved.keys())
        if new:
            for row in self._rates.resolve(new):
                self._resolved.setdefault((row["user"], row["client_id"]), []).append(row)
        return {(*client, row["quota_type"]): row for client, of_client in self._resolved.items() for row in of_client}
