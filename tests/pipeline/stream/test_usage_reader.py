"""What becomes of each message: what is taken and how it is summed, what is refused and why."""

import json
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pipeline.stream import usage_reader
from pipeline.stream.usage_columns import DEAD_LETTER_SCHEMA, LARGEST_SUM, USAGE_SCHEMA
from pipeline.stream.usage_reader import NO_JSON, NO_OBJECT, NO_OBJECTS, NO_UTF8
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
from tests.pipeline.stream.usage_model import expected_of, judged


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
    "1e3 is no integer": (size(b"1e3"), NO_INTEGER),
    "a number in quotes is no integer": (size(b'"7"'), NO_INTEGER),
    "true is no integer": (size(b"true"), NO_INTEGER),
    "40 digits are too large": (size(b"9" * 40), TOO_LARGE),
    "5000 digits are too large": (size(b"9" * 5_000), TOO_LARGE),
    "5000 digits below 0 are too small": (size(b"-" + b"9" * 5_000), "'produced_bytes' must be at least 0"),
    "5000 digits under an unknown name are ignored": (twice('"n":' + "9" * 5_000), 5),
    "01 is no JSON": (size(b"01"), NO_JSON),
    "NaN is no JSON": (size(b"NaN"), NO_JSON),
    "-Infinity is no JSON": (twice('"n":-Infinity'), NO_JSON),
    "of a name written twice the last one counts": (twice('"produced_bytes":7'), 7),
    "also after one of another type": (twice('"produced_bytes":[],"produced_bytes":7'), 7),
    "also if it is the wrong one": (twice('"produced_bytes":1e3'), NO_INTEGER),
    "a name written with an escape is that name": (message().replace(b"produced_bytes", b"produced\\u005fbytes"), 5),
    "a user that is an object": (user(b'{"a":[1]}'), "'user' must be a JSON string"),
    "half a character in a name": (user(b'"\\ud83d"'), HALF),
    "two halves are a character": (user(b'"\\ud83d\\ude00"'), 5),
    "half a character under an unknown name is ignored": (twice('"n":"\\ud83d"'), 5),
    "a byte that is no UTF-8, in a name": (user(b'"J\xe9r\xf4me"'), NO_UTF8),
    "half a character as bytes": (user(b'"\xed\xa0\xbd"'), NO_UTF8),
    "a byte that is no UTF-8, elsewhere in the object": (twice('"n":"X"').replace(b"X", b"\xff"), NO_UTF8),
    "a byte that is no UTF-8, outside of texts": (message() + b"\xff", NO_JSON),
    "a byte order mark is no JSON": (b"\xef\xbb\xbf" + message(), NO_JSON),
    "UTF-16 is no JSON": (message().decode().encode("utf-16"), NO_JSON),
    "a control character in a text is no JSON": (user(b'"a\x01"'), NO_JSON),
    "U+007F in a text is a character": (user(b'"\x7f"'), 5),
    "blanks around it do no harm": (b" \t\r\n" + message() + b"\n ", 5),
    "two objects are no JSON": (message() + b"\n" + message(), NO_JSON),
    "a cut object is no JSON": (message()[:-1], NO_JSON),
    "100 levels are read": (twice('"n":' + deep(99).decode()), 5),
    "101 levels are too many": (twice('"n":' + deep(100).decode()), NO_JSON),
    "101 levels are too many, written twice or not": (twice('"n":' + deep(100).decode() + ',"n":1'), NO_JSON),
    "brackets in a text are no levels": (twice(f'"n":"{"[" * 200}\\"{"[" * 200}"'), 5),
    "a million open brackets are no JSON": (b"[" * 1_000_000, NO_JSON),
    "no bytes at all": (b"", NO_JSON),
    "null": (b"null", NO_OBJECTS),
    "a text": (b'"text"', NO_OBJECTS),
    "an empty object": (b"{}", "'event_time_ms' must be present"),
}


@pytest.mark.parametrize("name", ODDITIES)
def test_each_oddity_of_json_has_one_outcome_and_the_model_agrees(name: str) -> None:
    value, outcome = ODDITIES[name]
    batch = read(value)
    expected = expected_of(judged([value]), [APPENDED_AT_MS], DAY_MS)
    if isinstance(outcome, int):
        assert (the_row(batch)["produced_bytes"], batch.dead_count) == (outcome, 0)
        assert (expected.good_count, expected.dead) == (1, [])
    else:
        assert dead(batch) == [(0, None, outcome)]
        assert batch.dead_letters["value"].to_pylist() == [value]
        assert expected.dead == [(0, None, value)]


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"event_time_ms": ...}, "'event_time_ms' must be present"),
    ({"event_time_ms": None}, "'event_time_ms' must be present"),
    ({"event_time_ms": "1700000000500"}, "'event_time_ms' must be a JSON integer"),
    ({"event_time_ms": 1.5}, "'event_time_ms' must be a JSON integer"),
    ({"event_time_ms": -1}, "'event_time_ms' must be at least 0"),
    ({"event_time_ms": 2**63}, "'event_time_ms' must be at most 9223372036854775807"),
    ({"event_time_ms": APPENDED_AT_MS - DAY_MS - 1}, TOO_OLD),
    ({"event_time_ms": 0}, TOO_OLD),
    ({"user": ...}, "'user' must be present"),
    ({"user": ""}, "'user' must not be empty"),
    ({"user": "x" * 32_768}, "'user' must be at most 32767 bytes of UTF-8"),
    ({"client_id": ...}, "'client_id' must be present"),
    ({"client_id": "\ud83d"}, "'client_id' must be Unicode text, without lone surrogates"),
    ({"broker_id": "\ud83d"}, "'broker_id' must be Unicode text, without lone surrogates"),
    ({"client_id": 42}, "'client_id' must be a JSON string"),
    ({"client_id": "用" * 10_923}, "'client_id' must be at most 32767 bytes of UTF-8"),
    ({"broker_id": 1}, "'broker_id' must be a JSON string"),
    ({"broker_id": "😀" * 250_000}, "'broker_id' must be at most 32767 bytes of UTF-8"),
    ({"produced_bytes": -1}, "'produced_bytes' must be at least 0"),
    ({"produced_bytes": LARGEST + 1}, TOO_LARGE),
    ({"fetched_bytes": -(2**63) - 1}, "'fetched_bytes' must be at least 0"),
    ({"io_time_ns": {"ns": 5}}, "'io_time_ns' must be a JSON integer"),
    ({"network_time_ns": [1]}, "'network_time_ns' must be a JSON integer"),
    ({"request_count": -1}, "'request_count' must be at least 0"),
    ({"throttle_exempt": "yes"}, "'throttle_exempt' must be true or false"),
    ({"throttle_exempt": 1}, "'throttle_exempt' must be true or false"),
    ({"broker_throttle_ms": 0.5}, "'broker_throttle_ms' must be a JSON integer"),
    ({"schema_version": 0}, "'schema_version' must be at least 1"),
    ({"produced_bytes": -1, "unknown": "\n", "throttle_exempt": 5}, "'produced_bytes' must be at least 0"),
]


@pytest.mark.parametrize(("fields", "cause"), REFUSED, ids=[cause for _, cause in REFUSED])
def test_an_event_that_breaks_a_rule_is_a_dead_letter_alone_or_in_an_array(fields: dict[str, Any], cause: str) -> None:
    alone, among = message(**fields), array(event(), event(**fields), event())
    batch = read(alone, among)
    assert dead(batch) == [(0, None, cause), (1, 1, cause)]
    assert batch.dead_letters["value"].to_pylist() == [alone, json.dumps(event(**fields)).encode()]
    assert (batch.good_count, batch.dead_count, the_row(batch)["produced_bytes"]) == (2, 2, 10)


def test_a_dead_element_keeps_its_own_bytes_and_costs_only_itself() -> None:
    good = json.dumps(event()).encode()
    elements = [
        b'{ "user" : 7 }',
        b"null",
        b'"a, [{\\"] \\u00e9"',
        b"1E+2",
        b"[ [ ] , {} ]",
        json.dumps(good.decode()).encode(),
        user(b'"\xff"'),
        user(b'"\\ud83d"'),
    ]
    value = b" [" + good + b" ,\n" + b" , ".join(elements) + b"\t," + good + b"] "
    batch = read(value)
    causes = [
        "'event_time_ms' must be present",
        *[NO_OBJECT] * 5,
        NO_UTF8,
        HALF,
    ]
    assert dead(batch) == [(0, index, cause) for index, cause in enumerate(causes, start=1)]
    assert batch.dead_letters["value"].to_pylist() == elements
    assert (batch.good_count, the_row(batch)["event_count"], the_row(batch)["produced_bytes"]) == (2, 2, 10)


@pytest.mark.parametrize(
    "value",
    [
        b"[" + message() + b"] ]",
        b"[" + message() + b',{"user"',
        b"[" + message() + b",]",
        b"[," + message() + b"]",
        b"[" + message() + b"}",
        b"[" + message() + b" " + message() + b"]",
        b"[" + message() + b"," + deep(100) + b"]",
        b"[" + message() + b"],[" + message() + b"]",
    ],
)
def test_an_array_that_is_no_json_is_one_dead_letter_and_nothing_of_it_counts(value: bytes) -> None:
    batch = read(value)
    assert (dead(batch), batch.good_count) == ([(0, None, NO_JSON)], 0)


def test_elements_are_read_to_the_deepest_level_of_their_message() -> None:
    batch = read(b"[" + message() + b"," + deep(99) + b"]")
    assert (dead(batch), batch.good_count) == ([(0, 1, NO_OBJECT)], 1)


def test_the_first_dead_elements_of_a_message_are_kept_and_the_others_counted() -> None:
    junk = [7] * 4_998
    batch = read(array(*junk, event(), 7, 7), b"broken", rules=replace(RULES, letters_per_message=3))
    assert (batch.good_count, batch.dead_count) == (1, 5_001)
    assert [(offset, index) for offset, index, _ in dead(batch)] == [(0, 0), (0, 1), (0, 2), (1, None)]
    causes = [cause for _, _, cause in dead(batch)]
    assert causes[:2] == [NO_OBJECT] * 2
    assert causes[2] == f"{NO_OBJECT}; 4997 more refused elements, up to element 5000"


def test_null_and_empty_array_are_ignored_and_counted() -> None:
    batch = read(None, b"[]", b" [ ]\n", message())
    assert (batch.ignored_count, batch.good_count, batch.dead_count) == (3, 1, 0)


@pytest.mark.parametrize(
    "name", ["Jérôme", "用户", "😀", "a\x00b", 'quote"\\', "\ufffd", "\ufeff", "{", "null", " ", "\x7f"]
)
def test_names_come_through_unchanged_with_or_without_escapes(name: str) -> None:
    events = [event(user=name), event(client_id=name, broker_id=name)]
    for is_ascii in (True, False):
        batch = read(*(json.dumps(one, ensure_ascii=is_ascii).encode() for one in events))
        assert {key[1:] for key in usage(batch)} == {("", name, "etl"), (name, "alice", name)}


@pytest.mark.parametrize("name", ["user", "client_id", "broker_id"])
def test_a_name_of_the_largest_size_counts(name: str) -> None:
    names = ["x" * 32_767, "用" * 10_922 + "x"]
    batch = read(*[message(**{name: each}) for each in names])
    assert sorted(batch.usage[name].to_pylist()) == sorted(names)


def test_how_long_the_broker_made_a_client_wait_is_summed_and_changes_no_other_sum() -> None:
    waited = the_row(read(message(broker_throttle_ms=5_000), message(broker_throttle_ms=40), message()))
    not_known = the_row(read(message(), message(), message()))
    assert (waited.pop("broker_throttle_ms"), not_known.pop("broker_throttle_ms")) == (5_040, None)
    assert waited == not_known


def test_a_sum_is_null_only_if_no_event_had_the_measure() -> None:
    values = [
        message(user="none", produced_bytes=...),
        message(user="zero", produced_bytes=0, io_time_ns=0),
        message(user="mixed", produced_bytes=...),
        message(user="mixed", produced_bytes=7),
    ]
    by_user = {key[2]: row for key, row in usage(read(*values)).items()}
    assert [by_user[user]["produced_bytes"] for user in ("none", "zero", "mixed")] == [None, 0, 7]
    assert [by_user[user]["io_time_ns"] for user in ("none", "zero", "mixed")] == [None, 0, None]
    assert [by_user[user]["exempt_time_ns"] for user in ("none", "zero", "mixed")] == [None, None, None]


def test_exempt_request_time_is_kept_apart_and_exempt_bytes_are_not() -> None:
    values = [
        message(throttle_exempt=True, io_time_ns=10, network_time_ns=3),
        message(throttle_exempt=True, io_time_ns=...),
        message(throttle_exempt=True, network_time_ns=100),
        message(throttle_exempt=False, io_time_ns=1_000),
    ]
    row = the_row(read(*values))
    assert (row["io_time_ns"], row["network_time_ns"], row["exempt_time_ns"]) == (1_000, None, 113)
    assert row["produced_bytes"] == 20


def test_an_event_later_than_its_record_is_taken_as_of_the_record() -> None:
    #        sample windows   |9000 …… 9999|10000 = appended
    #        event times              x    =            > >
    times = (APPENDED_AT_MS - 1, APPENDED_AT_MS, APPENDED_AT_MS + 1, 2**63 - 1)
    batch = read(*[message(event_time_ms=time_ms) for time_ms in times])
    found = {
        key[0]: (row["event_count"], row["clamped_count"], row["last_event_ms"]) for key, row in usage(batch).items()
    }
    assert found == {
        APPENDED_AT_MS - 1000: (1, 0, APPENDED_AT_MS - 1),
        APPENDED_AT_MS: (3, 2, APPENDED_AT_MS),
    }
    assert (batch.clamped_count, batch.newest_event_ms) == (2, APPENDED_AT_MS)


def test_the_oldest_event_that_counts_is_a_day_older_than_its_record() -> None:
    oldest_ms = APPENDED_AT_MS - DAY_MS
    batch = read(
        message(event_time_ms=oldest_ms),
        array(event(event_time_ms=1_700_000_000), event(), event(event_time_ms=oldest_ms - 1)),
    )
    assert dead(batch) == [(1, 0, TOO_OLD), (1, 2, TOO_OLD)]
    assert {key[0] for key in usage(batch)} == {oldest_ms, 1_700_000_000_000}


def test_usage_of_a_backlog_counts_however_late_it_is_read() -> None:
    long_ago_ms = 1_000_000_000_000
    batch = read(message(event_time_ms=long_ago_ms), appended_at_ms=long_ago_ms + 5)
    assert (batch.good_count, batch.newest_event_ms, batch.newest_append_ms) == (1, long_ago_ms, long_ago_ms + 5)


def test_the_newest_append_time_is_of_all_messages_whatever_they_hold() -> None:
    for newest in (message(), None, b"no JSON", array(event()), b"[]"):
        assert read(message(), newest, message(), appended_at_ms=[5, 9, 7]).newest_append_ms == 9


def test_a_sum_stops_at_the_largest_sum() -> None:
    largest = [array(*[event(produced_bytes=LARGEST)] * 1024)] * 8
    exact, beyond = read(*largest), read(*largest, message(produced_bytes=1))
    assert (the_row(exact)["produced_bytes"], the_row(beyond)["produced_bytes"]) == (LARGEST_SUM, LARGEST_SUM)


def test_an_empty_batch_has_empty_tables_with_the_same_columns() -> None:
    batch = read()
    assert (batch.usage, batch.dead_letters) == (USAGE_SCHEMA.empty_table(), DEAD_LETTER_SCHEMA.empty_table())
    assert (batch.newest_event_ms, batch.newest_append_ms, batch.size_bytes) == (None, None, 0)
    assert (read(message()).usage.schema, read(array(event(), 7)).dead_letters.schema) == (
        USAGE_SCHEMA,
        DEAD_LETTER_SCHEMA,
    )


MIXED = [
    *[message(user=name) for name in ("alice", "bob", "carol", "dave", "é", "😀", "\\", "7")],
    array(*[event(user=name, throttle_exempt=True, io_time_ns=5) for name in ("alice", "bob", "é", "7")]),
    array(event(), 7, event(user="bob", client_id=5), event(user="")),
    array(*[event(user=name) for name in ("alice", "bob", "😀")], event(user="")),
    array(),
    message(event_time_ms=APPENDED_AT_MS + 7, user="dave"),
    message(event_time_ms=APPENDED_AT_MS - DAY_MS - 1),
    user(b'"\xff"'),
    b"no JSON",
    b"\xff\xff\xff\xff",
    b"[]",
    None,
]


@pytest.mark.parametrize("size_bytes", [1, 50, 200, 2_000])
def test_messages_that_are_read_in_slices_hold_the_same(size_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = read(*MIXED)
    monkeypatch.setattr(usage_reader, "BYTES_AT_ONCE", size_bytes)
    monkeypatch.setattr(usage_reader, "_ROWS_AT_ONCE", 3)
    sliced = read(*MIXED)
    assert (usage(sliced), dead(sliced), counts(sliced)) == (usage(whole), dead(whole), counts(whole))


def test_a_partition_that_is_read_batch_by_batch_holds_the_same() -> None:
    parts = records(MIXED).to_batches(max_chunksize=3)
    sizes = sorted(len(value or b"") for value in MIXED)
    for most_bytes, large_count in ((sizes[-1], 0), (sizes[-1] - 1, 1), (0, len(MIXED) - 1)):
        rows = [row for half in (parts[:3], parts[3:]) for row in usage_reader.read_partition(half, RULES, most_bytes)]
        found, found_count = usage_reader.from_partitions(pa.Table.from_batches(rows))
        small = [number for number, value in enumerate(MIXED) if len(value or b"") <= most_bytes]
        whole = usage_reader.read_usage(fetched(MIXED).take(small), RULES)
        assert found_count == large_count
        assert (usage(found), dead(found), counts(found)) == (usage(whole), dead(whole), counts(whole))


_ENDS = st.sampled_from([bytes([one]) for one in b' \t\r\n{}[]"-09ntfleN.x\x00\xff\xef'])
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
_VALUES = (
    st.tuples(_ENDS, st.binary(max_size=3), _ENDS).map(b"".join)
    | _JSON.map(lambda value: json.dumps(value).encode())
    | st.lists(_JSON | st.just(event())).map(lambda value: json.dumps(value, ensure_ascii=False).encode())
)


@given(value=_VALUES)
@example(value=b"{\n")
def test_short_messages_are_read_as_the_model_reads_them(value: bytes) -> None:
    batch, expected = read(value), expected_of(judged([value]), [APPENDED_AT_MS], DAY_MS)
    letters = batch.dead_letters.to_pylist()
    assert [(row["offset"], row["element_index"], row["value"]) for row in letters] == expected.dead
    assert usage(batch) == expected.usage
    assert (batch.good_count, batch.ignored_count) == (expected.good_count, expected.ignored_count)
