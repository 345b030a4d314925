"""The rows of a decision: every violated quota of every client that sent usage, and which of them ask for a hold.

`Evaluation` has the facts of the batch behind it.

A throttle of a user's sensor holds the user, for each quota type on its own: all client-ids of the sensor, also those
that it has not seen. So a new name does not evade it. Other sensors are held client by client.
"""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, replace
from typing import Final, NamedTuple, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from quota.arrays import Flags, Floats, Ids, Ints
from quota.entity import QUOTA_TYPES, TIE_ORDER
from quota.resolution import Side
from quota.tenants import OF_TENANT, Names, tenant_columns
from quota.throttle_time import NO_CAP, ThrottleCaps, throttle_time_ms
from quota.usage import COLUMNS, EntityNames, Pair, names_of, names_where, null_where, some_of

KEY: Final = ("broker_id", "user", "client_id", "quota_type")
SENSOR: Final = ("sensor_user", "sensor_client_id")


def columns_of(kind: pa.DataType, *names: str) -> Iterator[tuple[str, pa.DataType]]:
    """Fields of one type."""
    return ((name, kind) for name in names)


SCHEMA: Final = pa.schema(
    [
        *columns_of(pa.string(), *KEY),
        *columns_of(pa.float64(), "observed", "bound"),
        *columns_of(
            pa.int64(), "window_ms", "raw_throttle_time_ms", "max_throttle_time_ms", "throttle_time_ms", "level"
        ),
        *columns_of(pa.string(), *SENSOR, "mode"),
        ("asks_hold", pa.bool_()),
        ("cause", pa.string()),
        ("tokens", pa.float64()),
        ("owed_ms", pa.int64()),
        *OF_TENANT,
    ]
)
"""Columns of `QuotaEngine.record`: those of `decisions` without ids.

`max_throttle_time_ms` is null without a cap, `tokens` in shadow rows and if no debt is carried.
"""
STORED: Final = SCHEMA.append(pa.field("more_clients", pa.int64()))
"""Columns of `Decisions.stored`."""

MOST_CLIENTS: Final = 100
"""The most clients of a sensor that is held as a whole that have a row in `decisions`: those that used the most."""

_MODES: Final = ("enforce", "shadow")
_CAUSES: Final = ("violation", "debt")


@dataclass(frozen=True, slots=True)
class Violations:
    """n violated quotas, at most one per side, type and entity. All arrays are of n.

    `types` are positions in `QUOTA_TYPES`, `rows` a usage row of each entity, and `used` what it used of the type in
    the batch. Of the sensor's tags it has a user, a client-id, or both. Where `holds_user`, it is held as a whole.
    `tokens` is NaN where none are kept. Where `is_debt`, not the rate asks for a throttle, but the bucket, because of
    usage that is behind; then `tokens` is as of its last refill. `bound` is the one in force, `own_bound` is T: they
    differ for a member of a tenant. `tenant` is its name or None, and `tenant_level` is infinity at rest.
    """

    sides: Ints
    types: Ints
    rows: Ids
    entities: Ids
    used: Floats
    sensors: Ids
    holds_user: Flags
    observed: Floats
    bound: Floats
    window_ms: Ints
    tokens: Floats
    owed_ms: Ints
    is_debt: Flags
    level: Ints
    has_user: Flags
    has_client_id: Flags
    own_bound: Floats
    tenant: Names
    tenant_level: Floats

    def take(self, rows: Ids) -> "Violations":
        """Some of them."""
        return Violations(*(getattr(self, field.name)[rows] for field in fields(self)))

    @classmethod
    def joined(cls, parts: list[Self]) -> Self:
        """All of these, at least one part."""
        if len(parts) == 1:
            return parts[0]
        return cls(*(np.concatenate([getattr(part, field.name) for part in parts]) for field in fields(cls)))


@dataclass(frozen=True, slots=True)
class Claims:
    """Why each of n clients, or users, must wait: the figures of one quota type, for a client the longest wait's.

    Attributes:
        quota_type: positions in `QUOTA_TYPES`.
        has_user: whether the user is a tag of the sensor; `has_client_id` likewise.
        observed: O, per second (bytes, or percent of one thread).
        bound: the bound in force, per second; infinity for none.
        tokens: what the bucket holds; NaN where none is kept.
        owed_ms: the larger of X by the rate and of the time the bucket needs to come back to 0; 0 without a bound.
        level: the level the bound comes from; 0 = no quota.
        own_bound: T, per second: for a member of a tenant its own; infinity for none.
        tenant: the tenant, None for none.
    """

    quota_type: Ints
    has_user: Flags
    has_client_id: Flags
    observed: Floats
    bound: Floats
    window_ms: Ints
    tokens: Floats
    owed_ms: Ints
    level: Ints
    own_bound: Floats
    tenant: Names

    def take(self, rows: Ids | Flags) -> "Claims":
        """The claims of some of the clients."""
        return Claims(*(getattr(self, field.name)[rows] for field in fields(self)))

    def put(self, rows: Ids, others: "Claims") -> None:
        """Set the claims of some of the clients."""
        for field in fields(self):
            getattr(self, field.name)[rows] = getattr(others, field.name)


@dataclass(frozen=True, slots=True)
class Asked:
    """The throttles that a batch asks n targets to obey, clients and users, one each, in no order.

    Attributes:
        names: of all rows of the usage.
        rows: a row of usage of each.
        keys: the key of each: `target_keys`.
        holds_user: whether the target is the user.
        throttle_time_ms: the throttle time of each, after the cap, above 0.
        is_debt: see `Violations`.
    """

    names: EntityNames
    rows: Ids
    keys: Pair
    holds_user: Flags
    claims: Claims
    throttle_time_ms: Ints
    is_debt: Flags

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, rows: Ids | Flags) -> "Asked":
        """Some of them."""
        keys, claims, throttle_time_ms = some_of(self.keys, rows), self.claims.take(rows), self.throttle_time_ms[rows]
        own, holds_user, is_debt = self.rows[rows], self.holds_user[rows], self.is_debt[rows]
        return Asked(self.names, own, keys, holds_user, claims, throttle_time_ms, is_debt)

    def targets(self) -> pa.Table:
        """Whom they hold: broker_id, user, and client_id, null for a user."""
        broker, user, client_id = self.names.take(self.rows)
        return pa.table({"broker_id": broker, "user": user, "client_id": null_where(self.holds_user, client_id)})


_OF_TYPE: Final = np.uint64(0x9E3779B97F4A7C15)


def target_keys(of_entities: Pair, quota_types: Ints, holds_user: Flags) -> Pair:
    """The keys of n targets.

    A client has the key of its entity. A user has that of its sensor, which is the key of the entity with an empty
    client-id, moved by the quota type.

    * `quota_types`: Positions in `QUOTA_TYPES`; of no account for a client.
    """
    moved = np.where(holds_user, quota_types + 1, 0).astype(np.uint64) * _OF_TYPE
    return of_entities[0] + moved, of_entities[1] + moved


def sensor_keys_of(of_users: Pair, quota_types: Ints) -> Pair:
    """The keys of the sensors of users, by their keys as targets."""
    moved = (quota_types + 1).astype(np.uint64) * _OF_TYPE
    return of_users[0] - moved, of_users[1] - moved


_NO_IDS: Final = np.zeros(0, np.int64)
_NO_FLAGS: Final = np.zeros(0, np.bool_)
_NO_FLOATS: Final = np.zeros(0, np.float64)
_NO_WORDS: Final = np.zeros(0, np.uint64)
NOTHING_ASKED: Final = Asked(
    EntityNames(pa.table({name: pa.nulls(0, pa.string()) for name in ("user", "client_id")}), False),
    _NO_IDS,
    (_NO_WORDS, _NO_WORDS),
    _NO_FLAGS,
    Claims(
        *(_NO_IDS, _NO_FLAGS, _NO_FLAGS, _NO_FLOATS, _NO_FLOATS, _NO_IDS, _NO_FLOATS, _NO_IDS, _NO_IDS),
        *(_NO_FLOATS, np.zeros(0, np.object_)),
    ),
    _NO_IDS,
    _NO_FLAGS,
)


@dataclass(frozen=True, slots=True)
class Judged:
    """All n violations of a batch, and which ask for a hold.

    Attributes:
        raw_ms: X of each; `cap_ms` the cap, `NO_CAP` for none.
        capped_ms: The throttle time: X, or for a debt what is owed, after the cap.
    """

    violations: Violations
    raw_ms: Ints
    cap_ms: Ints
    capped_ms: Ints
    asks_hold: Flags


def judge(parts: list[Violations], caps: ThrottleCaps, sample_window_ms: int) -> Judged:
    """Compute X of all violations, at least one part, each of one quota type, and which of them ask for a hold.

    Only enforced ones with a capped throttle time above 0 do: all of a sensor that is held as a whole, and of an
    entity's others the one with the largest time. Of equal ones it is the request quota's, then the producer quota's.
    """
    found = Violations.joined(parts)
    raw_ms = throttle_time_ms(found.observed, found.bound, found.window_ms)
    caps_ms = [caps.max_throttle_time_ms(int(part.types[0]), part.window_ms, sample_window_ms) for part in parts]
    cap_ms = np.concatenate(caps_ms)
    asked_ms = np.where(found.is_debt, found.owed_ms, raw_ms)
    capped_ms = np.where(cap_ms == NO_CAP, asked_ms, np.minimum(asked_ms, cap_ms))
    return Judged(found, raw_ms, cap_ms, capped_ms, _asking(found, capped_ms))


@dataclass(frozen=True, slots=True)
class Decisions:
    """What was decided for a batch of usage with these names; `judged` is None if nothing is violated."""

    names: EntityNames
    judged: Judged | None

    def table(self) -> pa.Table:
        """The violations as rows of `SCHEMA`: see `QuotaEngine.record`."""
        if self.judged is None:
            return SCHEMA.empty_table()
        every = np.arange(len(self.judged.raw_ms))
        return _rows(self.judged, self.names, every, np.zeros(len(every), np.bool_)).select(SCHEMA.names)

    def stored(self) -> pa.Table:
        """The violations as rows of `STORED`, in the order of `QuotaEngine.record`.

        A sensor that is held as a whole has one row without a client-id before `MOST_CLIENTS` of its clients. Only
        that row asks for a hold, and it has the number of clients without a row.
        """
        if self.judged is None:
            return STORED.empty_table()
        found = self.judged.violations
        alone = np.flatnonzero(~found.holds_user)
        if len(alone) == len(found.types):
            return _rows(self.judged, self.names, alone, np.zeros(len(alone), np.bool_))
        whole = np.flatnonzero(found.holds_user)
        sensors = np.stack([found.sides[whole], found.types[whole], found.sensors[whole]])
        _, first, sensor = np.unique(sensors, axis=1, return_index=True, return_inverse=True)
        sensor = sensor.ravel()
        _, _, client_id = self.names.take(found.rows[whole])
        by_name = np.argsort(pc.sort_indices(client_id).to_numpy())
        shown = whole[rank_in(sensor, -found.used[whole], by_name) < MOST_CLIENTS]
        rows = np.concatenate([alone, whole[first], shown])
        is_sensor = np.repeat([False, True, False], [len(alone), len(first), len(shown)])
        more = np.concatenate([alone * 0, np.maximum(np.bincount(sensor) - MOST_CLIENTS, 0), shown * 0])
        return _rows(self.judged, self.names, rows, is_sensor, more)


def _rows(judged: Judged, names: EntityNames, rows: Ids, is_sensor: Flags, more: Ints | None = None) -> pa.Table:
    """Violations as rows of `STORED`: by broker, user, client-id (by code point, none first), type, enforced first."""
    found = judged.violations.take(rows)
    broker, user, client_id = names.take(found.rows)
    client_id = null_where(is_sensor, client_id)
    by = {"broker": broker, "user": user, "is_named": (~is_sensor).astype(np.int8), "client_id": client_id}
    by |= {"type": found.types, "side": found.sides}
    keys = [(name, "ascending") for name in by if name != "broker" or names.broker_id is not None]
    order = pc.sort_indices(pa.table(by), keys)
    at = order.to_numpy()
    rows, found, is_sensor = rows[at], found.take(at), is_sensor[at]
    user, client_id = user.take(order), client_id.take(order)
    cap_ms = judged.cap_ms[rows]
    columns = [
        broker.take(order),
        user,
        client_id,
        names_of(QUOTA_TYPES, found.types),
        *(pa.array(column) for column in (found.observed, found.bound, found.window_ms, judged.raw_ms[rows])),
        pa.array(cap_ms, mask=cap_ms == NO_CAP),
        pa.array(judged.capped_ms[rows]),
        pa.array(found.level),
        names_where(found.has_user, user),
        names_where(found.has_client_id, client_id),
        names_of(_MODES, found.sides),
        pa.array(judged.asks_hold[rows] & (is_sensor | ~found.holds_user | (more is None))),
        names_of(_CAUSES, found.is_debt.astype(np.int64)),
        pa.array(found.tokens, mask=np.isnan(found.tokens)),
        pa.array(found.owed_ms),
        *tenant_columns(found.tenant, found.tenant_level, found.own_bound),
        pa.array(np.zeros(len(rows), np.int64) if more is None else more[at], mask=~is_sensor),
    ]
    return pa.Table.from_arrays(columns, schema=STORED)


def _asking(found: Violations, capped_ms: Ints) -> Flags:
    """Which violations ask for a hold: see `judge`. Of equal times of an entity it is the first in `TIE_ORDER`."""
    asks: Flags = (found.sides == Side.ENFORCED) & (capped_ms > 0)
    rows = np.flatnonzero(asks & ~found.holds_user)
    tie = np.argsort(TIE_ORDER)[found.types[rows]]
    in_order = rows[np.lexsort((tie, -capped_ms[rows], found.entities[rows]))]
    is_first = np.append(True, found.entities[in_order[1:]] != found.entities[in_order[:-1]])[: len(in_order)]
    asks[in_order[~is_first]] = False
    return asks


def rank_in(groups: Ids, *keys: Floats | Ids) -> Ids:
    """The rank of each row among those of its group, from 0, by its keys; the first key decides first."""
    order = np.lexsort((*reversed(keys), groups))
    sizes = np.bincount(groups)
    begins = np.cumsum(sizes) - sizes
    rank = np.empty(len(groups), np.int64)
    rank[order] = np.arange(len(groups)) - np.repeat(begins, sizes)
    return rank


# Which batch decided: stored usage, decided again by the same quotas in the same order, gives the same decisions.
#
# First decisions (docs/design.md, "The rate") depend on the sample windows alone, never on a token bucket. So a replay
# may begin at any instant: after it has read the usage of the (N + 1) · w before, its windows are what they were.

_ORDER: Final = ("time_epoch", "evaluated_at_ms", "batch_id", "query_id")

FACTS: Final = ("query_id", "batch_id", "time_epoch", "evaluated_at_ms", "quota_version", "tenants_version")
"""The fields of an `Evaluation`, as columns."""
USAGE_COLUMNS: Final = (*FACTS, *COLUMNS)
"""The columns of `usage` that decisions depend on: a replay reads these."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The facts behind a decision or a check; query "" and batch −1 before the first batch.

    A check has the last batch whose usage is in the engine. The instant grows within a time epoch only.
    """

    query_id: str
    batch_id: int
    evaluated_at_ms: int
    quota_version: int
    time_epoch: int = 0
    tenants_version: int = -1

    @property
    def versions(self) -> tuple[int, int]:
        """The versions of quotas and tenants: see `QuotaSnapshot.versions`."""
        return self.quota_version, self.tenants_version

    def under(self, quota_version: int, tenants_version: int) -> "Evaluation":
        """These facts under other quotas and tenants."""
        return replace(self, quota_version=quota_version, tenants_version=tenants_version)

    @property
    def order(self) -> tuple[int, int, int]:
        """The place of its batch in the order they were decided; an earlier one has the smaller value.

        Within a time epoch instants never go back, and no two queries share one: see `least_ms`.
        """
        return self.time_epoch, self.evaluated_at_ms, self.batch_id

    def least_ms(self, query_id: str) -> int:
        """The earliest instant of the next batch in the same time epoch, which is of this query.

        It is this one's, or a millisecond later in another query. The batches of a query are in order by their numbers,
        and those of a new query, which begins with 0 when a checkpoint was lost, come after them.
        """
        is_of_another = self.batch_id >= 0 and query_id != self.query_id
        return self.evaluated_at_ms + is_of_another


def begins_time_epoch(last_ms: int, ring_ms: int, now_ms: Iterable[int | None]) -> bool:
    """Whether a batch begins a new time epoch: a clock was ahead, was set right, and event time must not wait for it.

    It does if all clocks agree that now is before `last_ms` by more than the ring. A backlog has old events and is read
    at a later time of the driver's clock; so it begins none.

    Args:
        last_ms: `evaluated_at_ms` of the batch before.
        ring_ms: N · w, the span of the rates' sample windows.
        now_ms: the newest event time of the batch, the newest append time of its messages, the driver's wall clock when
            it was collected. None: not known.
    """
    return all(one_ms is not None and one_ms < last_ms - ring_ms for one_ms in now_ms)


class StoredBatch(NamedTuple):
    """How a micro-batch was decided, and its rows of `usage`, in any order."""

    evaluation: Evaluation
    usage: pa.Table


def batches_of(usage: pa.Table) -> Iterator[StoredBatch]:
    """Rows of `usage` with `USAGE_COLUMNS`, whole batches, in the order they were decided: see `Evaluation.order`."""
    if not usage.num_rows:
        return
    ordered, first = in_batches(usage)
    keys = ordered.select(FACTS).take(pa.array(first)).to_pylist()
    counts = np.diff(first, append=ordered.num_rows)
    for key, start, count in zip(keys, first.tolist(), counts.tolist(), strict=True):
        yield StoredBatch(Evaluation(**key), ordered.slice(start, count))


def in_batches(usage: pa.Table) -> tuple[pa.Table, Ints]:
    """Rows of `usage`, at least one, batch by batch in the order they were decided, and where each batch begins."""
    ordered = usage.sort_by([(column, "ascending") for column in _ORDER]).combine_chunks()
    # Not by group_by: the order of its groups is not specified.
    begins = np.zeros(ordered.num_rows, np.bool_)
    begins[0] = True
    for name in _ORDER:
        column = ordered[name]
        begins[1:] |= pc.not_equal(column[1:], column[:-1]).to_numpy()
    return ordered, np.flatnonzero(begins)


# The same decision has the same id, however often its batch is run again.

_DIGEST_BYTES: Final = 8


def decision_ids(decisions: pa.Table, cluster: str, batch: Evaluation) -> list[str]:
    """The `decision_id` of each decision of a batch, by the columns of `KEY`.

    Returns:
        16 hexadecimal digits each, lower case: BLAKE2b over the parts. Each part is preceded by its length in bytes, so
        that different lists of parts never give the same bytes ("a", "bc" and "ab", "c" differ, and null and "").
    """
    shared = hashlib.blake2b(
        _encoded(cluster) + _encoded(batch.query_id) + _encoded(str(batch.batch_id)), digest_size=_DIGEST_BYTES
    )
    ids = []
    for parts in zip(*(decisions[name].to_pylist() for name in KEY), strict=True):
        hasher = shared.copy()
        hasher.update(b"".join(map(_encoded, parts)))
        ids.append(hasher.hexdigest())
    return ids


def _encoded(part: str | None) -> bytes:
    if part is None:
        return b"\xff" * 8  # no text is that long
    # surrogatepass: a name in JSON can contain a lone surrogate. It must get an id, not an exception.
    text = part.encode("utf-8", "surrogatepass")
    return len(text).to_bytes(8, "big") + text
