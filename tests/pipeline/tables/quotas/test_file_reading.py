"""Files of quotas: both forms, units, and the place and line of every mistake."""

import json

import pytest

from pipeline.tables.quotas.files import DeclaredQuota, QuotaFileRefused, from_text
from quota.units import Mistake

ROWS = """
- {user: alice, client_id: etl, producer_byte_rate: 1MB/s, mode: shadow, owner: null}
- user: <default>
  consumer_byte_rate: 2048
  request_percentage: 50%
"""
NONE = {"producer_byte_rate": None, "consumer_byte_rate": None, "request_percentage": None}
DECLARED = [
    DeclaredQuota("alice", "etl", {**NONE, "producer_byte_rate": 1e6}, {"mode": "shadow", "owner": None}),
    DeclaredQuota("<default>", "", {**NONE, "consumer_byte_rate": 2048.0, "request_percentage": 50.0}, {}),
]


def mistakes_of(text: str) -> tuple[Mistake, ...]:
    with pytest.raises(QuotaFileRefused) as refused:
        from_text(text, "candidate.yaml")
    assert "quotas of candidate.yaml are not valid" in refused.value.message
    return refused.value.mistakes


def test_rows_of_the_table_are_read_as_a_list_and_under_quotas() -> None:
    assert from_text(ROWS) == DECLARED
    assert from_text("quotas:" + ROWS) == DECLARED


def test_units_are_read_in_rpks_form_too() -> None:
    (quota,) = from_text(
        "quotas: [{entity: [{name: a, type: user}], values: [{key: producer_byte_rate, values: 512KiB}]}]"
    )
    assert quota.bounds["producer_byte_rate"] == 524288.0


def test_every_mistake_carries_its_entry_and_its_line() -> None:
    text = "quotas:\n- user: 7\n  producer_byte_rate: 1KB\n  mode: loud\n- client_id: ''\n  size: 1\n"
    assert [(one.path, one.line) for one in mistakes_of(text)] == [
        (("quotas", 0, "user"), 2),
        (("quotas", 0, "producer_byte_rate"), 3),
        (("quotas", 0, "mode"), 4),
        (("quotas", 1), 5),
        (("quotas", 1), 5),
    ]


def test_json_has_the_same_places_and_lines() -> None:
    text = json.dumps({"quotas": [{"user": "a", "producer_byte_rate": 0}]}, indent=1)
    (mistake,) = mistakes_of(text)
    assert (mistake.path, mistake.line) == (("quotas", 0, "producer_byte_rate"), 5)


def test_json_that_is_no_yaml_has_places_without_lines() -> None:
    (mistake,) = mistakes_of(r'{"quotas": [{"user": "\ud83d\ude00", "producer_byte_rate": 0}]}')
    assert (mistake.path, mistake.line) == (("quotas", 0, "producer_byte_rate"), None)


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("quotas:\n- user: a\n  user: b\n  producer_byte_rate: 1\n- user: c\n  mode: off\n  mode: exempt\n", [2, 5]),
        ('{"quotas":\n[{"user": "a", "user": "b", "producer_byte_rate": 1}]}', [2]),
        (r'{"quotas": [{"user": "\ud83d\ude00", "user": "b", "producer_byte_rate": 1}]}', [None]),
    ],
)
def test_all_keys_that_are_given_twice_are_found(text: str, lines: list[int | None]) -> None:
    assert [one.line for one in mistakes_of(text)] == lines


@pytest.mark.parametrize(("text", "line"), [('{"quotas":\n[}', 2), ("quotas: [\n}", 2), ("a: b: c", 1)])
def test_a_text_that_is_neither_json_nor_yaml_has_the_line_where_reading_ended(text: str, line: int) -> None:
    assert [one.line for one in mistakes_of(text)] == [line]
