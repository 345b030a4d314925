"""Rates of now by the engine itself, with the job's usage, windows and quotas, so the same O; and who is throttled.

Only what is new is recorded. Two engines look at it where there are shadow quotas: one as the job enforces, and one as
if shadow quotas were enforced, as `quota.current_rates` does.
"""

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
from arro3.core import Array, DataType
from numpy.typing import NDArray

from pipeline.settings.model import EngineSettings
from pipeline.throttle.assembly import new_engine
from quota.current_rates import SensorRate, mean_span_seconds, rates_of, shadow_rates
from quota.engine import QuotaEngine, Scope
from quota.entity import Level, entity_at
from quota.snapshot import QuotaSnapshot
from quota.usage import COLUMNS
from schemas.throttle_record import counts, written_ms

SECONDS_KEPT: Final = 300
USAGE_COLUMNS: Final = ("query_id", "batch_id", "evaluated_at_ms", *COLUMNS, "request_count")
_TOTALS: Final = ("produced_bytes", "fetched_bytes", "request_count")
_FORGET_MS: Final = 300_000


class LiveRates:
    """Usage goes in as it is stored; the rates of the newest instant come out. For one thread."""

    def __init__(self, settings: EngineSettings, scope: Scope) -> None:
        self.settings = settings
        self.scope: Scope = scope
        self._enforced = new_engine(settings, scope)
        self._shadow: QuotaEngine | None = None
        self._of_shadow: set[tuple[str, str]] = set()
        self._owners: Mapping[tuple[str, str], str | None] = {}
        self._seen_ms: dict[tuple[str, ...], int] = {}
        self._totals: dict[int, Counter[str]] = {}
        self._windows: dict[int, Counter[str]] = {}
        self._newest_sample_ms: dict[tuple[str, str], int] = {}
        self.at_ms = 0
        """The instant of the rates; 0 before the first usage."""
        self._entities: pa.Table | None = None
        self._resolved: dict[int, pa.Table] = {}

    @property
    def active_clients(self) -> int:
        """The number of clients that used anything in the windows of the rates, as `top` counts them."""
        after_ms = self.at_ms - self.settings.late_after_ms
        return sum(start_ms > after_ms for start_ms in self._newest_sample_ms.values())

    @property
    def per_second(self) -> tuple[float, float, float]:
        """Produced bytes, fetched bytes and requests per second over the windows of the rates, as `top` has them."""
        if not self._windows:
            return 0.0, 0.0, 0.0
        settings = self.settings
        seconds = mean_span_seconds(self.at_ms, min(self._windows), settings.num_samples, settings.sample_window_ms)
        produced, fetched, requests = (sum(sums[name] for sums in self._windows.values()) for name in _TOTALS)
        return produced / seconds, fetched / seconds, requests / seconds

    def seen(self) -> dict[tuple[str, str], int]:
        """Clients of the last minutes, and when the newest usage of each was evaluated. For any thread."""
        known = dict(self._seen_ms)
        if self.scope == "cluster":
            return known  # type: ignore[return-value]  # its names are user and client-id
        found: dict[tuple[str, str], int] = {}
        for (user, client_id, *_), seen_ms in known.items():
            found[user, client_id] = max(seen_ms, found.get((user, client_id), 0))
        return found

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
        self._resolved.clear()
        if not self._of_shadow:
            self._shadow = None
            return
        is_new = self._shadow is None
        shadow = self._shadow = self._shadow or new_engine(self.settings, self.scope)
        shadow.load_quotas(snapshot.with_shadow_enforced())
        if is_new and window is not None and window.num_rows:
            shadow.record(window, self.at_ms)

    def record(self, usage: pa.Table, at_ms: int) -> None:
        """Take the usage of further batches, of which the newest was evaluated at an instant."""
        self.at_ms = max(self.at_ms, at_ms)
        for engine in self._engines():
            engine.record(usage, self.at_ms)
        self._note_clients(usage)
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

    def sensors(self) -> list[SensorRate]:
        """Every sensor with usage under a bound, the one nearest to its bound first."""
        entities = self._clients()
        if entities is None:
            return []
        enforced, *seen = (
            rates_of(engine, entities, self.at_ms, partial(self._levels, place, entities), self._owners)
            for place, engine in enumerate(self._engines())
        )
        found = [*enforced, *(one for rates in seen for one in shadow_rates(rates, self._of_shadow))]
        return sorted(found, key=lambda one: (-one.used, one.user, one.client_id, one.quota_type))

    def resolve(self, users: list[str], client_ids: list[str]) -> list[dict[str, Any]]:
        """The level, owner and mode of each quota type for clients, as `QuotaEngine.resolve` gives them."""
        columns = zip(self._names(), (users, client_ids, [""] * len(users)), strict=False)
        rows = self._enforced.resolve(pa.table({name: _texts(values) for name, values in columns})).to_pylist()
        return [{**row, "owner": self._owner(row["level"], row["user"], row["client_id"])} for row in rows]

    def _owner(self, level: int | None, user: str, client_id: str) -> str | None:
        return None if level is None else self._owners.get(entity_at(Level(level), user, client_id))

    def _names(self) -> list[str]:
        return ["user", "client_id", *(["broker_id"] if self.scope == "broker" else [])]

    def _engines(self) -> list[QuotaEngine]:
        return [self._enforced] if self._shadow is None else [self._enforced, self._shadow]

    def _levels(self, place: int, entities: pa.Table) -> pa.Table:
        if place not in self._resolved:
            self._resolved[place] = self._engines()[place].resolve(entities)
        return self._resolved[place]

    def _note_clients(self, usage: pa.Table) -> None:
        clients = dict.fromkeys(zip(*(usage[name].to_pylist() for name in self._names()), strict=True), self.at_ms)
        before = len(self._seen_ms)
        self._seen_ms.update(clients)
        newest = self._newest_sample_ms
        starts_ms = _floats(usage["sample_start_ms"]).astype(np.int64).tolist()
        for user, client_id, start_ms in zip(
            usage["user"].to_pylist(), usage["client_id"].to_pylist(), starts_ms, strict=True
        ):
            newest[user, client_id] = max(start_ms, newest.get((user, client_id), 0))
        if len(self._seen_ms) > before:
            self._entities = None
        for client in [client for client, seen_ms in self._seen_ms.items() if seen_ms < self.at_ms - _FORGET_MS]:
            del self._seen_ms[client]
            newest.pop((client[0], client[1]), None)
            self._entities = None

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
        after_ms = self.at_ms - self.settings.late_after_ms
        self._windows = {start_ms: sums for start_ms, sums in self._windows.items() if start_ms > after_ms}
        for second in [second for second in self._totals if second < max(self._totals) - 2 * SECONDS_KEPT]:
            del self._totals[second]

    def _clients(self) -> pa.Table | None:
        if not self._seen_ms:
            return None
        if self._entities is None:
            columns = zip(self._names(), zip(*sorted(self._seen_ms), strict=True), strict=True)
            self._entities = pa.table({name: _texts(list(one)) for name, one in columns})
            self._resolved.clear()
        return self._entities


def _floats(column: "pa.ChunkedArray") -> NDArray[np.float64]:
    """Numbers as float64, null as NaN."""
    return np.asarray(column.to_numpy(), dtype=np.float64)


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
