"""Refuses messages that are no JSON by their first and last byte alone: text, other formats, messages cut off.

A flood of junk is mostly of this kind. Arrow finds it in all messages of a batch at once.
"""

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.stream.reading.collected_batch import DEAD_LETTER_SCHEMA
from pipeline.stream.reading.field_rules import NO_JSON

_BLANKS: Final = b" \t\r\n"
_DIGITS: Final = b"0123456789"
# With which bytes a value begins, and with which ones it then ends: an object, an array, a text, a number, a word.
_KINDS: Final = (
    (b"{", b"}"),
    (b"[", b"]"),
    (b'"', b'"'),
    (b"-" + _DIGITS, _DIGITS),
    (b"n", b"l"),
    (b"tf", b"e"),
)


def is_surely_no_json(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Whether no JSON begins like a message, or none that begins like it ends like it; false if that is not sure.

    Args:
        values: BINARY; null is false, a message without bytes is true.
    """
    first, last = pc.binary_slice(values, 0, 1), pc.binary_slice(values, -1)
    may_be_json = _is_one_of(first, _BLANKS)
    for begins, ends in _KINDS:
        may_be_json = pc.or_(may_be_json, pc.and_(_is_one_of(first, begins), _is_one_of(last, ends + _BLANKS)))
    return pc.and_(pc.invert(may_be_json), values.is_valid())


def _is_one_of(values: pa.ChunkedArray, characters: bytes) -> pa.ChunkedArray:
    return pc.is_in(values, pa.array([bytes([one]) for one in characters], pa.binary()))


def letters_of(messages: pa.Table) -> pa.Table:
    """The dead letters, as rows of `DEAD_LETTER_SCHEMA`, of messages that are no JSON.

    Args:
        messages: The columns of `DEAD_LETTER_SCHEMA` without `element_index` and `cause`.
    """
    count = messages.num_rows
    columns = {name: messages[name] for name in ("appended_at_ms", "topic", "partition", "offset", "value")}
    columns |= {"element_index": pa.nulls(count), "cause": pa.repeat(NO_JSON, count)}
    return pa.table([columns[name].cast(kind) for name, kind in _TYPES], schema=DEAD_LETTER_SCHEMA)


_TYPES: Final = tuple(zip(DEAD_LETTER_SCHEMA.names, DEAD_LETTER_SCHEMA.types, strict=True))
