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
from numpy.typing import NDArray

from pipeline.settings.model import EngineSettings
from pipeline.throttle.assembly import new_engine
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
        self._clients: dict[tuple[str, ...], tuple[int, int]] = {}
        self._totals: dict[int, Counter[str]] = {}
        self._windows: dict[int, Counter[str]] = {}
        self.at_ms = 0
        """The instant of the rates; 0 before the first usage."""

    @property
    def active_clients(self) -> int:
        """The number of clients that used anything in the windows of the rates, as `top` counts them."""
        return len({key[:2] for key in self._active()})

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
        """Clients of the last minutes, and when each used something, in epoch ms. For any thread."""
        found: dict[tuple[str, str], int] = {}
        for (user, client_id, *_), (_, seen_ms) in self._clients.items():
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
        self._note(usage)
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
        entities = _table(self._names(), self._active())
        enforced, *seen = (rates_of(engine, entities, self.at_ms, self._owners) for engine in self._engines())
        return enforced.nearest_first(*(rates.in_shadow(self._of_shadow) for rates in seen))

    def resolve(self, clients: Sequence[tuple[str, str]]) -> list[dict[str, Any]]:
        """The level, owner and mode of each quota type for clients, as `QuotaEngine.resolve` gives them."""
        names = names_table(clients)
        if self.scope == "broker":
            names = names.append_column("broker_id", pa.array([""] * len(clients)))
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

    def _note(self, usage: pa.Table) -> None:
        """Remember whose usage it is, and forget clients that have used nothing for 5 minutes."""
        known = {key: one for key, one in self._clients.items() if one[1] >= self.at_ms - _FORGET_MS}
        starts_ms = usage["sample_start_ms"].to_pylist()
        keys = zip(*(usage[name].to_pylist() for name in self._names()), strict=True)
        for key, start_ms in zip(keys, starts_ms, strict=True):
            known[key] = max(start_ms, known.get(key, (0, 0))[0]), self.at_ms
        self._clients = known  # a new one each time: another thread may look at the old one

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

    def _active(self) -> list[tuple[str, ...]]:
        """Clients with usage in the windows of the rates, by name: no others have a rate."""
        return sorted(key for key, (sample_ms, _) in self._clients.items() if sample_ms > self._after_ms)


def _floats(column: "pa.ChunkedArray") -> NDArray[np.float64]:
    """Numbers as float64, null as NaN."""
    return np.asarray(column.to_numpy(), dtype=np.float64)


def names_table(clients: Sequence[tuple[str, str]]) -> pa.Table:
    """Clients as the columns user and client_id."""
    return _table(("user", "client_id"), clients)


def _table(names: Sequence[str], rows: Sequence[tuple[str, ...]]) -> pa.Table:
    columns = zip(*rows, strict=True) if rows else [()] * len(names)
    return pa.table({name: pa.array(column, pa.string()) for name, column in zip(names, columns, strict=True)})


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
