"""JSON text as Spark writes it; `test_fuzz` compares it with Spark's own."""

import json

import pytest

from pipeline.stream.reading.json_text import has_a_name_twice, json_text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0.0"),
        (-0.0, "-0.0"),
        (1.5, "1.5"),
        (-100.0, "-100.0"),
        (0.001, "0.001"),
        (0.00099, "9.9E-4"),
        (0.0123, "0.0123"),
        (9_999_999.0, "9999999.0"),
        (10_000_000.0, "1.0E7"),
        (1_234_567_890.125, "1.234567890125E9"),
        (0.1 + 0.2, "0.30000000000000004"),
        (1e23, "1.0E23"),
        (5e-324, "4.9E-324"),
        (1.7976931348623157e308, "1.7976931348623157E308"),
    ],
)
def test_a_double_is_written_as_java_writes_it(value: float, text: str) -> None:
    assert json_text(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("a/b", '"a/b"'),
        ('\b\t\n\f\r"\\', '"\\b\\t\\n\\f\\r\\"\\\\"'),
        ("\x00\x1f\x7f", '"\\u0000\\u001F\x7f"'),
        ("é用\u2028", '"é用\u2028"'),
        ("😀", '"\\uD83D\\uDE00"'),
        ("\ud83d", '"\\uD83D"'),
        ([True, None, 2**70, []], f"[true,null,{2**70},[]]"),
    ],
)
def test_only_what_must_be_escaped_is(value: object, text: str) -> None:
    assert json_text(value) == text
    assert json.loads(text) == value


def test_all_members_of_an_object_are_written_but_the_last_of_a_name_counts() -> None:
    parsed = json.loads('{"b": 1, "a": {"c": [{}]}, "b": 2}', object_pairs_hook=tuple)
    assert json_text(parsed) == '{"b":1,"a":{"c":[{}]},"b":2}'
    assert dict(parsed)["b"] == 2


@pytest.mark.parametrize(
    ("text", "is_twice"), [('[{"a":1},{"a":1}]', False), ('[[{"b":{"a":1,"a":1}}]]', True), ('"a"', False)]
)
def test_a_name_that_is_twice_in_one_object_is_found(text: str, is_twice: bool) -> None:
    assert has_a_name_twice(json.loads(text, object_pairs_hook=tuple)) is is_twice
