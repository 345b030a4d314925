"""Limits the dead letters of one message: a message of one megabyte of junk would become half a million rows."""

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

MORE_REFUSED: Final = "further elements of such messages"
"""Stands for the cause of refused elements that have no row."""


def capped(letters: pa.Table, per_message: int) -> pa.Table:
    """Keep the first refused elements of each message; the last row kept says how many more there were.

    Every refused element is counted: the number of all refused elements is the number of rows kept plus the number
    that the last row gives. The message itself is on the topic, at the partition and offset of its rows.

    Args:
        letters: `collected_batch.DEAD_LETTER_SCHEMA`, ordered by partition, offset and element.
        per_message: largest number of rows per message, > 0.

    Returns:
        The same columns and order. To the cause of the last row of a shortened message is added "; N more refused
        elements, up to element M".
    """
    if letters.num_rows <= per_message:
        return letters
    partition, offset = letters["partition"].to_numpy(), letters["offset"].to_numpy()
    begins = np.concatenate([[True], (partition[1:] != partition[:-1]) | (offset[1:] != offset[:-1])])
    starts = np.flatnonzero(begins)
    ends = np.append(starts[1:], letters.num_rows)
    place = np.arange(letters.num_rows) - np.repeat(starts, ends - starts)
    causes = letters["cause"].to_pylist()
    elements = letters["element_index"]
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        more = end - start - per_message
        if more > 0:
            causes[start + per_message - 1] += f"; {more} more refused elements, up to element {elements[end - 1]}"
    number = letters.schema.get_field_index("cause")
    counted = letters.set_column(number, letters.schema.field("cause"), pa.array(causes, pa.string()))
    return counted.filter(pc.less(pa.array(place), per_message))


def causes_of(letters: pa.Table, dead_count: int) -> dict[str, int]:
    """Count the refused elements by cause.

    Args:
        letters: As `capped` returns them.
        dead_count: All that were refused; those without a row are under `MORE_REFUSED`.
    """
    found: dict[str, int] = {}
    for pair in pc.value_counts(letters["cause"]).to_pylist():
        cause = pair["values"].partition("; ")[0]
        found[cause] = found.get(cause, 0) + pair["counts"]
    more = dead_count - letters.num_rows
    return found | ({MORE_REFUSED: more} if more else {})
