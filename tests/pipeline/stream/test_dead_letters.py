"""Which dead letters are kept of a message that is full of junk, and how they are counted by cause."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from pipeline.stream.dead_letters import MORE_REFUSED, DeadLetter, Refused, causes_of, letter_rows, letters_of_elements

NO_OBJECT = "element must be a JSON object"
MESSAGES = pa.table({"appended_at_ms": [7, 8], "partition": [0, 1], "offset": [2**40, 5]})


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
    def values_of(indexes: Sequence[int]) -> list[bytes]:
        assert len(indexes) <= 3
        return [str(index).encode() for index in indexes]

    letters = letters_of_elements(8, [Refused(index, NO_OBJECT) for index in elements], 3, values_of)
    assert letters == [DeadLetter(8, index, NO_OBJECT + more, str(index).encode()) for index, more in wanted]


def test_a_row_says_where_its_message_is() -> None:
    rows = letter_rows(MESSAGES, [DeadLetter(1, None, "junk", b"\xff"), DeadLetter(0, 3, "odd", b"7")]).to_pylist()
    assert [tuple(row.values()) for row in rows] == [
        (8, 1, 5, None, "junk", b"\xff"),
        (7, 0, 2**40, 3, "odd", b"7"),
    ]


def test_refused_elements_are_counted_by_cause_and_those_without_a_row_apart() -> None:
    causes = [NO_OBJECT, "junk", f"{NO_OBJECT}; 4 more refused elements, up to element 9"]
    rows = letter_rows(MESSAGES, [DeadLetter(0, None, cause, b"") for cause in causes])
    assert causes_of(rows, 7) == {NO_OBJECT: 2, "junk": 1, MORE_REFUSED: 4}
    assert causes_of(rows, 3) == {NO_OBJECT: 2, "junk": 1}
