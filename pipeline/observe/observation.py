"""What clients use under the quotas in force: rates, sums by minute, and the engine in shadow. Pure.

Usage comes in as rows, and time as `now_ms`. Sums stay integers until a rate is taken. A second is decided when it is
complete; what comes later is in the sums, and in the engine as of the next second.

The shadow is the job's own decider and purgatory. A client that is held uses nothing, on the broker that holds it or
in cluster scope anywhere: its usage of that second is taken as not sent, and not sent later either.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.settings.model import Settings
from pipeline.tables.quotas.source import Scope
from pipeline.throttle.assembly import Rehearsal
from quota.arrays import Ids, Ints
from quota.decisions import Evaluation
from quota.entity import QUOTA_TYPES
from quota.snapshot import QuotaSnapshot
from schemas.throttle_record import holds

SECOND_MS: Final = 1_000
MINUTE_SECONDS: Final = 60
RATE_SECONDS: Final = 10
"""The span of the rates of the live view, at most."""

PER_UNIT: Final = (1.0, 1.0, 1e-7)
"""By quota type: what one unit of a sum is of a rate. 100 % of a thread is 10^9 ns a second."""

UNREACHABLE: Final = (1e12, 1e12, 1e6)
"""By quota type: a bound from here on limits no client; such quotas are set so that brokers measure."""

_PARTS: Final = 16
"""So many tables wait at most until they are summed."""
MEASURES: Final = ("produced_bytes", "fetched_bytes", "request_time_ns")
_SUMS: Final = (*MEASURES, "request_count")
_KEYS: Final = ("client", "broker", "second")
_BY_MINUTE: Final = ("client", "broker", "minute")


class Client(NamedTuple):
    """A `<user, client-id>`."""

    user: str
    client_id: str


class Sensor(NamedTuple):
    """What a quota of one type bounds: the user and client-id that are its tags, "" for what is not.

    Attributes:
        level: 1 to 8, 9 of a tenant; 0 without a quota: then both names are those of the client.
        bound: T per second; None without one, or with one that only makes brokers measure.
        mode: `enforce`, `shadow` or `exempt`; None without a quota.
    """

    quota_type: int
    user: str
    client_id: str
    level: int
    bound: float | None
    mode: str | None = None


@dataclass(frozen=True, slots=True)
class Line:
    """The present rate of a sensor.

    Attributes:
        by_broker: Broker-id -> rate per second; "" = all brokers together.
        held_until_ms: Until when kquota holds clients of it; None = it does not, or that is not known.
        broker_held_share: For which part of the last minute brokers themselves held one; None likewise.
    """

    sensor: Sensor
    by_broker: Mapping[str, float]
    held_until_ms: int | None = None
    broker_held_share: float | None = None

    @property
    def observed(self) -> float:
        """The rate over all brokers, per second."""
        return sum(self.by_broker.values())

    @property
    def used(self) -> float:
        """The rate over all brokers, divided by the bound; 0 without a bound."""
        return self.observed / self.sensor.bound if self.sensor.bound else 0.0

    @property
    def place(self) -> tuple[float, int, float]:
        """What lines are sorted by: the most used bound first, then the largest rates without a bound."""
        return -self.used, self.sensor.quota_type, -self.observed


@dataclass(frozen=True, slots=True)
class Figures:
    """What was observed. Arrays of clients have the order of `clients`.

    Attributes:
        sensors: Of each quota type the sensor of each client.
        seconds: How many complete seconds there were.
        minutes: client, broker, minute, sums; one row each, in no order. Minutes count from the first second.
        request_bytes: Produced and fetched bytes per request, of the second in which that was largest: a request was
            at least as large; 0 = not known; int64[2, n].
        held_seconds: In which the shadow held the client.
        owed_ms: The longest wait that the shadow asked of the client at once, before any cap.
        owed_type: The quota type that asked for it.
        is_exact: Usage is dated to the second, and has requests; False of scraped rates.
        scope: Whether a bound holds for the cluster or for each broker.
    """

    clients: Sequence[Client]
    brokers: Sequence[str]
    sensors: Sequence[Sequence[Sensor]]
    seconds: int
    minutes: pa.Table
    request_bytes: Ints
    held_seconds: Ints
    owed_ms: Ints
    owed_type: Ints
    is_exact: bool
    scope: Scope

    def minute_seconds(self) -> Ints:
        """How long each minute was observed. The last one may be shorter."""
        begins = np.arange(0, self.seconds, MINUTE_SECONDS)
        return np.minimum(self.seconds - begins, MINUTE_SECONDS)


# Rows of what is kept of each client; the first two are `Figures.request_bytes`.
_HELD: Final = 2
_OWED: Final = 3
_OWED_TYPE: Final = 4
_ROWS_PER_CLIENT: Final = 5
_NO_NAMES: Final = pa.schema([(name, pa.string()) for name in Client._fields]).empty_table()


class Observation:
    """Takes in usage, and gives figures at any time. One caller at a time.

    Args:
        quotas: Those in force.
        lag_ms: A second is complete so long after its end.
        is_exact: As of `Figures`.
        scope: As of `Figures`.
    """

    def __init__(self, quotas: QuotaSnapshot, lag_ms: int, is_exact: bool, scope: Scope = "cluster") -> None:
        self._lag_ms, self._is_exact, self._scope = lag_ms, is_exact, scope
        self._job = Rehearsal(Settings(), scope)
        self._job.put_in_force(quotas)
        self._numbers: dict[Client, int] = {}
        self._of_user: dict[str, list[Client]] = defaultdict(list)
        self._brokers: dict[str, int] = {}
        self._first_seconds: list[int] = []
        self._newest_seconds: list[int] = []
        self._first: int | None = None
        self._next = 0
        self._waiting: list[pa.Table] = []
        self._settled: list[pa.Table] = []
        self._recent = [_empty(_KEYS)]
        self._minutes = _empty(_BY_MINUTE)
        self._per_client = np.zeros((_ROWS_PER_CLIENT, 0), np.int64)
        self._entities = _NO_NAMES

    @property
    def seconds(self) -> int:
        """How many complete seconds were observed."""
        return 0 if self._first is None else self._next - self._first

    @property
    def brokers(self) -> Sequence[str]:
        """The ids of the brokers that had usage."""
        return list(self._brokers)

    def add(self, usage: pa.Table) -> None:
        """Take in usage.

        Args:
            usage: columns of `usage_columns.USAGE_SCHEMA`, in sample windows of one second; any order.
        """
        if not usage.num_rows:
            return
        second = usage["sample_start_ms"].to_numpy() // SECOND_MS
        if self._first is None:
            self._first = self._next = int(second.min())
        kept = second >= self._first
        usage, second = usage.filter(pa.array(kept)), second[kept]
        if not usage.num_rows:
            return
        broker = np.array([self._broker(name) for name in usage["broker_id"].to_pylist()], np.int64)
        np.minimum.at(first := np.array(self._first_seconds), broker, second)
        np.maximum.at(newest := np.array(self._newest_seconds), broker, second)
        self._first_seconds, self._newest_seconds = first.tolist(), newest.tolist()
        rows = usage.append_column("client", pa.array(self._clients_of(usage)))
        rows = rows.append_column("broker", pa.array(broker)).append_column("second", pa.array(second))
        self._waiting.append(rows)
        self._recent.append(_sums(rows))

    def settle(self, now_ms: int) -> None:
        """Decide the seconds that are complete."""
        until = (now_ms - self._lag_ms) // SECOND_MS
        if self._first is None or until <= self._next:
            return
        rows = pa.concat_tables(self._waiting)
        is_complete = pc.less(rows["second"], until)
        self._waiting = [rows.filter(pc.invert(is_complete))]
        rows = rows.filter(is_complete).sort_by("second").combine_chunks()
        self._settled.append(rows)
        # What came late is decided with the next second.
        due = np.maximum(rows["second"].to_numpy(), self._next)
        for second in range(self._next, until):
            begin, end = np.searchsorted(due, [second, second + 1])
            self._decide(second, rows.slice(begin, end - begin))
        self._next = until
        if len(self._recent) > _PARTS:
            recent = _summed(self._recent, _KEYS)
            self._recent = [recent.filter(pc.greater(recent["second"], until - RATE_SECONDS - 2))]
        if len(self._settled) > _PARTS:
            self._fold()

    def lines(self, now_ms: int) -> list[Line]:
        """The present rates, in the order of `Line.place`.

        Of each broker its newest `RATE_SECONDS` seconds count, or as many as there are since it was first seen.
        """
        if self._first is None:
            return []
        stale = (now_ms - self._lag_ms) // SECOND_MS - 1
        newest = np.maximum(np.array(self._newest_seconds), stale)
        since = np.maximum(newest - RATE_SECONDS + 1, np.array(self._first_seconds))
        recent = _summed(self._recent, _KEYS)
        client, broker, second = (recent[name].to_numpy() for name in _KEYS)
        counts = (second >= since[broker]) & (second <= newest[broker])
        client, broker = client[counts], broker[counts]
        seconds = (newest - since + 1)[broker]
        names, sensors = list(self._brokers), self._sensors()
        rates: dict[Sensor, dict[str, float]] = {}
        for quota_type, measure in enumerate(MEASURES):
            amounts = recent[measure].to_numpy()[counts]
            used = np.flatnonzero(amounts)
            per_second = amounts[used] / seconds[used] * PER_UNIT[quota_type]
            of_type = sensors[quota_type]
            for at, by, rate in zip(client[used].tolist(), broker[used].tolist(), per_second.tolist(), strict=True):
                by_broker = rates.setdefault(of_type[at], {})
                by_broker[names[by]] = by_broker.get(names[by], 0.0) + rate
        lines = [Line(sensor, by_broker) for sensor, by_broker in rates.items()]
        return sorted(lines, key=lambda line: line.place)

    def figures(self) -> Figures:
        """What was observed in all complete seconds."""
        self._fold()
        requests, (held, owed_ms, owed_type) = np.split(self._per_client, (_HELD,))
        return Figures(
            clients=list(self._numbers),
            brokers=self.brokers,
            sensors=self._sensors(),
            seconds=self.seconds,
            minutes=self._minutes,
            request_bytes=requests,
            held_seconds=held,
            owed_ms=owed_ms,
            owed_type=owed_type,
            is_exact=self._is_exact,
            scope=self._scope,
        )

    def _decide(self, second: int, rows: pa.Table) -> None:
        at_ms = (second + 1) * SECOND_MS - 1
        self._grow()
        if second == self._first:
            self._job.begin(at_ms)
        self._job.wait_until(at_ms)
        running = self._job.purgatory.held().to_pylist()
        of_each = [self._numbers_held(row, row["except_client_ids"]) for row in running]
        for row, clients in zip(running, of_each, strict=True):  # one that is new owed nothing when its user was held
            new = clients[self._per_client[_OWED, clients] == 0]
            self._per_client[_OWED_TYPE, new] = QUOTA_TYPES.index(row["quota_type"])
        self._per_client[_HELD, np.unique(np.concatenate([np.zeros(0, np.int64), *of_each]))] += 1
        client, broker = rows["client"].to_numpy(), rows["broker"].to_numpy()
        is_free = np.ones(rows.num_rows, np.bool_)
        for broker_id in {row["broker_id"] for row in running}:
            held = [clients for row, clients in zip(running, of_each, strict=True) if row["broker_id"] == broker_id]
            is_here = np.isin(client, np.concatenate(held))
            is_free &= ~(is_here if self._scope == "cluster" else is_here & (broker == self._brokers[broker_id]))
        rows = rows.filter(pa.array(is_free))
        if not rows.num_rows:
            return
        asked = self._job.decide(rows, Evaluation("", second, at_ms, -1)).violations
        targets = asked.targets()
        users = np.where(asked.holds_user, targets["user"].to_numpy(), "")
        claims = asked.claims
        excepted = self._job.decider.except_client_ids(users, claims.quota_type, claims.tenant)
        wanted = zip(targets.to_pylist(), excepted, claims.owed_ms, claims.quota_type, strict=True)
        for target, client_ids, owed_ms, quota_type in wanted:
            clients = self._numbers_held(target, client_ids)
            longer = clients[owed_ms > self._per_client[_OWED, clients]]
            self._per_client[_OWED, longer], self._per_client[_OWED_TYPE, longer] = owed_ms, quota_type

    def _fold(self) -> None:
        """Add complete seconds to the minutes, and to the largest requests of each client."""
        self._grow()
        sums = _summed([_empty(_KEYS), *map(_sums, self._settled)], _KEYS)
        self._settled = []
        minute = (sums["second"].to_numpy() - (self._first or 0)) // MINUTE_SECONDS
        by_minute = sums.drop_columns("second").append_column("minute", pa.array(minute))
        self._minutes = _summed([self._minutes, by_minute], _BY_MINUTE)
        client, requests = sums["client"].to_numpy(), sums["request_count"].to_numpy()
        for place, measure in enumerate(MEASURES[:2]):
            mean = sums[measure].to_numpy() // np.maximum(requests, 1)
            np.maximum.at(self._per_client[place], client, np.where(requests > 0, mean, 0))

    def _sensors(self) -> list[list[Sensor]]:
        """The sensor of each client, by quota type."""
        found: list[list[Sensor]] = [[] for _ in QUOTA_TYPES]
        if not self._numbers:
            return found
        # A quota is the same on each broker.
        entities = self._entities.append_column("broker_id", pa.repeat("", self._entities.num_rows))
        for row in self._job.decider.resolve(entities).to_pylist():
            quota_type = QUOTA_TYPES.index(row["quota_type"])
            found[quota_type].append(_sensor(quota_type, row))
        return found

    def _numbers_held(self, target: Mapping[str, Any], excepted: Collection[str] | None) -> Ids:
        """The numbers of the clients that a throttle of a target holds."""
        row = {**target, "except_client_ids": excepted}
        held = (one for one in self._of_user[target["user"]] if holds(row, *one))
        return np.array([self._numbers[one] for one in held], np.int64)

    def _clients_of(self, usage: pa.Table) -> Ids:
        known = len(self._numbers)
        clients = self._numbers_of(usage)
        new = list(self._numbers)[known:]
        if new:
            columns = [pa.array(column, pa.string()) for column in zip(*new, strict=True)]
            added = pa.Table.from_arrays(columns, names=list(Client._fields))
            self._entities = pa.concat_tables([self._entities, added]).combine_chunks()
            for client in new:
                self._of_user[client.user].append(client)
        return clients

    def _numbers_of(self, rows: pa.Table) -> Ids:
        names = zip(rows["user"].to_pylist(), rows["client_id"].to_pylist(), strict=True)
        return np.array([self._numbers.setdefault(Client(*name), len(self._numbers)) for name in names], np.int64)

    def _broker(self, name: str) -> int:
        number = self._brokers.setdefault(name, len(self._brokers))
        if number == len(self._first_seconds):
            self._first_seconds.append(np.iinfo(np.int64).max)
            self._newest_seconds.append(0)
        return number

    def _grow(self) -> None:
        room = len(self._numbers) - self._per_client.shape[1]
        if room:
            self._per_client = np.pad(self._per_client, ((0, 0), (0, room)))


def _sensor(quota_type: int, row: Mapping[str, Any]) -> Sensor:
    level, bound = row["level"], row["bound"]
    if level is None:
        return Sensor(quota_type, row["user"], row["client_id"], 0, None)
    is_bound = bound is not None and bound < UNREACHABLE[quota_type]
    bound = bound if is_bound else None
    return Sensor(quota_type, row["sensor_user"], row["sensor_client_id"], level, bound, row["mode"])


def _empty(keys: Sequence[str]) -> pa.Table:
    return pa.schema([(name, pa.int64()) for name in (*keys, *_SUMS)]).empty_table()


def _sums(rows: pa.Table) -> pa.Table:
    """What counts of usage, by client, broker and second; a key may be there several times."""
    io, network = (pc.fill_null(rows[name], 0) for name in ("io_time_ns", "network_time_ns"))
    columns = [rows[name] for name in _KEYS] + [pc.fill_null(rows[name], 0) for name in MEASURES[:2]]
    columns += [pc.add(io, network), pc.fill_null(rows["request_count"], 0)]
    return pa.Table.from_arrays(columns, names=[*_KEYS, *_SUMS])


def _summed(parts: Sequence[pa.Table], keys: Sequence[str]) -> pa.Table:
    """One row for each key."""
    rows = pa.concat_tables([part.select([*keys, *_SUMS]) for part in parts])
    summed = rows.group_by(list(keys), use_threads=False).aggregate([(name, "sum") for name in _SUMS])
    return summed.rename_columns([name.removesuffix("_sum") for name in summed.column_names]).select([*keys, *_SUMS])
