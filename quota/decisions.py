"""The rows of a decision: every violated quota of every client that sent usage, and which one applies."""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Final, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from quota.arrays import Flags, Floats, Ids, Ints
from quota.entity import QUOTA_TYPES, TIE_ORDER
from quota.resolution import Side
from quota.throttle_time import NO_CAP, ThrottleCaps, throttle_time_ms
from quota.usage import EntityNames, Pair, some_of

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
        ("applied", pa.bool_()),
    ]
)
"""Columns of `QuotaEngine.record`: those of `decisions` without ids. Only `max_throttle_time_ms` can be null."""

_MODES: Final = ("enforce", "shadow")


@dataclass(frozen=True, slots=True)
class Violations:
    """n violated quotas, at most one per side, type and entity. All arrays are of n.

    `types` are positions in `QUOTA_TYPES`, `rows` a usage row of each entity. Of the sensor's tags it has a user, a
    client-id, or both.
    """

    sides: Ints
    types: Ints
    rows: Ids
    entities: Ids
    observed: Floats
    bound: Floats
    window_ms: Ints
    level: Ints
    has_user: Flags
    has_client_id: Flags

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
    """Why each of n clients must wait: the figures of one quota type, that with the longest wait.

    Attributes:
        quota_type: positions in `QUOTA_TYPES`.
        has_user: whether the user is a tag of the sensor; `has_client_id` likewise.
        observed: O, per second (bytes, or percent of one thread).
        bound: T, per second; infinity for none.
        tokens: what the bucket holds; NaN where none is kept.
        owed_ms: the larger of X by the rate and of the time the bucket needs to come back to 0; 0 without a bound.
        level: the level the bound comes from; 0 = no quota.
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

    def take(self, rows: Ids | Flags) -> "Claims":
        """The claims of some of the clients."""
        return Claims(*(getattr(self, field.name)[rows] for field in fields(self)))

    def put(self, rows: Ids, others: "Claims") -> None:
        """Set the claims of some of the clients."""
        for field in fields(self):
            getattr(self, field.name)[rows] = getattr(others, field.name)


@dataclass(frozen=True, slots=True)
class Asked:
    """The applied decisions of a batch: the throttles that n clients are asked to obey, one each, in no order.

    Attributes:
        names: of all rows of the usage.
        rows: a row of usage of each client.
        keys: the key of each client: `HashedNames.entity_keys`.
        throttle_time_ms: X of each, after the cap, above 0.
    """

    names: EntityNames
    rows: Ids
    keys: Pair
    claims: Claims
    throttle_time_ms: Ints

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, rows: Ids | Flags) -> "Asked":
        """Some of them."""
        keys, claims = some_of(self.keys, rows), self.claims.take(rows)
        return Asked(self.names, self.rows[rows], keys, claims, self.throttle_time_ms[rows])


_NO_IDS: Final = np.zeros(0, np.int64)
_NO_FLAGS: Final = np.zeros(0, np.bool_)
_NO_FLOATS: Final = np.zeros(0, np.float64)
_NO_WORDS: Final = np.zeros(0, np.uint64)
NOTHING_ASKED: Final = Asked(
    EntityNames(pa.table({"user": pa.array([], pa.string()), "client_id": pa.array([], pa.string())}), False),
    _NO_IDS,
    (_NO_WORDS, _NO_WORDS),
    Claims(_NO_IDS, _NO_FLAGS, _NO_FLAGS, _NO_FLOATS, _NO_FLOATS, _NO_IDS, _NO_FLOATS, _NO_IDS, _NO_IDS),
    _NO_IDS,
)


@dataclass(frozen=True, slots=True)
class Judged:
    """All n violations of a batch, X of each before and after the cap (`NO_CAP` for none), and which one applies.

    `first` has per entity the position of one of its violations, `local` per violation the place of its entity there.
    """

    violations: Violations
    first: Ids
    local: Ids
    raw_ms: Ints
    cap_ms: Ints
    capped_ms: Ints
    applied: Flags


def judge(parts: list[Violations], caps: ThrottleCaps, sample_window_ms: int) -> Judged:
    """Compute X of all violations, at least one part, each of one quota type, and which of them apply.

    Of an entity's enforced violations with a capped throttle time above 0, the one with the largest applies. Of equal
    ones it is that of the request quota, then that of the producer quota.
    """
    found = Violations.joined(parts)
    if len(parts) == 1:  # each entity is there once
        first = local = np.arange(len(found.entities))
    else:
        _, first, local = np.unique(found.entities, return_index=True, return_inverse=True)
    raw_ms = throttle_time_ms(found.observed, found.bound, found.window_ms)
    caps_ms = [caps.max_throttle_time_ms(int(part.types[0]), part.window_ms, sample_window_ms) for part in parts]
    cap_ms = np.concatenate(caps_ms)
    capped_ms = np.where(cap_ms == NO_CAP, raw_ms, np.minimum(raw_ms, cap_ms))
    applied = _applied(local, found.types, found.sides, capped_ms, len(first))
    return Judged(found, first, local, raw_ms, cap_ms, capped_ms, applied)


@dataclass(frozen=True, slots=True)
class Decisions:
    """What was decided for a batch of usage with these names; `judged` is None if nothing is violated."""

    names: EntityNames
    judged: Judged | None

    def table(self) -> pa.Table:
        """The violations as rows of `SCHEMA`: see `QuotaEngine.record`."""
        return SCHEMA.empty_table() if self.judged is None else decisions_table(self.judged, self.names)


def decisions_table(judged: Judged, names: EntityNames) -> pa.Table:
    """The violations as rows, sorted by broker, user, client-id (by code point), type, and enforced ones first."""
    found = judged.violations
    broker, user, client_id = names.take(found.rows[judged.first])
    has_brokers = names.broker_id is not None
    rank = _ranks(*((broker,) if has_brokers else ()), user, client_id)[judged.local]
    order = np.argsort((rank * len(QUOTA_TYPES) + found.types) * len(_MODES) + found.sides)
    at = pa.array(judged.local[order])
    user, client_id = user.take(at), client_id.take(at)
    cap_ms = judged.cap_ms[order]
    columns = [
        broker.take(at) if has_brokers else pa.repeat("", len(order)),
        user,
        client_id,
        names_of(QUOTA_TYPES, found.types[order]),
        *(pa.array(column[order]) for column in (found.observed, found.bound, found.window_ms, judged.raw_ms)),
        pa.array(cap_ms, mask=cap_ms == NO_CAP),
        pa.array(judged.capped_ms[order]),
        pa.array(found.level[order]),
        names_where(found.has_user[order], user),
        names_where(found.has_client_id[order], client_id),
        names_of(_MODES, found.sides[order]),
        pa.array(judged.applied[order]),
    ]
    return pa.Table.from_arrays(columns, schema=SCHEMA)


def _ranks(*columns: pa.Array) -> Ids:
    names = [str(i) for i in range(len(columns))]
    table = pa.table(dict(zip(names, columns, strict=True)))
    order = pc.sort_indices(table, [(name, "ascending") for name in names]).to_numpy().astype(np.int64)
    ranks = np.empty(len(order), np.int64)
    ranks[order] = np.arange(len(order))
    return ranks


def _applied(local: Ids, types: Ints, sides: Ints, capped_ms: Ints, num_entities: int) -> Flags:
    """True for the row that applies to its entity: the largest above 0, of equal ones the first in `TIE_ORDER`."""
    largest = np.zeros(num_entities, np.int64)
    row_that_applies = np.full(num_entities, -1, np.int64)
    of_side = sides == Side.ENFORCED
    for quota_type in TIE_ORDER:
        rows = ((types == quota_type) & of_side).nonzero()[0]
        if not len(rows):
            continue
        rows = rows[capped_ms[rows] > largest[local[rows]]]
        largest[local[rows]] = capped_ms[rows]
        row_that_applies[local[rows]] = rows
    applied = np.zeros(len(local), np.bool_)
    applied[row_that_applies[row_that_applies >= 0]] = True
    return applied


def names_of(words: tuple[str, ...], codes: Ints) -> pa.Array:
    """A string column: the words at these positions of a short list."""
    return pa.array(words).take(pa.array(codes))


def names_where(condition: Flags, names: pa.Array) -> pa.Array:
    """The name where the condition is true, "" elsewhere."""
    return names if condition.all() else pc.if_else(pa.array(condition), names, pa.scalar(""))
