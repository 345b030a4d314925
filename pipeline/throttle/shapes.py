"""The shapes of records that are about to be written: as objects, and as Arrow tables with a row for each.

The columns are the fields of `Publication` and of its `Reason`, in the order in which records are published. Where a
field can be None, its column can be null.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from quota.engine import QuotaEngine
from quota.entity import QUOTA_TYPES
from quota.holds import type_that_owes_most
from schemas.names import ClientKey
from schemas.throttle_record import Action, Cause

# A record that is about to be written, and why: one at a time, as in logs.
#
# Decisions and looks go by columns.


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a client must wait: the row of the quota type with the longest wait.

    Attributes:
        sensor_user: User part of the sensor, "" where the sensor has none.
        sensor_client_id: Client-id part of the sensor, "" where the sensor has none.
        observed: O, per second (bytes, or percent of one thread).
        bound: T, per second. None once no enforced quota applies any more.
        tokens: What the sensor's token bucket holds (negative: debt), None without debt carrying.
        owed_ms: How much longer the client must wait, seen now; at least 0.
        level: The quota level 1-8 that matched.
    """

    quota_type: str
    sensor_user: str
    sensor_client_id: str
    observed: float
    bound: float | None
    window_ms: int
    tokens: float | None
    owed_ms: int
    level: int | None


@dataclass(frozen=True, slots=True)
class Publication:
    """A record that is about to be written to the outbox; it gets its `publish_seq` there.

    Attributes:
        throttle_time_ms: Length of this slice, counted from the moment it is written; 0 for a release.
        decision_id: The decision that began this throttle; kept by its renewals and its release.
        due_ms: Steady time at which the wheel should have handed it out; None for a batch's record.
        lateness_ms: How much later it did; None for a batch's record.
        extends: Whether a violation makes a running throttle longer, under the id of the decision that began it.
    """

    key: ClientKey
    action: Action
    cause: Cause
    throttle_time_ms: int
    reason: Reason
    decision_id: str
    due_ms: int | None = None
    lateness_ms: int | None = None
    extends: bool = False


if TYPE_CHECKING:  # pyarrow's classes are generic to its stubs only
    from typing import TypeAlias

    Values: TypeAlias = pa.ChunkedArray[Any] | pa.Array[Any]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]

NO_BOUND: Final = np.inf
"""Stands for "no bound" in an array of bounds."""

NO_LEVEL: Final = 0
"""Stands for "not known" and "no quota" in an array of levels."""

CLIENTS: Final = pa.schema([(name, pa.string()) for name in ClientKey._fields])
"""Who: in broker scope the broker, else ""."""

REASONS: Final = pa.schema(
    [
        ("quota_type", pa.string()),
        ("sensor_user", pa.string()),
        ("sensor_client_id", pa.string()),
        ("observed", pa.float64()),
        ("bound", pa.float64()),
        ("window_ms", pa.int64()),
        ("tokens", pa.float64()),
        ("owed_ms", pa.int64()),
        ("level", pa.int64()),
    ]
)
"""Why: the fields of `Reason`."""

PUBLICATIONS: Final = pa.schema(
    [
        *CLIENTS,
        ("action", pa.string()),
        ("cause", pa.string()),
        ("throttle_time_ms", pa.int64()),
        *REASONS,
        ("decision_id", pa.string()),
        ("due_ms", pa.int64()),
        ("lateness_ms", pa.int64()),
        ("extends", pa.bool_()),
    ]
)
"""The fields of `Publication`, key and reason taken apart."""

# Not `empty_table`, which imports pandas.
NO_PUBLICATIONS: Final = pa.Table.from_batches([], PUBLICATIONS)


def table_of(schema: pa.Schema, num_rows: int, columns: "dict[str, Values | str | int]") -> pa.Table:
    """A table of a schema.

    * `schema`: The columns and their order.
    * `columns`: Of each its values, or one value for all rows. Those that are missing are null; others are left out.
    """
    arrays = []
    for field in schema:
        values = columns.get(field.name)
        if values is None:
            values = pa.nulls(num_rows, field.type)
        elif isinstance(values, str | int):
            values = pa.repeat(pa.scalar(values, field.type), num_rows)
        arrays.append(values)
    return pa.Table.from_arrays(arrays, schema=schema)


def columns_of(table: pa.Table, schema: pa.Schema) -> "dict[str, Values | str | int]":
    """The columns that a table and a schema share, as `table_of` takes them."""
    names = set(schema.names)
    return {name: table[name] for name in table.column_names if name in names}


def int64s(table: pa.Table, name: str) -> Ints:
    """A column without nulls."""
    values: Ints = table[name].to_numpy()
    return values


def bounds_of(table: pa.Table) -> Floats:
    """The column `bound`, `NO_BOUND` for null."""
    bounds = table["bound"].to_numpy()  # null is NaN
    return np.where(np.isnan(bounds), NO_BOUND, bounds)


def levels_of(table: pa.Table) -> Ints:
    """The column `level`, `NO_LEVEL` for null."""
    levels: Ints = np.nan_to_num(table["level"].to_numpy(), nan=NO_LEVEL).astype(np.int64)  # null is NaN
    return levels


def types_of(table: pa.Table) -> Ints:
    """The column `quota_type` as positions in `QUOTA_TYPES`."""
    types: Ints = pc.index_in(table["quota_type"], value_set=pa.array(QUOTA_TYPES)).to_numpy().astype(np.int64)
    return types


def publication_of(row: dict[str, Any]) -> Publication:
    """A row of `PUBLICATIONS` as an object."""
    return Publication(
        key=ClientKey(*(row[name] for name in CLIENTS.names)),
        reason=Reason(**{name: row[name] for name in REASONS.names}),
        **{name: row[name] for name in PUBLICATIONS.names if name not in (*CLIENTS.names, *REASONS.names)},
    )


# From the engine's answers to the reasons why clients must wait, by columns.
#
# The engine answers with three rows per client, one for each quota type; of these one is taken.

_SENSORS: Final = pa.schema([REASONS.field(name) for name in ("sensor_user", "sensor_client_id", "level")])


def entities_of(keys: Sequence[ClientKey]) -> pa.Table:
    """Clients as the engine's `entities` table: broker_id, user, client_id, all strings, in the order given."""
    names = zip(*keys, strict=True) if keys else ((), (), ())
    return pa.table(
        {column: pa.array(values, pa.string()) for column, values in zip(CLIENTS.names, names, strict=True)}
    )


def rows_of_types(answers: pa.Table, quota_types: Ints) -> pa.Table:
    """Of an answer of `evaluate` or `resolve` the row of one quota type per client.

    Args:
        answers: Three rows for each of n clients.
        quota_types: Positions in `QUOTA_TYPES`, int64[n].
    """
    return answers.take(pa.array(np.arange(len(quota_types)) * len(QUOTA_TYPES) + quota_types))


def reasons_of(engine: QuotaEngine, throttles: pa.Table, evaluated_at_ms: int) -> pa.Table:
    """What clients owe now, by the quota type with the longest wait; of `REASONS`, row for row.

    Where several types ask for the same wait (also: for none), it is the type that the throttle is held for. The sensor
    and its level are those that were published last, unless another type sets it or the bound has changed.

    * `throttles`: Of `HELD`.
    """
    owed = engine.evaluate(throttles.select(CLIENTS.names), evaluated_at_ms=evaluated_at_ms)
    known_types = types_of(throttles)
    owed_ms = int64s(owed, "owed_ms").reshape(-1, len(QUOTA_TYPES)).T
    types = type_that_owes_most(owed_ms, known_types)
    claims = rows_of_types(owed, types)
    is_sure = (types == known_types) & (bounds_of(claims) == bounds_of(throttles)) & (levels_of(throttles) != NO_LEVEL)
    sensors = throttles.select(_SENSORS.names)
    if not is_sure.all():
        unsure = np.flatnonzero(~is_sure)
        resolved = engine.resolve(throttles.select(CLIENTS.names).take(pa.array(unsure)))
        found = rows_of_types(resolved, types[unsure]).select(_SENSORS.names)
        # Those that are sure, then those that were resolved, back in the order of the clients.
        order = np.argsort(np.concatenate((np.flatnonzero(is_sure), unsure)))
        sensors = pa.concat_tables([sensors.filter(pa.array(is_sure)), found]).take(pa.array(order))
    return table_of(REASONS, len(types), columns_of(claims, REASONS) | columns_of(sensors, _SENSORS))
