"""What is refused by its first and last byte is what a parser refuses, too."""

import json

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pipeline.stream.reading.collected_batch import DEAD_LETTER_SCHEMA
from pipeline.stream.reading.driver_reading import Message, read_again
from pipeline.stream.reading.no_json import is_surely_no_json, letters_of

_ENDS = [bytes([one]) for one in b' \t\r\n{}[]"-09ntfleN.x\x00\xff\xef']


def is_refused(value: bytes | None) -> bool:
    found: bool = is_surely_no_json(pa.chunked_array([pa.array([value], pa.binary())]))[0].as_py()
    return found


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, False),
        (b"", True),
        (b" ", False),
        (b"no JSON", True),
        (b"\x00\x01avro", True),
        (b"\xef\xbb\xbf{}", True),
        (b"NaN", True),
        (b'{"user":"cut', True),
        (b'[{"user":1}', True),
        (b'"cut', True),
        (b"-", True),
        (b"-x", True),
        (b"nul", False),
        (b"nulX", True),
        (b"truX", True),
        (b"{}", False),
        (b"[]\n", False),
        (b" {", False),
        (b"-7", False),
        (b"null", False),
        (b"false", False),
        (b'"text"', False),
    ],
)
def test_a_message_is_refused_if_no_json_begins_and_ends_like_it(value: bytes | None, expected: bool) -> None:
    assert is_refused(value) is expected


@given(first=st.sampled_from(_ENDS), inner=st.binary(max_size=3), last=st.sampled_from(_ENDS))
@example(first=b"{", inner=b"", last=b"\n")
def test_the_parser_refuses_every_message_that_is_refused(first: bytes, inner: bytes, last: bytes) -> None:
    value = first + inner + last
    if is_refused(value):
        read = read_again([Message("t", 0, 0, 0, value)], 1)
        assert [letter.cause for letter in read.letters] == ["value must be JSON"]


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), st.lists))
def test_no_json_is_refused(value: object) -> None:
    text = json.dumps(value)
    assert not is_refused(text.encode()) or "NaN" in text or "Infinity" in text


def test_its_dead_letters_are_the_unchanged_messages() -> None:
    place = {"appended_at_ms": 5, "topic": "usage", "partition": 3, "offset": 2**40, "value": b"\xff"}
    rows = letters_of(pa.Table.from_pylist([place]))
    assert rows.schema == DEAD_LETTER_SCHEMA
    assert rows.to_pylist() == [{**place, "element_index": None, "cause": "value must be JSON"}]
