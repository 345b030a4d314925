"""The rows of a decision: every violated quota of every client that sent usage, and which one applies."""

from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from quota.arrays import Flags, Floats, Ids, Ints
from quota.entity import QUOTA_TYPES, TIE_ORDER
from quota.resolution import Side
from quota.throttle_time import NO_CAP, ThrottleCaps, throttle_time_ms
from quota.usage import EntityNames

SCHEMA: Final = pa.schema(
    [
        ("broker_id", pa.string()),
        ("user", pa.string()),
        ("client_id", pa.string()),
        ("quota_type", pa.string()),
        ("observed", pa.float64()),
        ("bound", pa.float64()),
        ("window_ms", pa.int64()),
        ("raw_throttle_time_ms", pa.int64()),
        ("max_throttle_time_ms", pa.int64()),
        ("throttle_time_ms", pa.int64()),
        ("level", pa.int64()),
        ("sensor_user", pa.string()),
        ("sensor_client_id", pa.string()),
        ("mode", pa.string()),
        ("applied", pa.bool_()),
    ]
)
"""Columns of `QuotaEngine.record`: those of `decisions` without ids. Only `max_throttle_time_ms` can be null."""

_MODES: Final = ("enforce", "shadow")


@dataclass(frozen=True, slots=True)
class Violations:
    """The violated quotas of one type on one side, at most one per entity.

    Attributes:
        side: which resolution they belong to.
        quota_type: position in `QUOTA_TYPES`.
        rows: a usage row of each entity, int64[n].
        entities: the number of each entity, int64[n].
        observed: O per second, float64[n].
        bound: T per second, float64[n].
        window_ms: W, int64[n].
        level: 1–8, int64[n].
        has_user: True if the user is one of the sensor's tags, bool[n].
        has_client_id: True if the client-id is one of the sensor's tags, bool[n].
    """

    side: Side
    quota_type: int
    rows: Ids
    entities: Ids
    observed: Floats
    bound: Floats
    window_ms: Ints
    level: Ints
    has_user: Flags
    has_client_id: Flags


@dataclass(frozen=True, slots=True)
class Throttles:
    """Whom a batch asks to wait: the decisions that apply to n entities, each once, in no order. All arrays are of n.

    Attributes:
        rows: a usage row of the entity, int64.
        quota_type: position in `QUOTA_TYPES`, int64.
        bound: T per second, float64.
        level: 1–8, int64.
        throttle_time_ms: X after the cap, above 0, int64.
    """

    rows: Ids
    quota_type: Ints
    bound: Floats
    level: Ints
    throttle_time_ms: Ints

    @classmethod
    def none(cls) -> Self:
        """No client must wait."""
        nothing = np.zeros(0, np.int64)
        return cls(nothing, nothing, np.zeros(0, np.float64), nothing, nothing)


@dataclass(frozen=True, slots=True)
class Judged:
    """All n violations of a batch, and what follows from each. All arrays have n elements, except `first`.

    Attributes:
        rows: a usage row of the entity, int64.
        first: per entity the position of one of its violations, int64[m].
        local: the number of the entity among the m entities, from 0 to m − 1.
        types: position in `QUOTA_TYPES`.
        sides: the side it belongs to.
        observed: O per second, float64.
        bound: T per second, float64.
        window_ms: W.
        raw_ms: X before the cap.
        cap_ms: the cap; `NO_CAP` for none.
        capped_ms: X after the cap.
        level: 1–8.
        has_user: True if the user is one of the sensor's tags.
        has_client_id: True if the client-id is one of the sensor's tags.
        applied: True for the one violation that applies to its entity.
    """

    rows: Ids
    first: Ids
    local: Ids
    types: Ints
    sides: Ints
    observed: Floats
    bound: Floats
    window_ms: Ints
    raw_ms: Ints
    cap_ms: Ints
    capped_ms: Ints
    level: Ints
    has_user: Flags
    has_client_id: Flags
    applied: Flags

    def throttles(self) -> Throttles:
        """Those that apply."""
        applied = np.flatnonzero(self.applied)
        return Throttles(
            rows=self.rows[applied],
            quota_type=self.types[applied],
            bound=self.bound[applied],
            level=self.level[applied],
            throttle_time_ms=self.capped_ms[applied],
        )


def judge(violations: list[Violations], caps: ThrottleCaps, sample_window_ms: int) -> Judged:
    """Compute X of all violations (at least one), and which of them apply.

    Of an entity's enforced violations with a capped throttle time above 0, the one with the largest applies. Of equal
    ones it is that of the request quota, then that of the producer quota.
    """
    _, first, local = np.unique(_joined([v.entities for v in violations]), return_index=True, return_inverse=True)
    types = np.repeat([v.quota_type for v in violations], [len(v.rows) for v in violations])
    sides = np.repeat([int(v.side) for v in violations], [len(v.rows) for v in violations])
    observed, bound = _joined([v.observed for v in violations]), _joined([v.bound for v in violations])
    window_ms = _joined([v.window_ms for v in violations])
    raw_ms = throttle_time_ms(observed, bound, window_ms)
    cap_ms = _joined([caps.max_throttle_time_ms(v.quota_type, v.window_ms, sample_window_ms) for v in violations])
    capped_ms = np.where(cap_ms == NO_CAP, raw_ms, np.minimum(raw_ms, cap_ms))
    return Judged(
        rows=_joined([v.rows for v in violations]),
        first=first,
        local=local,
        types=types,
        sides=sides,
        observed=observed,
        bound=bound,
        window_ms=window_ms,
        raw_ms=raw_ms,
        cap_ms=cap_ms,
        capped_ms=capped_ms,
        level=_joined([v.level for v in violations]),
        has_user=_joined([v.has_user for v in violations]),
        has_client_id=_joined([v.has_client_id for v in violations]),
        applied=_applied(local, types, sides, capped_ms, len(first)),
    )


def decisions_table(judged: Judged, names: EntityNames) -> pa.Table:
    """The violations as rows.

    They are sorted by broker, user, client-id (by code point) and quota type, and enforced ones before shadow ones.
    """
    broker, user, client_id = names.take(judged.rows[judged.first])
    has_brokers = names.broker_id is not None
    rank = _ranks(*((broker,) if has_brokers else ()), user, client_id)[judged.local]
    order = np.argsort((rank * len(QUOTA_TYPES) + judged.types) * len(_MODES) + judged.sides)
    at = pa.array(judged.local[order])
    user, client_id = user.take(at), client_id.take(at)
    cap_ms = judged.cap_ms[order]
    columns = [
        broker.take(at) if has_brokers else pa.repeat("", len(order)),
        user,
        client_id,
        names_of(QUOTA_TYPES, judged.types[order]),
        pa.array(judged.observed[order]),
        pa.array(judged.bound[order]),
        pa.array(judged.window_ms[order]),
        pa.array(judged.raw_ms[order]),
        pa.array(cap_ms, mask=cap_ms == NO_CAP),
        pa.array(judged.capped_ms[order]),
        pa.array(judged.level[order]),
        _where(judged.has_user[order], user),
        _where(judged.has_client_id[order], client_id),
        names_of(_MODES, judged.sides[order]),
        pa.array(judged.applied[order]),
    ]
    return pa.Table.from_arrays(columns, schema=SCHEMA)


def _joined(parts: list[NDArray[Any]]) -> NDArray[Any]:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _ranks(*columns: pa.Array) -> Ids:
    """The position of each row when the rows are sorted by the columns."""
    names = [str(i) for i in range(len(columns))]
    table = pa.table(dict(zip(names, columns, strict=True)))
    order = pc.sort_indices(table, [(name, "ascending") for name in names]).to_numpy().astype(np.int64)
    ranks = np.empty(len(order), np.int64)
    ranks[order] = np.arange(len(order))
    return ranks


def _where(condition: Flags, names: pa.Array) -> pa.Array:
    """The name where the condition is true, "" elsewhere."""
    return names if condition.all() else pc.if_else(pa.array(condition), names, pa.scalar(""))


def _applied(local: Ids, types: Ints, sides: Ints, capped_ms: Ints, num_entities: int) -> Flags:
    """True for the row that applies to its entity: the largest above 0, of equal ones the first in `TIE_ORDER`."""
    largest = np.zeros(num_entities, np.int64)
    row_that_applies = np.full(num_entities, -1, np.int64)
    for quota_type in TIE_ORDER:
        rows = np.flatnonzero((types == quota_type) & (sides == Side.ENFORCED))
        rows = rows[capped_ms[rows] > largest[local[rows]]]
        largest[local[rows]] = capped_ms[rows]
        row_that_applies[local[rows]] = rows
    applied = np.zeros(len(local), np.bool_)
    applied[row_that_applies[row_that_applies >= 0]] = True
    return applied


def names_of(words: tuple[str, ...], codes: Ints) -> pa.Array:
    """A string column: the words at these positions of a short list."""
    return pa.array(words).take(pa.array(codes))
