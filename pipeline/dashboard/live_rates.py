"""Rates of now by the engine itself, with the job's usage, windows and quotas, so the same O; and who is throttled.

Only what is new is recorded. Two engines look at it where there are shadow quotas: one as the job enforces, and one as
if shadow quotas were enforced, as `quota.current_rates` does.
"""

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from arro3.core import Array, DataType
from numpy.typing import NDArray

from pipeline.dashboard.recent import taken
from pipeline.settings.model import EngineSettings
from pipeline.throttle.assembly import new_engine
from quota.arrays import Flags, Ids, Ints
from quota.current_rates import SensorRates, mean_span_seconds, rates_of
from quota.engine import QuotaEngine, Scope
from quota.entity import Level, entity_at
from quota.snapshot import QuotaSnapshot
from quota.usage import COLUMNS
from schemas.throttle_record import counts, written_ms

SECONDS_KEPT: Final = 300
USAGE_COLUMNS: Final = ("query_id", "batch_id", "evaluated_at_ms", *COLUMNS, "request_count")
_TOTALS: Final = ("produced_bytes", "fetched_bytes", "request_count")
_FORGET_MS: Final = 300_000
_EXPIRIES_PER_SPAN: Final = 4


class LiveRates:
    """Usage goes in as it is stored; the rates of the newest instant come out. For one thread."""

    def __init__(self, settings: EngineSettings, scope: Scope) -> None:
        self.settings = settings
        self.scope: Scope = scope
        self._enforced = self._new_engine()
        self._shadow: QuotaEngine | None = None
        self._of_shadow: set[tuple[str, str]] = set()
        self._owners: Mapping[tuple[str, str], str | None] = {}
        self._clients = SeenClients.none(self._names())
        self._totals: dict[int, Counter[str]] = {}
        self._windows: dict[int, Counter[str]] = {}
        self.at_ms = 0
        """The instant of the rates; 0 before the first usage."""
        self._active: Ids = np.zeros(0, np.int64)
        self._entities: pa.Table | None = None

    @property
    def active_clients(self) -> int:
        """The number of clients that used anything in the windows of the rates, as `top` counts them."""
        return self._clients.number_since(self._after_ms)

    @property
    def per_second(self) -> tuple[float, float, float]:
        """Produced bytes, fetched bytes and requests per second over the windows of the rates, as `top` has them."""
        if not self._windows:
            return 0.0, 0.0, 0.0
        settings = self.settings
        seconds = mean_span_seconds(self.at_ms, min(self._windows), settings.num_samples, settings.sample_window_ms)
        produced, fetched, requests = (sum(sums[name] for sums in self._windows.values()) for name in _TOTALS)
        return produced / seconds, fetched / seconds, requests / seconds

    def seen(self) -> "SeenClients":
        """Clients of the last minutes, without their brokers. For any thread."""
        return self._clients.by_client()

    def load(
        self, snapshot: QuotaSnapshot, owners: Mapping[tuple[str, str], str | None], window: pa.Table | None = None
    ) -> None:
        """Put quotas in force.

        Args:
            owners: By user and client-id of the row.
            window: Usage of the windows of the rates, as far as it was recorded. A second engine, which the first
                shadow quota needs, begins with it.
        """
        self._enforced.load_quotas(snapshot)
        self._of_shadow = {(quota.user, quota.client_id) for quota in snapshot.quotas if quota.mode == "shadow"}
        self._owners = owners
        if not self._of_shadow:
            self._shadow = None
            return
        is_new = self._shadow is None
        shadow = self._shadow = self._shadow or self._new_engine()
        shadow.load_quotas(snapshot.with_shadow_enforced())
        if is_new and window is not None and window.num_rows:
            shadow.record(window, self.at_ms)

    def record(self, usage: pa.Table, at_ms: int) -> None:
        """Take the usage of further batches, of which the newest was evaluated at an instant."""
        before_ms, self.at_ms = self.at_ms, max(self.at_ms, at_ms)
        idle_ms = self.settings.late_after_ms
        step_ms = idle_ms // _EXPIRIES_PER_SPAN
        for engine in self._engines():
            engine.record(usage, self.at_ms)
            if self.at_ms // step_ms > before_ms // step_ms:
                engine.expire_idle(self.at_ms, idle_ms)
        self._clients = self._clients.with_usage(usage, self.at_ms)
        self._add_totals(usage)

    def add_totals(self, sums: Iterable[Mapping[str, int | None]]) -> None:
        """Take sums by `second` of a time before the first `record`."""
        for row in sums:
            self._totals.setdefault(row["second"] or 0, Counter()).update({name: row[name] or 0 for name in _TOTALS})

    def totals(self) -> list[tuple[int, int, int, int]]:
        """(second, produced bytes, fetched bytes, requests) of the last minutes, oldest first, without gaps.

        Nothing of before the first usage that is known.
        """
        if not self._totals:
            return []
        last = max(self._totals)
        first = max(min(self._totals), last - SECONDS_KEPT + 1)
        none: Counter[str] = Counter()
        found = ((second, self._totals.get(second, none)) for second in range(first, last + 1))
        return [(second, *(sums[name] for name in _TOTALS)) for second, sums in found]  # type: ignore[misc]

    def sensors(self) -> SensorRates:
        """Every sensor with usage under a bound, the one nearest to its bound first."""
        entities = self._active_clients()
        enforced, *seen = (rates_of(engine, entities, self.at_ms, self._owners) for engine in self._engines())
        return enforced.nearest_first(*(rates.in_shadow(self._of_shadow) for rates in seen))

    def resolve(self, clients: Sequence[tuple[str, str]]) -> list[dict[str, Any]]:
        """The level, owner and mode of each quota type for clients, as `QuotaEngine.resolve` gives them."""
        names = names_table(clients)
        if self.scope == "broker":
            names = names.append_column("broker_id", _texts([""] * len(clients)))
        rows = self._enforced.resolve(names).to_pylist()
        return [{**row, "owner": self._owner(row["level"], row["user"], row["client_id"])} for row in rows]

    def _owner(self, level: int | None, user: str, client_id: str) -> str | None:
        return None if level is None else self._owners.get(entity_at(Level(level), user, client_id))

    def _new_engine(self) -> QuotaEngine:
        """Without debts, which no rate needs."""
        return new_engine(self.settings.model_copy(update={"carry_debt": False}), self.scope)

    def _names(self) -> list[str]:
        return ["user", "client_id", *(["broker_id"] if self.scope == "broker" else [])]

    def _engines(self) -> list[QuotaEngine]:
        return [self._enforced] if self._shadow is None else [self._enforced, self._shadow]

    def _add_totals(self, usage: pa.Table) -> None:
        starts_ms = _floats(usage["sample_start_ms"]).astype(np.int64)
        if not len(starts_ms):
            return
        each, of_row = np.unique(starts_ms, return_inverse=True)
        for name in _TOTALS:
            sums = np.bincount(of_row, np.nan_to_num(_floats(usage[name])))
            for start_ms, amount in zip(each.tolist(), sums.tolist(), strict=True):
                self._totals.setdefault(start_ms // 1_000, Counter())[name] += int(amount)
                self._windows.setdefault(start_ms, Counter())[name] += int(amount)
        self._windows = {start_ms: sums for start_ms, sums in self._windows.items() if start_ms > self._after_ms}
        for second in [second for second in self._totals if second < max(self._totals) - 2 * SECONDS_KEPT]:
            del self._totals[second]

    @property
    def _after_ms(self) -> int:
        """Samples that began later are part of the rates."""
        return self.at_ms - self.settings.late_after_ms

    def _active_clients(self) -> pa.Table:
        """Those with usage in the windows of the rates, by name: no others have a rate."""
        active = self._clients.places_since(self._after_ms)
        if self._entities is None or not np.array_equal(active, self._active):
            self._active, self._entities = active, self._clients.named(active)
        return self._entities


@dataclass(frozen=True, slots=True)
class SeenClients:
    """Clients of the last minutes, and when each used something: 60 bytes a client. Immutable, so for any thread.

    A client is known by the hash of its names, as in `RecentRows`.

    Attributes:
        names: user and client_id, and broker_id where rates are by broker.
        hashes: int64[n], of the rows of `names`, sorted; `order` has the row of each.
        sample_ms: int64[n], the begin of the newest sample with usage.
        seen_ms: int64[n], when the newest usage was evaluated.
    """

    names: pa.Table
    hashes: Ids
    order: Ids
    sample_ms: Ints
    seen_ms: Ints

    @classmethod
    def none(cls, names: Sequence[str] = ("user", "client_id")) -> "SeenClients":
        """No client."""
        empty = np.zeros(0, np.int64)
        return cls(pa.schema([(name, pa.string()) for name in names]).empty_table(), *[empty] * 4)

    def with_usage(self, usage: pa.Table, at_ms: int) -> "SeenClients":
        """With the clients of further usage, and without those that have used nothing for 5 minutes before `at_ms`."""
        if not usage.num_rows:
            return self
        names = pa.table({name: usage[name] for name in self.names.column_names})
        columns = [column.to_pylist() for column in names.columns]
        hashes = _hashes(columns)
        new, rows = np.unique(hashes, return_index=True)
        rows = rows[~self._found(new)[1]]
        known = self._with_rows(taken(names, rows), hashes[rows])
        places = known._found(hashes)[0]
        np.maximum.at(known.sample_ms, places, _floats(usage["sample_start_ms"]).astype(np.int64))
        known.seen_ms[places] = at_ms
        is_kept = known.seen_ms >= at_ms - _FORGET_MS
        return known if is_kept.all() else known._only(is_kept)

    def by_client(self) -> "SeenClients":
        """The same without broker_id: of each client the newest times."""
        if self.names.num_columns == _OF_CLIENT:
            return self
        rows = self.names.append_column(_SAMPLE, pa.array(self.sample_ms)).append_column(_SEEN, pa.array(self.seen_ms))
        newest = rows.group_by(rows.column_names[:_OF_CLIENT], use_threads=False).aggregate(
            [(_SAMPLE, "max"), (_SEEN, "max")]
        )
        names = newest.select(rows.column_names[:_OF_CLIENT])
        hashes = _hashes([column.to_pylist() for column in names.columns])
        order = np.argsort(hashes)
        return SeenClients(names, hashes[order], order, *(newest[f"{one}_max"].to_numpy() for one in _TIMES))

    def get(self, client: tuple[str, str]) -> int | None:
        """When the newest usage of a client was evaluated, in epoch ms; None for one that was not seen.

        As `places_of` to be asked of `by_client`.
        """
        (place,), (is_seen,) = self._found(np.array([hash(client)]))
        return int(self.seen_ms[place]) if is_seen else None

    def places_of(self, clients: pa.Table) -> tuple[Ids, Flags]:
        """The rows of clients, by their user and client_id, and whether there are such."""
        return self._found(_hashes([clients[name].to_pylist() for name in ("user", "client_id")]))

    def places_since(self, after_ms: int) -> Ids:
        """The rows whose newest sample began after an instant: int64[m]."""
        return np.flatnonzero(self.sample_ms > after_ms)

    def number_since(self, after_ms: int) -> int:
        """How many clients these are."""
        places = self.places_since(after_ms)
        if self.names.num_columns == _OF_CLIENT:
            return len(places)
        return int(taken(self.names, places).group_by(["user", "client_id"], use_threads=False).aggregate([]).num_rows)

    def named(self, places: Ids) -> pa.Table:
        """Rows of `names`, sorted."""
        rows = taken(self.names, places)
        return rows.take(pc.sort_indices(rows, [(name, "ascending") for name in rows.column_names]))

    def _found(self, hashes: Ids) -> tuple[Ids, Flags]:
        """The rows with these hashes, and whether there are such."""
        if not len(self.order):
            return np.zeros(len(hashes), np.int64), np.zeros(len(hashes), np.bool_)
        at = np.minimum(np.searchsorted(self.hashes, hashes), len(self.order) - 1)
        return self.order[at], self.hashes[at] == hashes

    def _with_rows(self, names: pa.Table, hashes: Ids) -> "SeenClients":
        """With rows of new clients, in the order of their hashes. The times are copied: those of this one stay."""
        at, zeros = np.searchsorted(self.hashes, hashes), np.zeros(len(hashes), np.int64)
        rows = pa.concat_tables([self.names, names])
        return SeenClients(
            rows if rows.column(0).num_chunks < _CHUNKS else rows.combine_chunks(),
            np.insert(self.hashes, at, hashes),
            np.insert(self.order, at, np.arange(len(self.order), len(self.order) + len(hashes))),
            np.concatenate([self.sample_ms, zeros]),
            np.concatenate([self.seen_ms, zeros]),
        )

    def _only(self, is_kept: Flags) -> "SeenClients":
        of_hashes, rows = is_kept[self.order], np.flatnonzero(is_kept)
        return SeenClients(
            taken(self.names, rows).combine_chunks(),
            self.hashes[of_hashes],
            (np.cumsum(is_kept) - 1)[self.order[of_hashes]],
            self.sample_ms[rows],
            self.seen_ms[rows],
        )


_OF_CLIENT: Final = 2
_SAMPLE, _SEEN = _TIMES = ("sample_ms", "seen_ms")
_CHUNKS: Final = 64


def _hashes(names: Sequence[Sequence[str]]) -> Ids:
    return np.fromiter(map(hash, zip(*names, strict=True)), np.int64, len(names[0]))


def _floats(column: "pa.ChunkedArray") -> NDArray[np.float64]:
    """Numbers as float64, null as NaN."""
    return np.asarray(column.to_numpy(), dtype=np.float64)


def names_table(clients: Sequence[tuple[str, str]]) -> pa.Table:
    """Clients as the columns user and client_id."""
    columns = zip(("user", "client_id"), zip(*clients, strict=True) if clients else ((), ()), strict=True)
    return pa.table({name: _texts(list(column)) for name, column in columns})


def _texts(values: list[str]) -> pa.Array:
    # Not by pyarrow, which would import pandas to look at them.
    return pa.array(Array(values, DataType.string()))


# Who is throttled, kept up to date from the records of `throttle_events`. Pure.

_RECENT: Final = 200


@dataclass(frozen=True, slots=True)
class RunningThrottle:
    """The last row of `throttle_events` of a client that is held, and when its first record was written.

    `most_used` is the largest O / T of its records; None if none of them has a bound.
    """

    row: Mapping[str, Any]
    since_ms: int
    records: int
    most_used: float | None = None


class RunningThrottles:
    """The last record of every client, as far as it may still run; and the newest records."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, str, str], RunningThrottle] = {}
        self._recent: deque[Mapping[str, Any]] = deque(maxlen=_RECENT)
        self.newest_seq = -1
        """The highest `publish_seq` that was applied."""

    def apply(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Take further rows of `throttle_events`. Those that were taken before are left out."""
        for row in sorted(rows, key=lambda row: int(row["publish_seq"])):
            if row["publish_seq"] <= self.newest_seq:
                continue
            self.newest_seq = row["publish_seq"]
            self._recent.append(row)
            self._take(row)

    def running(self, now_ms: int, min_hold_ms: int = 0) -> list[RunningThrottle]:
        """Who is held at an instant, by wall clock; whoever is held longest comes first. Forgets what has lapsed.

        A throttle shorter than `min_hold_ms` is left out, see `counts`.
        """
        self._last = {key: one for key, one in self._last.items() if one.row["throttled_until_ms"] > now_ms}
        found = (one for one in self._last.values() if counts(one.since_ms, one.row["throttled_until_ms"], min_hold_ms))
        return sorted(found, key=lambda one: (one.since_ms, one.row["publish_seq"]))

    def recent(self) -> list[Mapping[str, Any]]:
        """The newest records, newest first."""
        return [*reversed(self._recent)]

    def _take(self, row: Mapping[str, Any]) -> None:
        key = (row["broker_id"], row["user"], row["client_id"])
        if row["action"] == "release":
            self._last.pop(key, None)
            return
        before = self._last.get(key)
        written = written_ms(row)
        used = row["observed"] / row["bound"] if row["bound"] else None
        # What has lapsed was no longer held: it was not renewed in time.
        if before is not None and before.row["throttled_until_ms"] >= written:
            most = max((one for one in (before.most_used, used) if one is not None), default=None)
            self._last[key] = RunningThrottle(row, before.since_ms, before.records + 1, most)
        else:
            self._last[key] = RunningThrottle(row, written, 1, used)
