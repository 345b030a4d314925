"""The shapes of throttles and their records, step by step: as objects, and as Arrow tables with a row for each.

    PUBLICATIONS (who must wait, why, and how long) ─▶ WRITTEN (stored, on the topic); HELD (running)

The columns are the fields of the objects, in the order in which records are published. Where a field can be None, its
column can be null. Checks go by arrays (`quota.decisions.Claims`, `pipeline.throttle.lifecycle`); tables are for what
is published, objects for logs.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from quota.decisions import Claims, names_of, names_where
from quota.entity import QUOTA_TYPES
from quota.names import Pair
from schemas.names import ClientKey
from schemas.throttle_record import Action, Cause


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a client must wait: the row of the quota type with the longest wait.

    Attributes:
        sensor_user: User part of the sensor, "" where the sensor has none; so has `sensor_client_id`.
        observed: O, per second (bytes, or percent of one thread).
        bound: T, per second. None once no enforced quota applies any more.
        tokens: What the sensor's token bucket holds (negative: debt), None without debt carrying.
        owed_ms: How much longer the client must wait, seen now; at least 0.
        level: The quota level 1-8 that matched; None: not known.
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


@dataclass(frozen=True, slots=True)
class Written:
    """One publication as it was written: its position and its wall-clock end."""

    publication: Publication
    publish_seq: int
    throttled_until_ms: int


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

_NUMBERS: Final[dict[Any, pa.DataType]] = {
    **dict.fromkeys((int, int | None), pa.int64()),
    **dict.fromkeys((float, float | None), pa.float64()),
    bool: pa.bool_(),
}


def _fields_of(record: type, parts: dict[Any, pa.Schema]) -> Iterator[pa.Field]:
    for one in fields(record):
        yield from parts.get(one.type, [pa.field(one.name, _NUMBERS.get(one.type, pa.string()))])


CLIENTS: Final = pa.schema([(name, pa.string()) for name in ClientKey._fields])
"""Who: in broker scope the broker, else ""."""
REASONS: Final = pa.schema(_fields_of(Reason, {}))
PUBLICATIONS: Final = pa.schema(_fields_of(Publication, {ClientKey: CLIENTS, Reason: REASONS}))
WRITTEN: Final = pa.schema(_fields_of(Written, {Publication: PUBLICATIONS}))
HELD: Final = pa.schema(
    [
        *CLIENTS,
        *(REASONS.field(name) for name in ("quota_type", "sensor_user", "sensor_client_id", "bound", "level")),
        ("decision_id", pa.string()),
        ("end_ms", pa.int64()),
        ("due_ms", pa.int64()),
    ]
)
"""Running throttles: of the last record published for each the quota type, its sensor, bound (null: none) and level
(null: not known), the decision that began it, its end on the steady clock, and when its check or its end is due there.
"""


def table_of(schema: pa.Schema, num_rows: int, columns: "dict[str, Values | str | int]") -> pa.Table:
    """A table of a schema.

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
    return {name: table[name] for name in table.column_names if name in schema.names}


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
    own = [name for name in PUBLICATIONS.names if name not in (*CLIENTS.names, *REASONS.names)]
    return Publication(
        key=ClientKey(*(row[name] for name in CLIENTS.names)),
        reason=Reason(**{name: row[name] for name in REASONS.names}),
        **{name: row[name] for name in own},
    )


def records_of(written: pa.Table) -> Iterator[Written]:
    """The rows of a table of `WRITTEN` as objects."""
    for row in written.to_pylist():
        yield Written(publication_of(row), row["publish_seq"], row["throttled_until_ms"])


def rows_of_types(answers: pa.Table, quota_types: Ints) -> pa.Table:
    """Of an answer of `evaluate` or `resolve` the row of one quota type for each of n clients.

    * `quota_types`: Positions in `QUOTA_TYPES`, int64[n].
    """
    return answers.take(pa.array(np.arange(len(quota_types)) * len(QUOTA_TYPES) + quota_types))


def claims_of(figures: pa.Table, sensors: pa.Table, quota_types: Ints, level: Ints) -> Claims:
    """What n clients owe, by rows of tables.

    * `figures`: Columns observed, bound, window_ms, tokens and owed_ms.
    * `sensors`: Columns sensor_user and sensor_client_id; "" where it is not a tag.
    """
    has_user, has_client_id = (pc.not_equal(sensors[f"sensor_{part}"], "").to_numpy() for part in CLIENTS.names[1:])
    return Claims(
        quota_type=quota_types,
        has_user=has_user,
        has_client_id=has_client_id,
        observed=figures["observed"].to_numpy(),
        bound=bounds_of(figures),
        window_ms=int64s(figures, "window_ms"),
        tokens=figures["tokens"].to_numpy(),  # null is NaN
        owed_ms=int64s(figures, "owed_ms"),
        level=level,
    )


@dataclass(frozen=True, slots=True)
class Publications:
    """n records that are about to be written, in columns.

    Attributes:
        keys: Of each client: `QuotaEngine.keys_of`.
        clients: Who they are, of `CLIENTS`.
        claims: Why they must wait, or no longer.
        holds: A throttle; else a release.
        throttle_time_ms: Length of the slice; 0 for a release.
        decision_ids: The decisions that began the throttles, as texts.
        about: The other columns of `PUBLICATIONS`; those that are missing are null.
    """

    keys: Pair
    clients: pa.Table
    claims: Claims
    holds: Flags
    throttle_time_ms: Ints
    decision_ids: NDArray[np.object_]
    about: "dict[str, Values | str | int]"

    def __len__(self) -> int:
        return len(self.holds)

    def rows(self) -> pa.Table:
        """They as rows of `PUBLICATIONS`."""
        columns: dict[str, Values | str | int] = {
            **columns_of(self.clients, CLIENTS),
            "action": pc.if_else(pa.array(self.holds), "throttle", "release"),
            "throttle_time_ms": pa.array(self.throttle_time_ms),
            **_reasons_of(self.clients, self.claims),
            "decision_id": pa.array(self.decision_ids.tolist(), pa.string()),
            "extends": False,
            **self.about,
        }
        return table_of(PUBLICATIONS, len(self), columns)


def _reasons_of(clients: pa.Table, claims: Claims) -> "dict[str, Values | str | int]":
    return {
        "quota_type": names_of(QUOTA_TYPES, claims.quota_type),
        "sensor_user": names_where(claims.has_user, clients["user"]),
        "sensor_client_id": names_where(claims.has_client_id, clients["client_id"]),
        "observed": pa.array(claims.observed),
        "bound": pa.array(claims.bound, mask=np.isinf(claims.bound)),
        "window_ms": pa.array(claims.window_ms),
        "tokens": pa.array(claims.tokens, mask=np.isnan(claims.tokens)),
        "owed_ms": pa.array(claims.owed_ms),
        "level": pa.array(claims.level, mask=claims.level == NO_LEVEL),
    }
