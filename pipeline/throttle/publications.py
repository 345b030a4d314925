"""Records that are about to be written, by columns: a table with a row for each, in the order they shall have.

`pipeline.throttle.held` says what the columns mean: they are the fields of `Publication` and of its `Reason`. Where a
field can be None, its column can be null.
"""

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipeline.throttle.held import Publication, Reason
from quota.entity import QUOTA_TYPES
from schemas.names import ClientKey

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

    Args:
        schema: The columns and their order.
        num_rows: Of the table.
        columns: Of each its values, or one value for all rows. Those that are missing are null; others are left out.
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
