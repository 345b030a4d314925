"""Which messages the strict reader takes; `test_collect` and `test_fuzz` compare what it takes with Spark's reading."""

import json

import pytest

from pipeline.stream.reading.field_rules import FIELD_RULES
from pipeline.stream.reading.strict_reader import FIELDS, read_strictly
from tests.pipeline.stream.messages import LARGEST, array, event, message, twice


def fields(value: bytes) -> list[dict[str, object]] | None:
    read = read_strictly(value)
    return None if read is None else [{name: getattr(one, name) for name in FIELDS} for one in read]


def test_an_object_and_an_array_are_read_with_null_where_a_field_is_absent() -> None:
    whole = dict.fromkeys(FIELDS) | event()
    assert fields(message()) == [whole]
    assert fields(b" " + array(event(), event(produced_bytes=0, throttle_exempt=False)) + b"\n") == [
        whole,
        whole | {"produced_bytes": 0, "throttle_exempt": False},
    ]
    assert fields(b"[]") == []


@pytest.mark.parametrize(
    ("fields", "is_taken"),
    [
        ({"event_time_ms": 0}, True),
        ({"event_time_ms": 2**63 - 1}, True),
        ({"event_time_ms": 2**63}, False),
        ({"event_time_ms": -1}, False),
        ({"event_time_ms": None}, False),
        ({"event_time_ms": ...}, False),
        ({"produced_bytes": LARGEST}, True),
        ({"produced_bytes": LARGEST + 1}, False),
        ({"produced_bytes": None}, True),
        ({"produced_bytes": 5.0}, False),
        ({"produced_bytes": "5"}, False),
        ({"produced_bytes": True}, False),
        ({"schema_version": 0}, False),
        ({"throttle_exempt": 0}, False),
        ({"user": ""}, False),
        ({"client_id": ""}, True),
        ({"client_id": 42}, False),
        ({"broker_id": None}, True),
        ({"client_id": "x" * 32_767}, True),
        ({"client_id": "x" * 32_768}, False),
        ({"client_id": "é" * 16_383}, False),
        ({"client_id": "é" * 5_000}, True),
        ({"unknown": 1}, False),
    ],
)
def test_only_known_fields_within_their_bounds_are_taken(fields: dict[str, object], is_taken: bool) -> None:
    assert (read_strictly(message(**fields)) is not None) == is_taken
    assert (read_strictly(array(event(), event(**fields))) is not None) == is_taken


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"null",
        b"7",
        b"[7]",
        b"[null]",
        b"[[]]",
        message() + message(),
        message() + b"x",
        b"\xef\xbb\xbf" + message(),
        message()[:-1],
        message(user="x").replace(b"x", b"\xff"),
        message(user="x").replace(b"x", b"\xed\xa0\x80"),
        message(user="x").replace(b"x", b"\\ud800"),
        message(user="x").replace(b"x", b"\x01"),
        twice('"produced_bytes":-1,"produced_bytes":7'),
        twice('"produced_bytes":01'),
        twice('"produced_bytes":1e3'),
    ],
)
def test_a_message_with_any_fault_is_handed_back(value: bytes) -> None:
    assert read_strictly(value) is None


@pytest.mark.parametrize("name", ["a\\b", 'a"b', "é", "😀", "\x00", "\ufffd", "\ufeff", "\x7f"])
def test_names_come_through_unchanged_with_or_without_escapes(name: str) -> None:
    for text in (json.dumps(event(user=name)), json.dumps(event(user=name), ensure_ascii=False)):
        (read,) = read_strictly(text.encode()) or [None]
        assert read is not None
        assert read.user == name


def test_every_field_of_an_event_is_read() -> None:
    assert tuple(rule.name for rule in FIELD_RULES) == FIELDS
