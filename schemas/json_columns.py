"""Arrow columns as JSON texts, the same bytes that pydantic writes for the values one by one."""

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import TypeAdapter

from schemas.errors import UnsupportedFieldType

if TYPE_CHECKING:  # pyarrow's classes are generic to its stubs only
    from typing import TypeAlias

    Texts: TypeAlias = pa.Array[Any]

_STRINGS: Final[TypeAdapter[str | None]] = TypeAdapter(str | None)
_FLOATS: Final[TypeAdapter[list[float | None]]] = TypeAdapter(list[float | None])
_IS_ESCAPED: Final = np.isin(np.arange(256), [*range(0x20), ord('"'), ord("\\")])


def json_texts(record: str, name: str, column: "Texts") -> "Texts":
    """The JSON text of each value of a column; `null` for null.

    Args:
        record: whose column it is, for the error.
        name: of the column.
        column: strings, integers or floats.

    Returns:
        As many strings. Text beyond ASCII stays as it is; what JSON escapes is escaped in the shortest way.

    Raises:
        UnsupportedFieldType: the column has another type.
    """
    if pa.types.is_string(column.type):
        texts = _quoted(column)
    elif pa.types.is_integer(column.type):
        texts = column.cast(pa.string())
    elif pa.types.is_floating(column.type):
        return _floats(column)
    else:
        raise UnsupportedFieldType(record, name, column.type)
    return pc.fill_null(texts, "null") if texts.null_count else texts


def _quoted(names: "Texts") -> "Texts":
    if not _is_plain(names):
        return pa.array([_STRINGS.dump_json(name).decode() for name in names.to_pylist()], pa.string())
    quote = pa.scalar('"')
    quoted: Texts = pc.binary_join_element_wise(quote, names, quote, "")
    return quoted


def _is_plain(names: "Texts") -> bool:
    """Whether no name has a character that JSON escapes. In UTF-8 these are single bytes, and part of no other."""
    _, offsets, data = names.buffers()
    if not len(names) or data is None:
        return True
    ends = np.frombuffer(offsets, np.int32, len(names) + 1, names.offset * np.dtype(np.int32).itemsize)
    return not _IS_ESCAPED[np.frombuffer(data, np.uint8)[ends[0] : ends[-1]]].any()


def _floats(numbers: "Texts") -> "Texts":
    # No other library writes a float exactly as pydantic does: which digits, and where an exponent begins.
    if not len(numbers):
        return pa.array([], pa.string())
    written = _FLOATS.dump_json(numbers.to_pylist())
    return pa.array(written[1:-1].split(b","), pa.binary()).cast(pa.string())
