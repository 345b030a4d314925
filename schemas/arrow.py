"""The Arrow schema of a model, and tables that are brought into it."""

from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pydantic import BaseModel

from schemas.columns import columns
from schemas.names import RowsDoNotFit

if TYPE_CHECKING:  # pyarrow's classes are generic to its stubs only
    from typing import TypeAlias

    _Values: TypeAlias = pa.ChunkedArray[Any] | pa.Array[Any]
    _Column: TypeAlias = pa.Array[Any]

# The types behind the Arrow names of the type table that pyarrow's own aliases do not cover: those with parameters.
_TYPES: Final[dict[str, pa.DataType]] = {
    "timestamp[us, tz=UTC]": pa.timestamp("us", "UTC"),
    "list<string>": pa.list_(pa.string()),
    "map<string, double>": pa.map_(pa.string(), pa.float64()),
}

_DECIDED_AT: Final = "evaluated_at_ms"


def arrow_schema(model: type[BaseModel]) -> pa.Schema:
    """The Arrow schema of a model: its fields in order. A field is nullable exactly if the model takes `None` for it.

    Raises:
        UnsupportedFieldType: the type table does not know the type of a field.
    """
    types = ((one, _TYPES.get(one.type) or pa.type_for_alias(one.type)) for one in columns(model))
    return pa.schema([pa.field(one.name, type_of_one, nullable=one.nullable) for one, type_of_one in types])


def conform(rows: pa.Table, model: type[BaseModel], **constants: str | int | float | bool) -> pa.Table:
    """A table with exactly the columns of a row model, in its order and types.

    Args:
        rows: any columns, in any order. Strings may be `string`, `large_string` or dictionaries. Columns that the model
            does not have are dropped.
        model: the row model.
        **constants: columns with one value for all rows (`cluster`, `query_id`, `batch_id`, …). They replace columns of
            the same name in `rows`.

    Returns:
        A table of `arrow_schema(model)`. A missing TIMESTAMP column `x` is made from `x_ms`. A missing `date` is the
        UTC day of `evaluated_at_ms`, or of the first `_ms` column of a model without `evaluated_at_ms`: clients choose
        the times of their events, and the day must not follow them. Any other missing column has the model's default
        in every row, or null if it may be null.

    Raises:
        RowsDoNotFit: a column that must not be null is missing or has a null, or a value does not fit its type.
    """
    arrays: dict[str, _Values] = dict(zip(rows.column_names, rows.columns, strict=True))
    schema = arrow_schema(model)
    for name, value in constants.items():
        arrays[name] = pa.repeat(pa.scalar(value, schema.field(name).type), rows.num_rows)
    times = [name for name in schema.names if name.endswith("_ms")]
    day_ms = _DECIDED_AT if _DECIDED_AT in times else next(iter(times), None)
    try:
        for field in schema:
            if field.name not in arrays:
                arrays[field.name] = _derived(field, arrays, day_ms, rows.num_rows, model)
        return pa.table({name: arrays[name] for name in schema.names}).cast(schema)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError) as exc:
        raise RowsDoNotFit(model.__name__, str(exc)) from exc


def _derived(
    field: "pa.Field[Any]", arrays: dict[str, "_Values"], day_ms: str | None, num_rows: int, model: type[BaseModel]
) -> "_Values":
    if pa.types.is_timestamp(field.type) and f"{field.name}_ms" in arrays:
        return _instants(arrays[f"{field.name}_ms"])
    if pa.types.is_date(field.type) and day_ms in arrays:
        days: _Values = _instants(arrays[day_ms]).cast(pa.date32())
        return days
    if field.nullable:
        return pa.nulls(num_rows, field.type)
    default = model.model_fields[field.name].default
    if isinstance(default, int):
        return pa.repeat(pa.scalar(default, field.type), num_rows)
    raise RowsDoNotFit(model.__name__, f"no column '{field.name}'")


def _instants(epoch_ms: "_Values") -> "_Values":
    # In two steps: a direct cast from int64 to microseconds would take the numbers for microseconds.
    milliseconds = epoch_ms.cast(pa.int64()).cast(pa.timestamp("ms", "UTC"))
    return milliseconds.cast(pa.timestamp("us", "UTC"))
