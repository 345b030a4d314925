"""What becomes of each message: what is taken and how it is summed, what is refused and why."""

import gc
import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pipeline.stream import usage_reader
from pipeline.stream.usage_columns import DEAD_LETTER_SCHEMA, LARGEST_SUM, USAGE_SCHEMA
from pipeline.stream.usage_reader import NO_JSON, NO_OBJECT, NO_OBJECTS, NO_UTF8, collector_paused
from tests.pipeline.stream.fuzz import append_times, beyond, comparable, faults_of, messages
from tests.pipeline.stream.messages import (
    APPENDED_AT_MS,
    DAY_MS,
    LARGEST,
    RULES,
    TOO_OLD,
    array,
    counts,
    dead,
    event,
    fetched,
    message,
    read,
    records,
    the_row,
    twice,
    usage,
)


@pytest.fixture(params=["both steps", "with causes only"], autouse=True)
def steps(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each message is read alike, whether or not the quick step may take it."""
    if request.param == "with causes only":
        monkeypatch.setattr(usage_reader, "_decoded", lambda _value: None)


def user(written: bytes) -> bytes:
    """A message with these bytes in place of the user's value."""
    return message(user="NAME").replace(b'"NAME"', written)


def size(written: bytes) -> bytes:
    """A message with these bytes in place of the produced bytes."""
    return message(produced_bytes="SIZE").replace(b'"SIZE"', written)


def deep(levels: int, opening: bytes = b"[", closing: bytes = b"]") -> bytes:
    return opening * levels + b"1" + closing * levels


NO_INTEGER = "'produced_bytes' must be a JSON integer"
TOO_LARGE = f"'produced_bytes' must be at most {LARGEST}"
HALF = "'user' must be Unicode text, without lone surrogates"
# The table of docs/meter.md, "What a usage message is": each odd thing that JSON may hold, and what becomes of it.
ODDITIES = {
    "-0 is 0": (size(b"-0"), 0),
    "1.0 is no integer": (size(b"1.0"), NO_INTEGER),
    "a number in quotes is no integer": (size(b'"7"'), NO_INTEGER),
    "true is no integer": (size(b"true"), NO_INTEGER),
    "40 digits are too large": (size(b"9" * 40), TOO_LARGE),
    "5000 digits are too large": (size(b"9" * 5_000), TOO_LARGE),
    "5000 digits below 0 are too small": (size(b"-" + b"9" * 5_000), "'produced_bytes' must be at least 0"),
    "01 is no JSON": (size(b"01"), NO_JSON),
    "NaN is no JSON": (size(b"NaN"), NO_JSON),
    "-Infinity is no JSON": (twice('"n":-Infinity'), NO_JSON),
    "of a name written twice the last one counts": (twice('"produced_bytes":7'), 7),
    "also if it is the wrong one": (twice('"produced_bytes":1e3'), NO_INTEGER),
    "a name written with an escape is that name": (message().replace(b"produced_bytes", b"produced\\u005fbytes"), 5),
    "a user that is an object": (user(b'{"a":[1]}'), "'user' must be a JSON string"),
    "half a character in a name": (user(b'"\\ud83d"'), HALF),
    "two halves are a character": (user(b'"\\ud83d\\ude00"'), 5),
    "half a character under an unknown name is ignored": (twice('"n":"\\ud83d"'), 5),
    "a byte that is no UTF-8, in a name": (user(b'"J\xe9r\xf4me"'), NO_UTF8),
    "a byte that is no UTF-8, elsewhere in the object": (twice('"n":"X"').replace(b"X", b"\xff"), NO_UTF8),
    "a byte order mark is no JSON": (b"\xef\xbb\xbf" + message(), NO_JSON),
    "UTF-16 is no JSON": (message().decode().encode("utf-16"), NO_JSON),
    "a control character in a text is no JSON": (user(b'"a\x01"'), NO_JSON),
    "U+007F in a text is a character": (user(b'"\x7f"'), 5),
    "blanks around it do no harm": (b" \t\r\n" + message() + b"\n ", 5),
    "two objects are no JSON": (message() + b"\n" + message(), NO_JSON),
    "a cut object is no JSON": (message()[:-1], NO_JSON),
    "100 levels are read": (twice('"n":' + deep(99).decode()), 5),
    "101 levels are too many": (twice('"n":' + deep(100).decode()), NO_JSON),
    "brackets in a text are no levels": (twice(f'"n":"{"[" * 200}\\"{"[" * 200}"'), 5),
    "a million open brackets are no JSON": (b"[" * 1_000_000, NO_JSON),
    "no bytes at all": (b"", NO_JSON),
    "null": (b"null", NO_OBJECTS),
    "a bracket too many": (b"[" + message() + b"] ]", NO_JSON),
    "a cut array": (b"[" + message() + b',{"user"', NO_JSON),
    "nothing after a comma": (b"[" + message() + b",]", NO_JSON),
    "another bracket at its end": (b"[" + message() + b"}", NO_JSON),
    "no comma": (b"[" + message() + b" " + message() + b"]", NO_JSON),
    "an element that is too deep": (b"[" + message() + b"," + deep(100) + b"]", NO_JSON),
    "an empty object": (b"{}", "'event_time_ms' must be present"),
}


@pytest.mark.parametrize(("value", "outcome"), ODDITIES.values(), ids=ODDITIES)
def test_each_oddity_of_json_has_one_outcome_and_the_model_agrees(value: bytes, outcome: int | str) -> None:
    batch = read(value)
    if isinstance(outcome, int):
        assert (the_row(batch)["produced_bytes"], batch.dead_count) == (outcome, 0)
    else:
        assert dead(batch) == [(0, None, outcome)]
    assert faults_of([value], [APPENDED_AT_MS]) == []


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"event_time_ms": ...}, "'event_time_ms' must be present"),
    ({"event_time_ms": 1.5}, "'event_time_ms' must be a JSON integer"),
    ({"event_time_ms": -1}, "'event_time_ms' must be at least 0"),
    ({"event_time_ms": 2**63}, "'event_time_ms' must be at most 9223372036854775807"),
    ({"event_time_ms": APPENDED_AT_MS - DAY_MS - 1}, TOO_OLD),
    ({"user": ""}, "'user' must not be empty"),
    ({"user": "x" * 32_768}, "'user' must be at most 32767 bytes of UTF-8"),
    ({"client_id": ...}, "'client_id' must be present"),
    ({"client_id": "\ud83d"}, "'client_id' must be Unicode text, without lone surrogates"),
    ({"client_id": 42}, "'client_id' must be a JSON string"),
    ({"client_id": "用" * 10_923}, "'client_id' must be at most 32767 bytes of UTF-8"),
    ({"broker_id": "😀" * 250_000}, "'broker_id' must be at most 32767 bytes of UTF-8"),
    ({"produced_bytes": LARGEST + 1}, TOO_LARGE),
    ({"fetched_bytes": -(2**63) - 1}, "'fetched_bytes' must be at least 0"),
    ({"throttle_exempt": 1}, "'throttle_exempt' must be true or false"),
    ({"schema_version": 0}, "'schema_version' must be at least 1"),
    ({"produced_bytes": -1, "unknown": "\n", "throttle_exempt": 5}, "'produced_bytes' must be at least 0"),
]


@pytest.mark.parametrize(("fields", "cause"), REFUSED, ids=[cause for _, cause in REFUSED])
def test_an_event_that_breaks_a_rule_is_a_dead_letter(fields: dict[str, Any], cause: str) -> None:
    alone, among = message(**fields), array(event(), event(**fields), event())
    batch = read(alone, among)
    assert dead(batch) == [(0, None, cause), (1, 1, cause)]
    assert batch.dead_letters["value"].to_pylist() == [alone, json.dumps(event(**fields)).encode()]
    assert (batch.good_count, batch.dead_count, the_row(batch)["produced_bytes"]) == (2, 2, 10)


def test_the_first_dead_elements_of_a_message_are_kept_and_the_others_counted() -> None:
    junk = [7] * 4_998
    batch = read(array(*junk, event(), 7, 7), b"broken", rules=replace(RULES, letters_per_message=3))
    assert (batch.good_count, batch.dead_count) == (1, 5_001)
    assert [(offset, index) for offset, index, _ in dead(batch)] == [(0, 0), (0, 1), (0, 2), (1, None)]
    causes = [cause for _, _, cause in dead(batch)]
    assert causes[:2] == [NO_OBJECT] * 2
    assert causes[2] == f"{NO_OBJECT}; 4997 more refused elements, up to element 5000"


def test_the_newest_append_time_is_of_all_messages_whatever_they_hold() -> None:
    for newest in (message(), None, b"no JSON", array(event()), b"[]"):
        assert read(message(), newest, message(), appended_at_ms=[5, 9, 7]).newest_append_ms == 9


def test_a_sum_stops_at_the_largest_sum() -> None:
    largest = [array(*[event(produced_bytes=LARGEST)] * 1024)] * 8
    exact, beyond = read(*largest), read(*largest, message(produced_bytes=1))
    assert (the_row(exact)["produced_bytes"], the_row(beyond)["produced_bytes"]) == (LARGEST_SUM, LARGEST_SUM)


def test_an_empty_batch_has_empty_tables_with_the_same_columns() -> None:
    batch, full = read(), read(array(event(), 7))
    assert (batch.usage, batch.dead_letters) == (USAGE_SCHEMA.empty_table(), DEAD_LETTER_SCHEMA.empty_table())
    assert (batch.newest_event_ms, batch.newest_append_ms, batch.size_bytes) == (None, None, 0)
    assert (full.usage.schema, full.dead_letters.schema) == (USAGE_SCHEMA, DEAD_LETTER_SCHEMA)


MIXED = [*messages(7, 40, comparable), None, b"[]", *messages(7, 10, beyond)]


@pytest.mark.parametrize("size_bytes", [1, 50, 200, 2_000])
def test_messages_that_are_read_in_slices_hold_the_same(size_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = read(*MIXED)
    monkeypatch.setattr(usage_reader, "BYTES_AT_ONCE", size_bytes)
    monkeypatch.setattr(usage_reader, "_ROWS_AT_ONCE", 3)
    sliced = read(*MIXED)
    assert (usage(sliced), dead(sliced), counts(sliced)) == (usage(whole), dead(whole), counts(whole))


def test_a_partition_that_is_read_batch_by_batch_holds_the_same() -> None:
    parts = records(MIXED).to_batches(max_chunksize=3)
    largest = max(len(value or b"") for value in MIXED)
    for most_bytes in (largest, largest - 1, 0):
        rows = [row for half in (parts[:3], parts[3:]) for row in usage_reader.read_partition(half, RULES, most_bytes)]
        found, found_count = usage_reader.from_partitions(pa.Table.from_batches(rows))
        small = [number for number, value in enumerate(MIXED) if len(value or b"") <= most_bytes]
        whole = usage_reader.read_usage(fetched(MIXED).take(small), RULES)
        assert found_count == len(MIXED) - len(small)
        assert (usage(found), dead(found), counts(found)) == (usage(whole), dead(whole), counts(whole))


_ENDS = st.sampled_from([bytes([one]) for one in b' \t\r\n{}[]"-09ntfleN.x\x00\xff\xef'])
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


@given(st.tuples(_ENDS, st.binary(max_size=3), _ENDS).map(b"".join) | _JSON.map(lambda one: json.dumps(one).encode()))
@example(b"{\n")
def test_short_messages_are_read_as_the_model_reads_them(value: bytes) -> None:
    assert faults_of([value], [APPENDED_AT_MS]) == []


@pytest.mark.parametrize("kind", [comparable, beyond])
@pytest.mark.parametrize("count", [1_500, pytest.param(10_000, marks=pytest.mark.long)])
def test_any_messages_are_read_as_the_model_reads_them(kind: Callable[[Random], bytes | None], count: int) -> None:
    assert faults_of(messages(11, count, kind), append_times(11, count)) == []


def test_the_garbage_collector_is_paused_inside_and_goes_on_after_a_failure() -> None:
    gc.enable()
    with suppress(ZeroDivisionError), collector_paused():
        with collector_paused():
            pass
        assert not gc.isenabled(), "a pause inside of another one does not end it"
        raise ZeroDivisionError
    assert gc.isenabled()
