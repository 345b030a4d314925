"""The quota engine: usage in, decisions out. All it knows was given to its methods: no clock, no I/O."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from quota.arrays import Flags, Floats, Ids, Ints
from quota.decisions import (
    KEY,
    NOTHING_ASKED,
    SENSOR,
    Asked,
    Claims,
    Decisions,
    Judged,
    Violations,
    columns_of,
    judge,
    sensor_keys_of,
    target_keys,
)
from quota.entity import QUOTA_TYPES
from quota.errors import InvalidArgument, InvalidUsage
from quota.rates import SensorGroups, TokenBuckets, record_piece, sensors_of, split_by_window, violated_sensors
from quota.resolution import Candidates, Resolved, Side
from quota.sensors import IDLE_MS, UNRESOLVED, Key, SensorTable
from quota.snapshot import QuotaSnapshot
from quota.tenants import NO_TENANT, OF_TENANT, tenant_columns
from quota.throttle_time import ThrottleCaps, debt_time_ms, owed_time_ms, type_that_owes_most
from quota.usage import EntityNames, HashedNames, Pair, Usage, names_of, names_where

__all__ = ["QuotaEngine", "QuotaSnapshot", "ThrottleCaps"]

OWED_SCHEMA: Final = pa.schema(
    [
        *columns_of(pa.string(), *KEY),
        *columns_of(pa.float64(), "observed", "bound"),
        ("window_ms", pa.int64()),
        ("tokens", pa.float64()),
        ("owed_ms", pa.int64()),
    ]
)
"""Columns of `QuotaEngine.evaluate`."""

RATES_SCHEMA: Final = pa.schema(
    [
        ("entity", pa.int64()),
        *columns_of(pa.string(), *KEY),
        ("level", pa.int64()),
        *columns_of(pa.string(), *SENSOR, "mode"),
        *columns_of(pa.float64(), "observed", "bound"),
        ("window_ms", pa.int64()),
        *OF_TENANT,
    ]
)
"""Columns of `QuotaEngine.rates`. Those that `RatesRow` has, too, get into the table `rates` by their names."""

LEVELS_SCHEMA: Final = pa.schema(
    [
        *columns_of(pa.string(), *KEY),
        ("level", pa.int64()),
        *columns_of(pa.string(), *SENSOR),
        ("bound", pa.float64()),
        ("mode", pa.string()),
        ("violated", pa.bool_()),
        *OF_TENANT,
    ]
)
"""Columns of `QuotaEngine.resolve`."""

Scope = Literal["cluster", "broker"]

_LAST_MS: Final = np.iinfo(np.int64).max
_MAX_SAMPLES: Final = 1024
_MAX_SAMPLE_WINDOW_MS: Final = 3_600_000


class QuotaEngine:
    """Decides, for each batch of usage, which clients are over quota and for how long they must wait.

    A sensor is what a rate belongs to: the tags that the matched quota gives a `<user, client-id>`, and in broker scope
    the broker. For every sensor and quota type the engine keeps the sums of the last N + 1 sample windows and a token
    bucket. The rules are in `quota.resolution`, `quota.rates` and `quota.throttle_time`; see also docs/design.md,
    "Rules". The engine works on whole columns, without a Python loop over rows.

    The same batches with the same snapshots give the same answers, in any process. Names are compared by 128-bit hashes
    whose seeds differ from process to process (`quota.usage`).

    Thread rule: no lock inside. Only one call may run at a time, reads included.

    Args:
        num_samples: N, how many sample windows a rate spans, from 1 to 1024. Kafka's default is 11.
        sample_window_ms: w, from 1 ms to an hour.
        scope: `cluster` sums over brokers, and `broker_id` is "" in every answer; `broker` keeps brokers apart.
        carry_debt: keep token buckets. If False, Kafka's rate decides alone: `tokens` is null and `owed_ms` is X.

    Raises:
        InvalidArgument: an argument is out of its range.
    """

    def __init__(
        self,
        num_samples: int = 11,
        sample_window_ms: int = 1000,
        max_throttle_time: ThrottleCaps | None = None,
        scope: Scope = "cluster",
        carry_debt: bool = True,
    ) -> None:
        for name, value, largest in (
            ("num_samples", num_samples, _MAX_SAMPLES),
            ("sample_window_ms", sample_window_ms, _MAX_SAMPLE_WINDOW_MS),
        ):
            if not 1 <= value <= largest:
                message = f"{name} is {value}; it can be from 1 to {largest}"
                raise InvalidArgument(message)
        if scope not in {"cluster", "broker"}:
            message = f"scope is {scope!r}; it can be cluster or broker"
            raise InvalidArgument(message)
        self.num_samples = num_samples
        self.sample_window_ms = sample_window_ms
        self.max_throttle_time = max_throttle_time or ThrottleCaps()
        self.scope: Scope = scope
        self.carry_debt = carry_debt
        self._snapshot = QuotaSnapshot(0, ())
        self._sensors = SensorTable(num_samples, sample_window_ms, scope == "broker", carry_debt)
        self._evaluated_at_ms: int | None = None

    @property
    def snapshot(self) -> QuotaSnapshot:
        """The quotas in force. Before the first `load_quotas` there are none, and the version is 0."""
        return self._snapshot

    @property
    def num_sensors(self) -> int:
        """The number of sensors."""
        return len(self._sensors)

    def load_quotas(self, snapshot: QuotaSnapshot) -> None:
        """Put other quotas in force. No sensor changes: samples and buckets stay and are judged by the new bounds.

        An entity whose tags change goes to another sensor: a new one, or one that already has samples. A sensor without
        entities keeps its samples until `expire_idle` drops it. Loading the same quotas again costs nothing.
        """
        before = self._snapshot
        is_same = snapshot.quotas is before.quotas or snapshot.quotas == before.quotas
        if not (is_same and snapshot.tenants == before.tenants):
            self._sensors.load(snapshot)
        self._snapshot = snapshot

    def begin_epoch(self, last_ms: int, now_ms: int) -> None:
        """Go on at an earlier instant, because the clocks were set back: windows become empty, debts stay.

        A bucket is as it was at `last_ms`: the times of its refill move by as much as the clocks did.

        Args:
            last_ms: the newest instant of the time epoch that ends.
            now_ms: the instant that is `last_ms` from now on. The next call may not be before it.
        """
        self._sensors.begin_epoch(now_ms - last_ms, now_ms // self.sample_window_ms)
        self._evaluated_at_ms = now_ms

    def forgive(self, sensors: Iterable[tuple[str, str]]) -> None:
        """Forget the debts of sensors: their sample windows become empty, and their buckets full. All others stay.

        Args:
            sensors: the tags of each, user and client-id, "" for one that is not a tag. The client-id `<default>` is
                every client-id of the user. In broker scope it is the sensors of all brokers.
        """
        self._sensors.forgive(sensors)

    def record(self, usage: pa.Table, evaluated_at_ms: int) -> pa.Table:
        """Add a batch of usage to the sensors and decide who is over quota.

        Args:
            usage: columns sample_start_ms, broker_id (in broker scope), user, client_id, produced_bytes, fetched_bytes,
                io_time_ns, network_time_ns, last_event_ms; others are ignored. The rows may be in any order, and an
                entity may have many. A null measure does not touch the sensor of its type, 0 does. Rows of windows
                before the N + 1 newest are late: they are in no rate, but are charged to the bucket. Rows with the
                optional `in_gap` are of a time in which no throttle could be published. Their clients were not asked to
                wait, so they take a bucket no further below 0 than one burst, N · (w / 1000) · T. What a bucket owes
                already stays.
            evaluated_at_ms: the instant of the decision. It must not be before any event, nor before that of the last
                call.

        Returns:
            One row for each entity and quota type that had usage in this batch and whose rate is above the bound; none
            for a sensor of which all usage in this batch is late. One more row if it is above the bound of a shadow
            row. A sensor with usage in this batch from before the newest two windows, and none in these, of which the
            rate gives no row, has rows with the cause `debt` if its bucket, right after it was charged, needs longer
            than (N + 1) · w to come back to 0. Where `asks_hold`, the client is to be held, alone or with its user. For
            columns and order see `quota.decisions`.

        Raises:
            InvalidUsage: the table or the instant breaks these rules. No sensor was changed.
        """
        return self.decide(usage, evaluated_at_ms).table()

    def decide(self, usage: pa.Table | Usage, evaluated_at_ms: int) -> Decisions:
        """Do what `record` does, and make no rows of the decisions yet."""
        self._check_instant(evaluated_at_ms)
        if not isinstance(usage, Usage):
            usage = Usage.read(usage, self.scope == "broker", self.sample_window_ms, evaluated_at_ms)
        return Decisions(usage.names, self._judge(usage, evaluated_at_ms))

    def asked(self, decisions: Decisions) -> Asked:
        """The throttles that the last decisions ask for, with what the buckets owe. Reads only."""
        judged = decisions.judged
        if judged is None:
            return NOTHING_ASKED
        rows = judged.asks_hold.nonzero()[0]
        if not len(rows):
            return NOTHING_ASKED
        found = judged.violations.take(rows)
        if found.holds_user.any():  # one of each sensor and type
            of_users = np.flatnonzero(found.holds_user)
            _, first = np.unique(found.sensors[of_users] * len(QUOTA_TYPES) + found.types[of_users], return_index=True)
            rows = rows[np.concatenate([np.flatnonzero(~found.holds_user), of_users[first]])]
            found = judged.violations.take(rows)
        claims = Claims(
            quota_type=found.types,
            has_user=found.has_user,
            has_client_id=found.has_client_id,
            observed=found.observed,
            bound=found.bound,
            window_ms=found.window_ms,
            tokens=found.tokens,
            owed_ms=found.owed_ms,
            level=found.level,
            own_bound=found.own_bound,
            tenant=found.tenant,
        )
        of_clients, of_sensors = self._sensors.entities.keys(found.entities), self._sensors.numbers.keys(found.sensors)
        keys = tuple(np.where(found.holds_user, *halves) for halves in zip(of_sensors, of_clients, strict=True))
        keys = target_keys((keys[0], keys[1]), found.types, found.holds_user)
        capped_ms = judged.capped_ms[rows]
        return Asked(decisions.names, found.rows, keys, found.holds_user, claims, capped_ms, found.is_debt)

    def keys_of(self, targets: pa.Table, quota_types: Ints) -> Pair:
        """The keys of targets, by their names: columns broker_id, user, and client_id, null for a user."""
        hashes = EntityNames(targets, has_brokers=True).hashed(self._sensors.seeds)
        return target_keys(hashes.entity_keys(), quota_types, _are_users(targets))

    def except_client_ids(self, user: str, quota_type: int, tenant: str | None = None) -> tuple[str, ...] | None:
        """The client-ids that a throttle of a user does not hold: see `ClientsApart.of`."""
        return self._sensors.resolution.apart(quota_type).of(user, tenant)

    def claims(self, keys: Pair, preferred: Ints, at_ms: int | Ints) -> tuple[Claims, Flags]:
        """What targets owe at an instant, or each at its own, by the type that owes most: the figures of `evaluate`.

        Reads only. No name is looked up: for a target that has not sent usage under the quotas in force, or that no
        enforced quota bounds, the figures say nothing: `claims_by_name` has them.

        Args:
            keys: of the targets: see `Asked`.
            preferred: the quota type of each where several types ask for the same wait.

        Returns:
            The claims, and of which clients they are right.
        """
        entities = self._sensors.entities.find(keys)
        users = np.where(entities < 0, self._sensors.numbers.find_keys(sensor_keys_of(keys, preferred)), UNRESOLVED)
        is_user = users != UNRESOLVED
        has_sensors = len(self._sensors) > 0  # the last one may have expired
        is_known = has_sensors & (is_user | (entities >= 0))
        shape = (len(QUOTA_TYPES), len(preferred))
        sensors, bound, own = np.zeros(shape, np.int64), np.full(shape, np.inf), np.full(shape, np.inf)
        tenant = np.full(shape, NO_TENANT, np.int64)
        observed, tokens, window_ms = np.zeros(shape), np.full(shape, np.nan), np.ones(shape, np.int64)
        enforced = (key for key in self._sensors.recording if key[0] is Side.ENFORCED)
        for key in enforced if is_known.any() else ():
            quota_type = key[1]
            of_type, is_other = self._sensors.by_key.get(key), preferred != quota_type
            if of_type is None:
                continue  # no usage came since it has quotas
            ids = sensors[quota_type] = np.where(is_user, users, self._sensors.entities.sensors(key, entities))
            holds_user = of_type.holds_user[ids]
            is_known &= np.where(is_user, is_other | (of_type.is_resolved[ids] & holds_user), ids != UNRESOLVED)
            is_free = np.where(is_user, is_other, holds_user)
            bound[quota_type] = np.where(is_free, np.inf, of_type.bound[ids])
            own[quota_type] = np.where(is_free, np.inf, of_type.own[ids])
            tenant[quota_type] = np.where(is_free, NO_TENANT, of_type.tenant[ids])
            if np.isinf(bound[quota_type]).all():
                continue  # it owes nothing
            observed[quota_type], window_ms[quota_type] = self._observed(key, ids, at_ms)
            if self.carry_debt:
                tokens[quota_type] = self._tokens(quota_type, ids, bound[quota_type], at_ms)
        owed_ms = owed_time_ms(observed, window_ms, np.nan_to_num(tokens), bound)
        types = type_that_owes_most(owed_ms, preferred)
        at = types, np.arange(len(types))
        level = np.zeros(len(types), np.int64)
        has_user = has_client_id = np.zeros(len(types), np.bool_)
        if has_sensors:
            for quota_type in range(len(QUOTA_TYPES)):
                if enforcing := self._sensors.by_key.get((Side.ENFORCED, quota_type)):
                    rows = (types == quota_type).nonzero()[0]
                    level[rows] = enforcing.level.take(sensors[quota_type, rows], mode="clip")
            numbers = self._sensors.numbers
            has_user, has_client_id = (
                flags.take(sensors[at], mode="clip") for flags in (numbers.has_user, numbers.has_client_id)
            )
        claims = Claims(
            quota_type=types,
            has_user=has_user,
            has_client_id=has_client_id,
            observed=observed[at],
            bound=bound[at],
            window_ms=window_ms[at],
            tokens=tokens[at],
            owed_ms=owed_ms[at],
            level=level,
            own_bound=own[at],
            tenant=self._sensors.tenants.names[tenant[at]],
        )
        return claims, is_known & np.isfinite(claims.bound)

    def claims_by_name(
        self, targets: pa.Table, preferred: Ints, at_ms: int | Ints, forgiven: Flags | None = None, least_ms: int = 0
    ) -> Claims:
        """What targets owe, as `claims`, by their names: columns broker_id, user, and client_id, null for a user.

        A client owes only what its user is not held for, a user what its sensor owes of the preferred type. Without
        a bound that is nothing, and the bound is infinity.

        Args:
            forgiven: types that are passed over, bool[n, types], unless none of the others owes at least `least_ms`:
                then the claims are those of the preferred type. None: no type.
        """
        self._check_instant(int(np.min(at_ms, initial=_LAST_MS)))
        names = EntityNames(targets, self.scope == "broker")
        columns = self._of_types(names, partial(self._claimed, at_ms=at_ms))
        found = (column.reshape(-1, len(QUOTA_TYPES)).T for column in columns)
        level, own, tenant, has_user, has_client_id, holds_user, observed, bound, window_ms, tokens, owed_ms = found
        of_user = _are_users(targets)
        is_own = holds_user == of_user
        is_own &= ~of_user | (np.arange(len(QUOTA_TYPES))[:, None] == preferred)
        bound, owed_ms = np.where(is_own, bound, np.inf), np.where(is_own, owed_ms, 0)
        own, tenant = np.where(is_own, own, np.inf), np.where(is_own, tenant, NO_TENANT)
        counted_ms = owed_ms if forgiven is None else np.where(forgiven.T | (owed_ms < least_ms), 0, owed_ms)
        types = type_that_owes_most(counted_ms, preferred)
        at = types, np.arange(len(types))
        names_of = self._sensors.tenants.names[tenant]
        figures = has_user, has_client_id, observed, bound, window_ms, tokens, owed_ms, level, own, names_of
        return Claims(types, *(column[at] for column in figures))

    def evaluate(self, entities: pa.Table, evaluated_at_ms: int | Ints) -> pa.Table:
        """Say what entities owe at an instant, or each at its own. Reads only.

        `owed_ms` is the larger of two times: X, from the rate at that instant, and the time that the bucket needs to
        come back to 0. No cap is applied: a cap cuts what is owed into slices and does not reduce it, so it is for the
        caller to apply.

        Args:
            entities: columns user, client_id and, in broker scope, broker_id.
            evaluated_at_ms: the instant, not before the last `record`.

        Returns:
            One row per entity and quota type, in the order of the table: broker_id, user, client_id, quota_type,
            observed (0.0 if there is no sensor), bound (null if none is enforced), window_ms, tokens (null if there is
            no bound or no debt is carried), owed_ms.

        Raises:
            InvalidUsage: a column is missing, or the instant is before the last `record`.
        """
        self._check_instant(int(np.min(evaluated_at_ms, initial=_LAST_MS)))
        names = EntityNames(entities, self.scope == "broker")
        *_, observed, bound, window_ms, tokens, owed_ms = self._of_types(
            names, partial(self._claimed, at_ms=evaluated_at_ms)
        )
        unbounded = np.isinf(bound)
        columns = [
            pa.array(observed),
            pa.array(bound, mask=unbounded),
            pa.array(window_ms),
            pa.array(tokens, mask=unbounded | (not self.carry_debt)),
            pa.array(owed_ms),
        ]
        return pa.Table.from_arrays([*_key_columns(names), *columns], schema=OWED_SCHEMA)

    def rates(
        self, entities: pa.Table, evaluated_at_ms: int, side: Side = Side.ENFORCED, always: Flags | None = None
    ) -> pa.Table:
        """Say at what rate entities use something that a bound limits, as `evaluate`. Reads only.

        Args:
            entities: columns of `evaluate`.
            evaluated_at_ms: the instant, not before the last `record`.
            side: the shadow side has only bounds of shadow rows, and sees them as if all of them were enforced.
            always: the entities that have rows also where O is 0, bool[n]; None: none.

        Returns:
            One row per entity and quota type with O > 0 and a bound T > 0, in the order of the table: entity (the row
            in the table), broker_id, user, client_id, quota_type, level, sensor_user, sensor_client_id (raw; "" if it
            is not a tag), mode, observed, bound, window_ms, and `OF_TENANT`.
        """
        self._check_instant(evaluated_at_ms)
        names = EntityNames(entities, self.scope == "broker")
        if all(key[0] is not side for key in self._sensors.recording):
            return pa.Table.from_batches([], RATES_SCHEMA)  # it has no quotas: mostly the shadow side
        columns = self._of_types(names, partial(self._used, side=side, now_ms=evaluated_at_ms))
        mode, level, bound, _, _, observed, *_ = columns
        is_used = observed > 0 if always is None else (observed > 0) | np.repeat(always, len(QUOTA_TYPES))
        is_kept = is_used & (bound > 0) & np.isfinite(bound)
        if side is Side.SHADOW:
            is_kept &= mode == "shadow"
        places = np.flatnonzero(is_kept)
        mode, level, bound, has_user, has_client_id, observed, window_ms, *of_tenant = (
            column[places] for column in columns
        )
        entity, quota_type = np.divmod(places, len(QUOTA_TYPES))
        broker_id, user, client_id = names.take(entity)
        return pa.Table.from_arrays(
            [
                pa.array(entity),
                *(broker_id, user, client_id, names_of(QUOTA_TYPES, quota_type)),
                pa.array(level),
                names_where(has_user, user),
                names_where(has_client_id, client_id),
                pa.array(mode, pa.string()),
                *(pa.array(column) for column in (observed, bound, window_ms)),
                *tenant_columns(*of_tenant),
            ],
            schema=RATES_SCHEMA,
        )

    def resolve(self, entities: pa.Table) -> pa.Table:
        """Say which quota holds for entities of `evaluate`, and whether it was violated at the last `record`.

        The answer is the enforced quota (or exemption) if there is one, else the shadow quota if one matches. Reads
        only.

        Returns:
            One row per entity and quota type, in the order of the table: broker_id, user, client_id, quota_type, level
            (null for no quota), sensor_user, sensor_client_id (raw; "" if it is not a tag), bound (the one in force;
            null for none), mode (null, enforce, shadow, exempt), violated, and `OF_TENANT`.

        Raises:
            InvalidUsage: a column is missing.
        """
        names = EntityNames(entities, self.scope == "broker")
        columns = self._of_types(names, self._holding)
        mode, level, bound, has_user, has_client_id, observed, _, *of_tenant = columns
        keys = _key_columns(names)
        columns = [
            pa.array(level, mask=level == 0),
            names_where(has_user, keys[1]),
            names_where(has_client_id, keys[2]),
            pa.array(bound, mask=np.isinf(bound)),
            pa.array(mode, pa.string()),
            pa.array(observed > bound),
            *tenant_columns(*of_tenant),
        ]
        return pa.Table.from_arrays([*keys, *columns], schema=LEVELS_SCHEMA)

    def buckets(self) -> pa.Table:
        """The buckets that are not full, for storing.

        With them and the usage of the last N + 1 windows an engine can be restored. A bucket counts as full if it was
        full at the end of the oldest window of the last `record`. Then no usage that is not late can distinguish it
        from a new one.

        The members of tenants that wanted more lately are in it, too, and the tenants that are not at rest.

        Returns:
            The columns of `quota.sensors.BUCKETS_SCHEMA`.
        """
        with np.errstate(over="ignore"):
            return self._sensors.buckets()

    def restore_buckets(self, table: pa.Table) -> None:
        """Set buckets and levels to what `buckets` returned, all others to full and at rest. Changes no sample.

        Args:
            table: the columns that `buckets` returns; others are ignored. If no debt is carried, no bucket is set.

        Raises:
            InvalidUsage: a column is missing, a value is null, or a quota type is unknown.
        """
        self._sensors.restore_buckets(table)

    def expire_idle(self, now_ms: int, idle_ms: int = IDLE_MS) -> int:
        """Drop the sensors that had no usage for longer than `idle_ms` before an instant; return how many.

        `num_samples * sample_window_ms` is enough for rates; debts need longer.
        """
        return self._sensors.expire_idle(now_ms, idle_ms)

    def _check_instant(self, evaluated_at_ms: int) -> None:
        earliest_ms = self._evaluated_at_ms or 0
        if evaluated_at_ms < earliest_ms:
            message = f"the evaluation at {evaluated_at_ms} is before the last one, at {earliest_ms}"
            raise InvalidUsage(message)

    def _of_types(
        self, names: EntityNames, figures: Callable[[HashedNames, Candidates, int], tuple[NDArray[Any], ...]]
    ) -> list[NDArray[Any]]:
        """Figures of entities for one type, as columns with a row per entity and type, in the order of entities."""
        with np.errstate(over="ignore"):
            hashes = names.hashed(self._sensors.seeds)
            candidates = self._sensors.resolution.candidates(hashes, names)
            found = [figures(hashes, candidates, at) for at in range(len(QUOTA_TYPES))]
        return [np.stack(columns, axis=1).ravel() for columns in zip(*found, strict=True)]

    def _claimed(
        self, hashes: HashedNames, candidates: Candidates, quota_type: int, at_ms: int | Ints
    ) -> tuple[NDArray[Any], ...]:
        """Level, T and tenant, tags, whether the user is held, O, the bound in force, W, tokens and what is owed.

        Tokens are NaN where none are kept.
        """
        resolved, ids, tenant, bound, observed, window_ms = self._seen_by(
            Side.ENFORCED, hashes, candidates, quota_type, at_ms
        )
        tokens = self._tokens(quota_type, ids, bound, at_ms) if self.carry_debt else np.zeros(len(hashes))
        owed_ms = owed_time_ms(observed, window_ms, tokens, bound)
        tokens = np.where(np.isfinite(bound) & self.carry_debt, tokens, np.nan)
        tags = resolved.has_user, resolved.has_client_id, resolved.holds_user
        of_quota = resolved.level, resolved.bound, tenant
        return *of_quota, *tags, observed, bound, window_ms, tokens, owed_ms

    def _used(
        self, hashes: HashedNames, candidates: Candidates, quota_type: int, side: Side, now_ms: int
    ) -> tuple[NDArray[Any], ...]:
        """Mode and level of each entity for one type on one side, its bound, the tags, O and W, and its tenant."""
        resolved, _, tenant, bound, observed, window_ms = self._seen_by(side, hashes, candidates, quota_type, now_ms)
        of_quota = self._sensors.resolution.modes_of(resolved), resolved.level, bound
        tenants = self._sensors.tenants
        of_tenant = tenants.names[tenant], tenants.levels((side, quota_type), tenant), resolved.bound
        return *of_quota, resolved.has_user, resolved.has_client_id, observed, window_ms, *of_tenant

    def _seen_by(
        self, side: Side, hashes: HashedNames, candidates: Candidates, quota_type: int, now_ms: int | Ints
    ) -> tuple[Resolved, Ids, Ids, Floats, Floats, Ints]:
        """The row that a side sees of each entity for one type, its sensor, tenant and bound in force, and O and W."""
        key, sensors = (side, quota_type), self._sensors
        resolved = sensors.resolution.resolve(hashes, candidates, *key)
        ids = sensors.numbers.find_keys(resolved.sensor_keys(hashes))
        tenant = sensors.tenants.numbers(resolved.tenant, candidates.brokers)
        bound = sensors.tenants.bounds(key, tenant, resolved.bound)
        return resolved, ids, tenant, bound, *self._observed(key, ids, now_ms)

    def _holding(self, hashes: HashedNames, candidates: Candidates, quota_type: int) -> tuple[NDArray[Any], ...]:
        """What `_used` says of each entity: on the enforced side, or where no quota holds there on the shadow side."""
        now_ms = self._evaluated_at_ms or 0
        enforced, shadow = (self._used(hashes, candidates, quota_type, side, now_ms) for side in Side)
        in_shadow = (enforced[1] == 0) & (shadow[0] == "shadow")
        return tuple(np.where(in_shadow, one, other) for one, other in zip(shadow, enforced, strict=True))

    def _observed(self, key: Key, ids: Ids, now_ms: int | Ints) -> tuple[Floats, Ints]:
        """O and W of sensors of one side and type, as `SampleWindows.observed`; 0 for one that never recorded."""
        sensors = self._sensors.by_key.get(key)
        if sensors is None:
            short_window_ms = max((self.num_samples - 1) * self.sample_window_ms, 1)
            return np.zeros(len(ids)), np.full(len(ids), short_window_ms)
        return sensors.windows.observed(ids, now_ms)

    def _tokens(self, quota_type: int, ids: Ids, bound: Floats, now_ms: int | Ints) -> Floats:
        """What buckets of one enforced type hold, as `TokenBuckets.tokens_at`; any number where there is no bound."""
        sensors = self._sensors.by_key.get((Side.ENFORCED, quota_type))
        buckets = None if sensors is None else sensors.buckets
        buckets = buckets or TokenBuckets(self.num_samples, self.sample_window_ms)
        return buckets.tokens_at(ids, np.where(np.isfinite(bound), bound, 1.0), now_ms)

    def _judge(self, batch: Usage, evaluated_at_ms: int) -> Judged | None:
        """Add a batch to the sensors. Returns the violations; None if none. The caller has checked the instant."""
        self._evaluated_at_ms = evaluated_at_ms
        newest = evaluated_at_ms // self.sample_window_ms
        self._sensors.advance(newest)
        self._sensors.tenants.forget_stale()
        if not self._sensors.recording or len(batch.last_ms) == 0:
            return None
        with np.errstate(over="ignore"):
            entities, of_row = self._sensors.look_up(batch.names, evaluated_at_ms)
            in_time, behind = self._record_all(batch, of_row, evaluated_at_ms)
            for key in self._sensors.recording if self._snapshot.tenants else ():
                used = sensors_of([*in_time[key], *behind[key]], self.num_sensors)
                self._sensors.move_levels(key, used, evaluated_at_ms)
            found = (
                self._violations(key, in_time[key], behind[key], batch, entities, of_row[key], evaluated_at_ms)
                for key in self._sensors.recording
            )
            violations = [of_type for of_type in found if of_type is not None]
            return judge(violations, self.max_throttle_time, self.sample_window_ms) if violations else None

    def _record_all(
        self, batch: Usage, of_row: dict[Key, Ids], now_ms: int
    ) -> tuple[dict[Key, list[SensorGroups]], dict[Key, list[SensorGroups]]]:
        """Record a batch, window by window from the oldest. Returns the sensors with usage in time and behind."""
        in_time, behind = ({key: list[SensorGroups]() for key in self._sensors.recording} for _ in range(2))
        for piece in split_by_window(batch, now_ms // self.sample_window_ms, self.num_samples):
            refill_to_ms = min((piece.window + 1) * self.sample_window_ms, now_ms)
            for key in self._sensors.recording:
                group, sums, newest_ms = piece.group(batch, key[1], of_row[key], self.num_sensors)
                record_piece(self._sensors.by_key[key], piece, group, sums, newest_ms, key[1], refill_to_ms)
                self._sensors.numbers.used_at_ms[group.sensors] = now_ms
                if not piece.is_late:
                    in_time[key].append(group)
                if piece.is_behind:
                    behind[key].append(group)
        return in_time, behind

    def _owing(self, key: Key, behind: list[SensorGroups], by_rate: Ids) -> tuple[Ids, Floats]:
        """The sensors that are behind and have buckets that owe more than (N + 1) · w, and the tokens of each.

        Without those that are decided by their rate, and those with usage in the newest windows, too: what a broker
        brings that was silent for a while may have been within the bound in its time. The tokens are not as of now: the
        usage since then is still to come.
        """
        of_type = self._sensors.by_key[key]
        buckets, bounds = of_type.buckets, of_type.bound
        if buckets is None or not behind:
            return by_rate[:0], np.zeros(0, np.float64)
        ids = np.setdiff1d(sensors_of(behind, self.num_sensors), by_rate, assume_unique=True)
        ids = ids[np.isfinite(bounds[ids]) & of_type.windows.are_behind(ids)]
        tokens = buckets.tokens_left(ids, bounds[ids])
        owes = debt_time_ms(tokens, bounds[ids]) > (self.num_samples + 1) * self.sample_window_ms
        return ids[owes], tokens[owes]

    def _violations(
        self,
        key: Key,
        in_time: list[SensorGroups],
        behind: list[SensorGroups],
        batch: Usage,
        entities: Ids,
        of_row: Ids,
        now_ms: int,
    ) -> Violations | None:
        """The violated quotas of one side and type, one per entity that had usage of the type. None if none is."""
        side, quota_type = key
        sensors, numbers = self._sensors.by_key[key], self._sensors.numbers
        by_rate = violated_sensors(sensors, in_time, self.num_sensors, now_ms)
        if side is Side.SHADOW:
            kept = sensors.is_shadow[by_rate[0]]
            by_rate = by_rate[0][kept], by_rate[1][kept], by_rate[2][kept]
        owing, tokens_left = self._owing(key, behind, by_rate[0])
        by_debt = owing, *sensors.windows.observed(owing, now_ms)
        ids, observed, window_ms = (np.concatenate(parts) for parts in zip(by_rate, by_debt, strict=True))
        if len(ids) == 0:
            return None
        tokens = np.full(len(by_rate[0]), np.nan)
        if sensors.buckets is not None:
            tokens = self._tokens(quota_type, by_rate[0], sensors.bound[by_rate[0]], now_ms)
        tokens = np.concatenate([tokens, tokens_left])
        owed_ms = owed_time_ms(observed, window_ms, np.nan_to_num(tokens), sensors.bound[ids])
        violated = np.zeros(self.num_sensors, np.bool_)
        violated[ids] = True
        rows = violated[of_row].nonzero()[0]
        present = batch.measures[quota_type].present
        if present is not None:
            rows = rows[present[rows]]
        used = batch.measures[quota_type].values[rows].astype(np.float64)
        if len(rows) > 1:
            _, first, place = np.unique(entities[rows], return_index=True, return_inverse=True)
            rows, used = rows[first], np.bincount(place, used).astype(np.float64)
        of_entity = of_row[rows]
        place = np.empty(self.num_sensors, np.int64)
        place[ids] = np.arange(len(ids))
        at = place[of_entity]
        return Violations(
            sides=np.full(len(rows), side, np.int64),
            types=np.full(len(rows), quota_type, np.int64),
            rows=rows,
            entities=entities[rows],
            used=used,
            sensors=of_entity,
            holds_user=sensors.holds_user[of_entity],
            observed=observed[at],
            bound=sensors.bound[of_entity],
            window_ms=window_ms[at],
            tokens=tokens[at],
            owed_ms=owed_ms[at],
            is_debt=at >= len(by_rate[0]),
            level=sensors.level[of_entity],
            has_user=numbers.has_user[of_entity],
            has_client_id=numbers.has_client_id[of_entity],
            own_bound=sensors.own[of_entity],
            tenant=self._sensors.tenants.names[sensors.tenant[of_entity]],
            tenant_level=self._sensors.tenants.levels(key, sensors.tenant[of_entity]),
        )


def _key_columns(names: EntityNames) -> list[pa.Array]:
    """Broker, user, client-id and quota type: one row per entity and type, in the order of the table."""
    types = len(QUOTA_TYPES)
    rows = np.repeat(np.arange(names.num_rows), types)
    return [*names.take(rows), names_of(QUOTA_TYPES, np.tile(np.arange(types), names.num_rows))]


def _are_users(targets: pa.Table) -> Flags:
    return np.asarray(pc.is_null(targets["client_id"]).to_numpy(), np.bool_)
