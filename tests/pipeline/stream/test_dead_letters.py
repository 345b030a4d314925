"""Which dead letters are kept of a message that is full of junk."""

from itertools import chain
from typing import Any

import pyarrow as pa
import pytest

from pipeline.stream.reading.collected_batch import DEAD_LETTER_SCHEMA
from pipeline.stream.reading.dead_letters import capped

NO_OBJECT = "element must be a JSON object"


def letters(offset: int, *elements: int | None, partition: int = 0) -> list[dict[str, Any]]:
    return [
        {
            "appended_at_ms": 1,
            "topic": "t",
            "partition": partition,
            "offset": offset,
            "element_index": element,
            "cause": NO_OBJECT,
            "value": str(element).encode(),
        }
        for element in elements
    ]


def table(*rows: list[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(list(chain.from_iterable(rows)), DEAD_LETTER_SCHEMA)


def kept(capped_letters: pa.Table) -> list[tuple[int, int, int | None, str]]:
    rows = capped_letters.to_pylist()
    assert all(row["value"] == str(row["element_index"]).encode() for row in rows)
    return [
        (row["partition"], row["offset"], row["element_index"], row["cause"].removeprefix(NO_OBJECT)) for row in rows
    ]


@pytest.mark.parametrize(
    ("elements", "wanted"),
    [
        ((4, 6), [(4, ""), (6, "")]),
        ((4, 6, 7), [(4, ""), (6, ""), (7, "")]),
        ((4, 6, 7, 9), [(4, ""), (6, ""), (7, "; 1 more refused elements, up to element 9")]),
        (range(1_000), [(0, ""), (1, ""), (2, "; 997 more refused elements, up to element 999")]),
    ],
    ids=["fewer", "as many", "one more", "far more"],
)
def test_the_last_dead_letter_that_is_kept_says_how_many_more_there_were(elements: Any, wanted: Any) -> None:
    assert kept(capped(table(letters(8, *elements)), 3)) == [(0, 8, element, more) for element, more in wanted]


def test_each_message_is_capped_by_itself() -> None:
    all_of_them = table(
        letters(7, None), letters(8, 0, 1, 2), letters(9, 5), letters(8, 0, 1, partition=1), letters(9, 3, partition=1)
    )
    assert kept(capped(all_of_them, 1)) == [
        (0, 7, None, ""),
        (0, 8, 0, "; 2 more refused elements, up to element 2"),
        (0, 9, 5, ""),
        (1, 8, 0, "; 1 more refused elements, up to element 1"),
        (1, 9, 3, ""),
    ]
    assert capped(all_of_them, 1).schema == DEAD_LETTER_SCHEMA
    assert capped(all_of_them, 3).equals(all_of_them)
