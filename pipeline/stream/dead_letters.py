"""Dead letters: what is refused of the usage topic, one row each, and few rows for a message that is full of junk."""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

DEAD_LETTER_SCHEMA: Final = pa.schema(
    {
        "appended_at_ms": pa.int64(),
        "partition": pa.int64(),
        "offset": pa.int64(),
        "element_index": pa.int64(),
        "cause": pa.string(),
        "value": pa.binary(),
    }
)
MORE_REFUSED: Final = "further elements of such messages"
"""Stands for the cause of refused elements that have no row."""

_ORDER: Final = [(name, "ascending") for name in ("partition", "offset", "element_index")]


class DeadLetter(NamedTuple):
    """A message that is refused, by its place among those read, or an element of it.

    Attributes:
        element_index: Its place in an array, from 0; None if the whole message is refused.
        value: The unchanged bytes of the message or element.
    """

    place: int
    element_index: int | None
    cause: str
    value: bytes


class Refused(NamedTuple):
    """An element of an array that is refused: its place, from 0, and the cause."""

    element_index: int
    cause: str


def letters_of_elements(
    place: int, refused: Sequence[Refused], per_message: int, values_of: Callable[[Sequence[int]], Sequence[bytes]]
) -> list[DeadLetter]:
    """The dead letters of a message with refused elements: the first ones, the last of which counts the others.

    A message of one megabyte of junk would become half a million rows. The message itself is on the topic, at the
    partition and offset of its rows.

    * `refused`: In the order of the message; not empty.
    * `per_message`: Largest number of rows, > 0.
    * `values_of`: The bytes of some elements, by their places.
    """
    kept = list(refused[:per_message])
    if more := len(refused) - len(kept):
        index, cause = kept[-1]
        kept[-1] = Refused(index, f"{cause}; {more} more refused elements, up to element {refused[-1].element_index}")
    values = values_of([element.element_index for element in kept])
    return [DeadLetter(place, *element, value) for element, value in zip(kept, values, strict=True)]


def letter_rows(messages: pa.Table, letters: Sequence[DeadLetter]) -> pa.Table:
    """Dead letters as rows of `DEAD_LETTER_SCHEMA`."""
    if not letters:
        return DEAD_LETTER_SCHEMA.empty_table()
    places, elements, causes, values = zip(*letters, strict=True)
    columns = messages.select(DEAD_LETTER_SCHEMA.names[:3]).take(pa.array(places, pa.int64())).columns
    columns += [pa.array(elements, pa.int64()), pa.array(causes), pa.array(values, pa.binary())]
    return pa.table(dict(zip(DEAD_LETTER_SCHEMA.names, columns, strict=True))).cast(DEAD_LETTER_SCHEMA)


def merge_letters(tables: Sequence[pa.Table]) -> pa.Table:
    """Rows of several tables of `DEAD_LETTER_SCHEMA`, ordered by partition, offset and element."""
    rows = pa.concat_tables([DEAD_LETTER_SCHEMA.empty_table(), *tables])
    return rows.sort_by(_ORDER) if rows.num_rows else rows


def causes_of(letters: pa.Table, dead_count: int) -> dict[str, int]:
    """Count the refused elements by cause.

    * `dead_count`: All that were refused; those without a row are under `MORE_REFUSED`.
    """
    found: dict[str, int] = {}
    for pair in pc.value_counts(letters["cause"]).to_pylist():
        cause = pair["values"].partition("; ")[0]
        found[cause] = found.get(cause, 0) + pair["counts"]
    more = dead_count - letters.num_rows
    return found | ({MORE_REFUSED: more} if more else {})
