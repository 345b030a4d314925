"""What the driver reads of messages with faults, and what it leaves to Spark; `test_fuzz` compares the two."""

import json

import pytest

from pipeline.stream.reading.driver_reading import Message, read_again
from tests.pipeline.stream.messages import (
    APPENDED_AT_MS,
    DAY_MS,
    LARGEST,
    PARTITION,
    RULES,
    TOO_OLD,
    array,
    event,
    message,
)

OFFSET = 2**40 + 7


def sent(value: bytes | None) -> Message:
    return Message("usage", PARTITION, OFFSET, APPENDED_AT_MS, value)


@pytest.mark.parametrize(
    ("value", "cause"),
    [
        (b"", "value must be JSON"),
        (b"{", "value must be JSON"),
        (b"{} {}", "value must be JSON"),
        (b'{"a":NaN}', "value must be JSON"),
        (b"\xff{}", "value must be JSON"),
        (b"\xef\xbb\xbf{}", "value must be JSON"),
        (b'{"user":"\\q"}', "value must be JSON"),
        (message(user="NAME").replace(b"NAME", b"\xff"), "user, client_id and broker_id must be UTF-8"),
        (message(produced_bytes=-1, unknown="\n", user=["a"], broker_id=1.5), "'produced_bytes' must be at least 0"),
        (b" 7 ", "value must be a JSON object or an array of objects"),
        (message(user=...), "'user' must be present"),
        (message(user=""), "'user' must not be empty"),
        (message(client_id="x" * 32_768), "'client_id' must be at most 32767 bytes of UTF-8"),
        (message(produced_bytes=-1), "'produced_bytes' must be at least 0"),
        (message(produced_bytes=LARGEST + 1), f"'produced_bytes' must be at most {LARGEST}"),
        (message(produced_bytes=10**30), f"'produced_bytes' must be at most {LARGEST}"),
        (message(produced_bytes="9" * 20), f"'produced_bytes' must be at most {LARGEST}"),
        (message(event_time_ms="-" + "9" * 20), "'event_time_ms' must be at least 0"),
        (message(produced_bytes=1.0), "'produced_bytes' must be a JSON integer"),
        (message(produced_bytes="BIG").replace(b'"BIG"', b"1e400"), "'produced_bytes' must be a JSON integer"),
        (message(produced_bytes=True), "'produced_bytes' must be a JSON integer"),
        (message(throttle_exempt="true"), "'throttle_exempt' must be true or false"),
        (message(event_time_ms=APPENDED_AT_MS - DAY_MS - 1), TOO_OLD),
    ],
)
def test_a_refused_message_is_one_dead_letter_with_its_cause_and_its_own_bytes(value: bytes, cause: str) -> None:
    read = read_again([sent(value)], DAY_MS)
    (letter,) = read.letters
    assert (letter.cause, letter.value, letter.element_index) == (cause, value, None)
    assert (letter.partition, letter.offset, letter.topic) == (PARTITION, OFFSET, "usage")
    assert (read.left, read.events, read.ignored_count) == ([], [], 0)


@pytest.mark.parametrize(
    "value",
    [None, b'{"user":1e400}', b"[" * 101, b"9" * 100, '["😀"]'.encode(), b'["\\n"]'],
)
def test_what_spark_may_read_in_another_way_is_left_to_it(value: bytes | None) -> None:
    assert read_again([sent(value)], DAY_MS).left == [sent(value)]


def test_an_array_is_read_element_by_element() -> None:
    values = [event(), {"user": 7}, None, "text", event(produced_bytes=-1, unknown=[{"a b": None}])]
    read = read_again([sent(array(*values))], DAY_MS)
    assert [(one.element_index, one.cause) for one in read.letters] == [
        (1, "'event_time_ms' must be present"),
        (2, "element must be a JSON object"),
        (3, "element must be a JSON object"),
        (4, "'produced_bytes' must be at least 0"),
    ]
    assert [one.value for one in read.letters[:3]] == [b'{"user":7}', b"null", b'"text"']
    assert json.loads(read.letters[3].value or b"")["unknown"] == [{"a b": None}]
    ((good, appended_at_ms),) = read.events
    assert ({name: value for name, value in good.items() if value is not None}, appended_at_ms) == (
        event(),
        APPENDED_AT_MS,
    )


@pytest.mark.parametrize(
    ("written", "name"),
    [
        (b"true", "true"),
        (b'[1, {"b": -0, "b": 1e10}]', '[1,{"b":0,"b":1.0E10}]'),
        (b"0.00012", "1.2E-4"),
        (b'"\\ud83d"', "?"),
        (b'"\\ud83d\\ude00"', "😀"),
        (b'["\\ud83d\\ude00\\u001f/"]', '["\\uD83D\\uDE00\\u001F/"]'),
        (b'"\xef\xbf\xbd"', "\ufffd"),
        (b'"first","user":"last"', "last"),
    ],
)
def test_a_name_that_is_no_text_is_its_json_text_as_spark_writes_it(written: bytes, name: str) -> None:
    read = read_again([sent(message(user="NAME").replace(b'"NAME"', written))], DAY_MS)
    assert ([fields["user"] for fields, _ in read.events], read.left) == ([name], [])


def test_bytes_that_are_not_utf8_do_no_harm_outside_of_names() -> None:
    read = read_again([sent(message(unknown="NAME").replace(b"NAME", b"\xff"))], DAY_MS)
    assert ([fields["user"] for fields, _ in read.events], read.letters) == ([event()["user"]], [])


def test_an_empty_array_is_ignored() -> None:
    read = read_again([sent(b"[]")], DAY_MS)
    assert (read.ignored_count, read.letters, read.left) == (1, [], [])


def test_good_elements_are_summed_as_spark_sums_them() -> None:
    exempt = event(throttle_exempt=True, io_time_ns=2, network_time_ns=3, produced_bytes=None)
    late = event(event_time_ms=APPENDED_AT_MS + 5, client_id=7, request_count=4)
    read = read_again([sent(array(event(io_time_ns=1), exempt, late, "bad"))], DAY_MS)
    rows = sorted(read.part(RULES).usage.to_pylist(), key=lambda row: row["client_id"])
    assert [row["client_id"] for row in rows] == ["7", "etl"]
    assert (rows[0]["last_event_ms"], rows[0]["clamped_count"], rows[0]["request_count"]) == (APPENDED_AT_MS, 1, 4)
    assert (rows[1]["produced_bytes"], rows[1]["io_time_ns"], rows[1]["exempt_time_ns"]) == (5, 1, 5)
    assert (rows[1]["event_count"], rows[1]["request_count"], rows[1]["network_time_ns"]) == (2, 2, None)
