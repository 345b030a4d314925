"""The verifier's own books: what every client has used and owes, kept from the first batch on.

They are the scalar model of `tests/quota/model.py`. It takes nothing from the job but the cut of the batches, their
clock readings and their quota versions; no snapshot is ever read into it.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from math import inf
from typing import Any, Final, TypeVar, cast

from schemas.throttle_record import Target
from tests.faults.evidence import Batch, Evidence, Quotas, Row, Version, version_of
from tests.faults.verdict import Rules, Verdict
from tests.quota.model import DEFAULT, TYPES, ScalarModel, Sensed, Sensor, terms_of
from tests.quota.model import Row as QuotaRow

_ANY_NAME: Final = "a name without a row"
_MOST_EXCEPTED: Final = 1_000
_MOST_CLIENTS: Final = 100
_MEASURES: Final = dict(
    zip(TYPES, (("produced_bytes",), ("fetched_bytes",), ("io_time_ns", "network_time_ns")), strict=True)
)
_FORGIVENESS: Final = ("user", "client_id", "forgiven_until_ms")
_NONE: Final = Quotas((), "enforce")
"""What a version holds that never was: what is based on it differs from what is recomputed."""

_Find = TypeVar("_Find", bound=Callable[..., Any])
Exceptions = tuple[str, ...] | None
"""The client-ids that a throttle of a user does not hold; None where it holds clients one by one."""
Standing = tuple[float | None, int | None, str, Exceptions]
"""T of a target and the level it comes from, None for none; the terms of its tenant; the exceptions of its sensor."""


def _remembered(find: _Find) -> _Find:
    """What a model finds, for as long as its quotas are the same."""

    def found(model: "QuickModel", *about: Any) -> Any:
        key = find.__name__, *about
        if key not in model.known:
            model.known[key] = find(model, *about)
        return model.known[key]

    return cast(_Find, found)


class QuickModel(ScalarModel):
    """The scalar model, which remembers how names resolve for as long as the quotas are the same."""

    records = _remembered(ScalarModel.records)
    tags = _remembered(ScalarModel.tags)
    quota_of = _remembered(ScalarModel.quota_of)
    sensor = _remembered(ScalarModel.sensor)
    standing = _remembered(ScalarModel.standing)

    def load_quotas(self, rows: Iterable[QuotaRow], mode: str = "enforce", tenants: Iterable[QuotaRow] = ()) -> None:
        super().load_quotas(rows, mode, tenants)
        self.known: dict[tuple[Any, ...], Any] = {}

    @_remembered
    def excepted_of(self, quota_type: str, sensor: Sensed) -> Exceptions:
        """The client-ids that resolve to another sensor than their user's.

        None if a throttle of the sensor holds clients, as where a name without a row has a sensor.
        """
        user, client, apart = sensor
        if not user or client or apart:
            return None
        names = {client for _, client in self.rows if client not in {"", DEFAULT}}
        of_user = Sensed(user, "")
        excepted = [name for name in sorted(names) if self.sensor("enforced", quota_type, user, name) != of_user]
        of_any = self.sensor("enforced", quota_type, user, _ANY_NAME)
        is_one_by_one = of_any != of_user and self.standing("enforced", quota_type, of_any) is not None
        return None if is_one_by_one or len(excepted) > _MOST_EXCEPTED else tuple(excepted)


class Books:
    """What the verifier knows of usage, debts and quotas.

    Args:
        evidence: For the versions of the quota table and their scope.
        engine_settings: Of the job's engine, as `batches` has them.
    """

    def __init__(self, evidence: Evidence, engine_settings: str) -> None:
        given = json.loads(engine_settings)
        caps = {quota_type: given[f"{quota_type}_cap"] for quota_type in TYPES}
        size = (given["num_samples"], given["sample_window_ms"])
        self.model = QuickModel(*size, caps, evidence.scope, given["carry_debt"])
        self.time_epoch = 0
        self.gap: tuple[int, int] | None = None
        self.processed_at_ms = 0
        self.query_id: str | None = None
        self.client_ids: dict[str, set[str]] = defaultdict(set)
        self._quotas = evidence.quotas
        self._forgiven: dict[tuple[str, str], int] | None = None
        self._remembered: dict[Version, tuple[Any, ...]] = {}

    @property
    def sample_window_ms(self) -> int:
        return self.model.w

    @property
    def ring_ms(self) -> int:
        """Span of the rates' windows: an event as old as this is late."""
        return self.model.n * self.model.w

    @property
    def evaluated_at_ms(self) -> int:
        return self.model.evaluated_at_ms or 0

    def put_in_force(self, version: Version) -> None:
        if version not in self._remembered:
            quotas = self._quotas.get(version, _NONE)
            self.model.load_quotas(quotas.rows, quotas.mode, quotas.tenants)
            self._remembered[version] = self.model.rows, self.model.tenants, self.model.known
        self.model.rows, self.model.tenants, self.model.known = self._remembered[version]

    def versions(self, first: Version, last: Version | None) -> list[Version]:
        """The usable versions of both tables from the first to the last of these, or to the newest."""
        of_tables = [(min(one, other), max(one, other)) for one, other in zip(first, last or first, strict=True)]
        return [
            version
            for version in self._sorted
            if all(
                lower <= number <= (inf if last is None else upper)
                for number, (lower, upper) in zip(version, of_tables, strict=True)
            )
        ]

    def instant_of(self, batch: Batch, own_ms: int | None, appended_ms: int) -> int:
        """When a batch is evaluated, by its newest event and its newest message: not before the one before it.

        The first one of a new query is at a later instant; it begins a time epoch if all clocks were set back.
        """
        least_ms = self.evaluated_at_ms + (self.query_id not in {None, batch.key[0]})
        self.query_id = batch.key[0]
        if own_ms is not None and max(own_ms, appended_ms, batch.processed_at_ms) < self.evaluated_at_ms - self.ring_ms:
            self.time_epoch += 1
            self.model.begin_epoch(self.evaluated_at_ms, own_ms)
            return own_ms
        return max(own_ms or 0, least_ms)

    def record(self, usage: list[Row], evaluated_at_ms: int, version: Version) -> list[Row]:
        """Enter a batch's usage; what the quotas of a version decide about it."""
        self.put_in_force(version)
        self._forgive(version)
        decisions = self.model.record(usage, evaluated_at_ms)
        self._forget_old_windows(evaluated_at_ms)
        return self._stored(decisions, usage)

    def _forgive(self, version: Version) -> None:
        """A batch begins with the debts forgotten that its quotas forgive, and those of the batch before did not."""
        rows = self._quotas.get(version, _NONE).rows
        forgiven = {(row["user"], row["client_id"]): row["forgiven_until_ms"] or 0 for row in rows}
        for entity, until_ms in forgiven.items():
            if self._forgiven is not None and until_ms > self._forgiven.get(entity, 0):
                self.model.forgive(*entity)
        self._forgiven = forgiven

    def forgives(self, row: Row, version: Version) -> bool:
        """Whether a version forgives the debts of the sensor of a record that the quotas of the record did not."""
        sensors = {(row["sensor_user"], row["sensor_client_id"])}
        if row["sensor_client_id"]:
            sensors.add((row["sensor_user"], DEFAULT))
        before, now = (
            max(
                one["forgiven_until_ms"] or 0 if (one["user"], one["client_id"]) in sensors else 0
                for one in (*self._quotas.get(number, _NONE).rows, dict.fromkeys(_FORGIVENESS, None))
            )
            for number in (version_of(row), version)
        )
        return now > before

    def _stored(self, decisions: list[Row], usage: list[Row]) -> list[Row]:
        """The decisions as the job keeps them: of a sensor that is held as a whole one row, and its largest clients."""
        kept: list[Row] = []
        of_sensor: dict[tuple[str, ...], list[Row]] = {}
        for row in decisions:
            side = "enforced" if row["mode"] == "enforce" else "shadow"
            in_sensor = self.model.sensor(side, row["quota_type"], row["user"], row["client_id"])
            if self.model.excepted_of(row["quota_type"], in_sensor) is None:
                kept.append({**row, "more_clients": None})
            else:
                sensor = row["broker_id"], row["sensor_user"], row["quota_type"], row["mode"]
                of_sensor.setdefault(sensor, []).append(row)
        for (broker_id, user, quota_type, _), rows in of_sensor.items():
            used: dict[str, int] = {}
            for one in usage:
                if one["user"] == user and (one["broker_id"] == broker_id or not self.model.by_broker):
                    amount = sum(one[name] or 0 for name in _MEASURES[quota_type])
                    used[one["client_id"]] = used.get(one["client_id"], 0) + amount
            more_clients = max(len(rows) - _MOST_CLIENTS, 0)
            kept.append({**rows[0], "client_id": None, "more_clients": more_clients})
            largest = sorted(rows, key=lambda row: (-used[row["client_id"]], row["client_id"]))[:_MOST_CLIENTS]
            kept += [{**row, "asks_hold": False, "more_clients": None} for row in largest]
        return kept

    def owed(self, client: Row, at_ms: int, version: Version) -> dict[str, Row]:
        """What a client owes at an instant, by quota type.

        A user that is held as a whole owes what its sensor owes of the row's type, a client what its user does not.
        """
        self.put_in_force(version)
        owed = {one["quota_type"]: one for one in self.model.evaluate([client], at_ms)}
        for quota_type, one in owed.items():
            *_, sensor = self.model.key("enforced", quota_type, client)
            holds_user = self.model.excepted_of(quota_type, sensor) is not None
            is_other_type = client["client_id"] is None and quota_type != client["quota_type"]
            if holds_user != (client["client_id"] is None) or is_other_type:
                one.update(bound=None, owed_ms=0)
        return owed

    def drops(self, client: Row, version: Version) -> set[int]:
        """The instants at which a sample window of a client's sensors drops out of its rate."""
        self.put_in_force(version)
        keys = (self.model.key("enforced", quota_type, client) for quota_type in TYPES)
        sensors = [self.model.sensors[key] for key in keys if key in self.model.sensors]
        return {last_ms + self.ring_ms for sensor in sensors for _, last_ms in sensor.windows.values()}

    def standing(self, client: Row, quota_type: str, version: Version) -> Standing:
        self.put_in_force(version)
        *_, sensor = self.model.key("enforced", quota_type, client)
        found, excepted = (
            self.model.standing("enforced", quota_type, sensor),
            self.model.excepted_of(quota_type, sensor),
        )
        if found is None:
            return None, None, "", excepted
        terms = sorted(terms_of(found.tenant or {}).items())
        return found.own_bound, found.level, str(terms), excepted

    def sensor(self, client: Row, quota_type: str, version: Version) -> Sensed:
        self.put_in_force(version)
        return self.model.key("enforced", quota_type, client)[3]

    def excepted_of(self, row: Row, version: Version) -> Exceptions:
        """The exceptions of a throttle of the sensor of a record; None if it holds a client."""
        sensor, of_client = (row["sensor_user"], row["sensor_client_id"]), self.sensor(row, row["quota_type"], version)
        return self.model.excepted_of(row["quota_type"], of_client if of_client[:2] == sensor else Sensed(*sensor))

    def cap_ms(self, quota_type: str, window_ms: int) -> int | None:
        """The longest slice of a throttle; None for no limit."""
        cap = self.model.caps[quota_type]
        named: dict[str, int | None] = {"none": None, "window": window_ms, "sample_window": self.model.w}
        return named[cap] if isinstance(cap, str) else cap

    @cached_property
    def _sorted(self) -> list[Version]:
        return sorted(number for number, quotas in self._quotas.items() if _is_usable(quotas))

    def _forget_old_windows(self, now_ms: int) -> None:
        """The model keeps every window; those before the ring are in no rate any more."""
        oldest_ms = now_ms // self.model.w * self.model.w - self.ring_ms
        for sensor in self.model.sensors.values():
            if sensor.windows and next(iter(sensor.windows)) < oldest_ms - self.ring_ms:
                for start_ms in [start_ms for start_ms in sensor.windows if start_ms < oldest_ms]:
                    del sensor.windows[start_ms]


def most_ms(owed: Mapping[str, Row]) -> int:
    return max(int(one["owed_ms"]) for one in owed.values())


def debt_ms(owed: Mapping[str, Row]) -> float:
    """How long the deepest bucket of a client's sensors needs to come back to 0; below 0 if none owes anything."""
    bounded = (one for one in owed.values() if one["tokens"] is not None and one["bound"] is not None)
    debts = (-one["tokens"] / one["bound"] * 1_000.0 for one in bounded)
    return max(debts, default=0.0)


def _is_usable(quotas: Quotas) -> bool:
    bounds = [row.get(quota_type) for row in quotas.rows for quota_type in TYPES]
    return all(bound is None or 0 < bound < inf for bound in bounds)


def written_ms(row: Row) -> int:
    """When a record was written: its end counts from it. By the driver's first clock, as if it had never been set."""
    return int(row["throttled_until_ms"] - row["throttle_time_ms"] - row.get("moved_ms", 0))


@dataclass
class Held:
    """A running throttle.

    Attributes:
        row: The record published last.
        may_end: At some instant at which its look may have been taken, no more was owed than was left of it. Until
            then the look must have renewed it.
        nearest_ms: How much more was owed than was left, at the one of these instants at which that was least.
        nearest_at: Which instant that was.
        freed_by_edit: Batches after which an edit should have let it go, or changed whom it holds.
        taken_up_until_ms: When it ends since a driver has taken it up whose clock had been set; None without one.
        starts_seen: How many starts of a driver are taken account of.
    """

    row: Row
    may_end: bool = False
    nearest_ms: float = inf
    nearest_at: str = "at no instant"
    freed_by_edit: int = 0
    taken_up_until_ms: int | None = None
    starts_seen: int = 0

    @property
    def end_ms(self) -> int:
        """When it ends, by the same clock as `written_ms`."""
        return self.own_end_ms if self.taken_up_until_ms is None else self.taken_up_until_ms

    @property
    def own_end_ms(self) -> int:
        """When it ends for the driver that has written it."""
        return self.begin_ms + int(self.row["throttle_time_ms"])

    def take_up(self, start_ms: int, moved_ms: int, first_seq: int) -> None:
        """A driver whose clock was moved by this much in all takes it up: it knows the wall-clock end alone."""
        if self.row["publish_seq"] >= first_seq or moved_ms == self.row.get("moved_ms", 0):
            return
        left_ms = int(self.row["throttled_until_ms"]) - (start_ms + moved_ms)
        self.taken_up_until_ms = start_ms + max(min(left_ms, int(self.row["throttle_time_ms"])), 0)

    @property
    def begin_ms(self) -> int:
        return written_ms(self.row)


@dataclass(frozen=True, slots=True)
class Reign:
    """From the collection of one batch to the collection of the next, by the driver's first clock.

    The batch is decided a little later than it is collected (`Rules.longest_append_ms`). In between, checks are still
    based on the batch before it.

    Attributes:
        batch: The batch.
        following: The next one; None for the last.
        since_ms: When the first batch of the same `evaluated_at_ms` was collected; None if it is this one. Batches
            without newer usage do not set the time of looks back, unless the driver has started anew.
        starts: Of drivers in this time whose clock was set since the batch: when, and how far the clock was moved
            since then. Each counts the time since the batch by its own wall clock.
        take_over_ms: How long before its start a driver may have read that clock.
    """

    batch: Batch
    following: Batch | None
    since_ms: int | None = None
    starts: tuple[tuple[int, int], ...] = ()
    take_over_ms: int = 0

    @property
    def begin_ms(self) -> int:
        return self.batch.steady_ms

    @property
    def end_ms(self) -> float:
        """When the next one was collected; infinite for the last."""
        return inf if self.following is None else self.following.steady_ms

    def instant_of(self, wall_ms: int) -> int:
        """The event time that a look at this time is evaluated at, had the batch been decided when it was collected."""
        return self._instant(wall_ms, self.begin_ms)

    def latest_instant_of(self, wall_ms: int) -> int:
        """The same at the latest: counted from the first batch of this event time and the first reading of a driver."""
        return self._instant(wall_ms, self.since_ms or self.begin_ms, self.take_over_ms)

    def _instant(self, wall_ms: int, since_ms: int, take_over_ms: int = 0) -> int:
        passed_ms = max(wall_ms - since_ms, 0)
        for start_ms, moved_ms in self.starts:
            if start_ms <= wall_ms:
                read_ms = start_ms - take_over_ms
                passed_ms = max(read_ms + moved_ms - self.begin_ms, 0) + wall_ms - read_ms
        return self.batch.evaluated_at_ms + passed_ms


@dataclass
class Case:
    """One verdict in the making.

    Attributes:
        books: The verifier's own.
        rules: Of the job.
        verdict: Takes what is found.
        starts: When a driver took over the running throttles, by its first clock; None: not known.
        moved: Of each start, how far the driver's wall clock was from its first one, and the first `publish_seq`
            after it.
        held: The targets that are held, as the records tell.
        ended: When the last throttle of the others ended, or would have.
        newest_version: The newest quota version that a batch or a record was based on.
        newest_written_ms: When the last record was written.
        emptied: The buckets that the snapshot after the present batch made new, with what was in them. A look that is
            based on the batch may have been taken before the snapshot.
    """

    books: Books
    rules: Rules
    verdict: Verdict
    starts: Sequence[int] | None = None
    moved: Sequence[tuple[int, int]] = ()
    held: dict[Target, Held] = field(default_factory=dict)
    ended: dict[Target, int] = field(default_factory=dict)
    newest_version: Version = (-1, -1)
    newest_written_ms: int = 0
    emptied: Mapping[Sensor, float] = field(default_factory=dict)

    @contextmanager
    def before_snapshot(self) -> Iterator[None]:
        """The buckets as they were before the snapshot, for as long as the block."""
        for sensor, tokens in self.emptied.items():
            sensor.tokens = tokens
        try:
            yield
        finally:
            for sensor in self.emptied:
                sensor.tokens = None

    def may_begin_soon(self, client: Target, at_ms: int) -> bool:
        """Whether a throttle of this client that begins then may count as one soon after the end of the one before."""
        ended_ms = self.ended.get(client)
        return ended_ms is not None and at_ms - ended_ms < 3 * self.rules.min_hold_ms + self.rules.clock_slack_ms

    def begins_soon(self, client: Target, at_ms: int) -> bool:
        """Whether it must: a driver that took over since then does not know."""
        ended_ms, slack_ms = self.ended.get(client), self.rules.clock_slack_ms
        is_known = (
            ended_ms is not None
            and self.starts is not None
            and not any(ended_ms - slack_ms <= start_ms <= at_ms + slack_ms for start_ms in self.starts)
        )
        return is_known and ended_ms is not None and at_ms - ended_ms < 3 * self.rules.min_hold_ms - slack_ms

    def slices_ms(self, decision: Row, owed: Mapping[str, Row]) -> tuple[int, int]:
        """The shortest and the longest slice that a decision may ask for: by X capped and by what is owed."""
        quota_type = decision["quota_type"]
        capped_ms, owes_ms = int(decision["throttle_time_ms"]), int(owed[quota_type]["owed_ms"])
        slices_ms = self.cut_ms(quota_type, int(decision["window_ms"]), max(owes_ms, capped_ms))
        return max(slices_ms[0], capped_ms), max(slices_ms[1], capped_ms)

    def cut_ms(self, quota_type: str, window_ms: int, owes_ms: int) -> tuple[int, int]:
        """What is owed, at most the cap, which is not below three leads: by the shortest lead and by the longest."""
        cap_ms = self.books.cap_ms(quota_type, window_ms)
        if cap_ms is None:
            return owes_ms, owes_ms
        most_lead_ms = self.rules.most_lead_ms
        least_ms = min(owes_ms, max(cap_ms, 3 * self.rules.least_lead_ms))
        return least_ms, owes_ms if most_lead_ms is None else min(owes_ms, max(cap_ms, 3 * most_lead_ms))

    def take_up(self, held: Held, until_ms: float, before_seq: float = inf) -> None:
        """Take account of the drivers that took up a throttle up to this time, and before a record was written."""
        for number, (start_ms, (moved_ms, first_seq)) in enumerate(zip(self.starts or (), self.moved, strict=False)):
            if number >= held.starts_seen and start_ms <= until_ms and first_seq <= before_seq:
                held.starts_seen = number + 1
                held.take_up(start_ms, moved_ms, first_seq)

    def end_of(self, held: Held, now_ms: int) -> int:
        """The end that a new throttle is compared with: of an overdue one, when a driver took it up."""
        starts = (start_ms for start_ms in self.starts or () if start_ms <= now_ms)
        return max([held.end_ms, *starts])

    def is_touched(self, held: Held, version: Version) -> bool:
        """Whether another bound or level holds for a target than its last record was based on, or it holds others."""
        quota_type, before = held.row["quota_type"], version_of(held.row)
        return self.books.standing(held.row, quota_type, before) != self.books.standing(held.row, quota_type, version)

    def bound_fell(self, row: Row, version: Version) -> bool:
        """Whether a client's bound of the row's quota type is lower under a version than under the row's."""
        before, *_ = self.books.standing(row, row["quota_type"], version_of(row))
        after, *_ = self.books.standing(row, row["quota_type"], version)
        return before is not None and after is not None and after < before
