"""Files of quotas: both forms, units, and the place of every mistake."""

import json
import math

import pytest

from pipeline.brokers.native import NativeQuota, imported
from pipeline.tables.quotas.files import QuotaFileRefused, applied, from_text
from quota.units import Mistake
from tests.pipeline.brokers.quota_broker import client, ip, pair, user

ROWS = """
- {user: alice, client_id: etl, producer_byte_rate: 1MB/s, mode: shadow, owner: null}
- user: <default>
  consumer_byte_rate: 2048
  request_percentage: 50%
"""
NONE = {"producer_byte_rate": None, "consumer_byte_rate": None, "request_percentage": None}
DECLARED = [
    {"user": "alice", "client_id": "etl", **NONE, "producer_byte_rate": 1e6, "mode": "shadow", "owner": None},
    {"user": "<default>", "client_id": "", **NONE, "consumer_byte_rate": 2048.0, "request_percentage": 50.0},
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
    assert quota["producer_byte_rate"] == 524288.0


def test_every_mistake_carries_its_place() -> None:
    text = "quotas:\n- user: 7\n  producer_byte_rate: 1KB\n  mode: loud\n- client_id: ''\n  size: 1\n"
    assert [one.path for one in mistakes_of(text)] == [
        ("quotas", 0, "user"),
        ("quotas", 0, "producer_byte_rate"),
        ("quotas", 0, "mode"),
        ("quotas", 1),
        ("quotas", 1),
    ]
    json_text = json.dumps({"quotas": [{"user": "a", "producer_byte_rate": 0}]}, indent=1)
    assert [one.path for one in mistakes_of(json_text)] == [("quotas", 0, "producer_byte_rate")]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (
            "quotas:\n- user: a\n  user: b\n  producer_byte_rate: 1\n- user: c\n  mode: off\n  mode: exempt\n",
            ["'user' is given 2 times, from line 2 on", "'mode' is given 2 times, from line 5 on"],
        ),
        (
            '{"quotas":\n[{"user": "a", "user": "b", "producer_byte_rate": 1}, '
            f'{{"user": "c", "mode": "exempt", "note": "{"y" * 60}", "user": "d"}}]}}',
            [
                """'user' is given 2 times, in {"user": "a", "user": "b", "producer_byte_rate": 1}""",
                f"""'user' is given 2 times, in {{"user": "c", "mode": "exempt", "note": "{"y" * 16}…""",
            ],
        ),
    ],
)
def test_all_keys_that_are_given_twice_are_found(text: str, found: list[str]) -> None:
    assert [str(one) for one in mistakes_of(text)] == found


@pytest.mark.parametrize(("text", "line"), [('{"quotas":\n[}', 2), ("quotas: [\n}", 2), ("a: b: c", 1)])
def test_a_text_that_is_neither_json_nor_yaml_has_the_line_where_reading_ended(text: str, line: int) -> None:
    assert [f": line {line}, column " in str(one) for one in mistakes_of(text)] == [True]


PRODUCE, FETCH, REQUEST = "producer_byte_rate", "consumer_byte_rate", "request_percentage"
NO_BOUND = dict.fromkeys((PRODUCE, FETCH, REQUEST))


@pytest.mark.parametrize("factor", [1, 3])
def test_every_bound_is_multiplied_by_the_factor(factor: int) -> None:
    quotas = [
        NativeQuota(user(None), {REQUEST: 50.5}),
        NativeQuota(pair("alice", None), {PRODUCE: 1000.0, FETCH: 7.0}),
        NativeQuota(client("etl"), {FETCH: 1.0}),
    ]
    declared, left_out = imported(quotas, factor)
    assert left_out == []
    assert sorted(declared, key=str) == [
        {"user": "", "client_id": "etl", **NO_BOUND, FETCH: 1.0 * factor},
        {"user": "<default>", "client_id": "", **NO_BOUND, REQUEST: 50.5 * factor},
        {"user": "alice", "client_id": "<default>", **NO_BOUND, PRODUCE: 1000.0 * factor, FETCH: 7.0 * factor},
    ]


@pytest.mark.parametrize(
    ("quota", "line"),
    [
        (
            NativeQuota(ip("10.0.0.1"), {"connection_creation_rate": 7.0}),
            "ip '10.0.0.1': connection_creation_rate=7; kquota has no quotas for ip",
        ),
        (
            NativeQuota(user("alice"), {"controller_mutation_rate": 2.5}),
            "user-principal 'alice': controller_mutation_rate=2.5; kquota does not meter it",
        ),
        (
            NativeQuota(user("<default>"), {PRODUCE: 5.0}),
            "user-principal '<default>': producer_byte_rate=5; a name of the table must not be empty, nor <default>, "
            "which is reserved for the default",
        ),
        (
            NativeQuota(user("alice"), {PRODUCE: math.nan}),
            "user-principal 'alice': producer_byte_rate=nan; Quota producer_byte_rate must be a finite number",
        ),
        (
            NativeQuota(user(None), {REQUEST: math.inf}),
            "the default user-principal: request_percentage=inf; Quota request_percentage must be a finite number",
        ),
    ],
)
def test_what_the_table_can_not_hold_is_a_line_and_no_quota(quota: NativeQuota, line: str) -> None:
    assert imported([quota], 1) == ([], [line])


def test_a_bound_that_becomes_too_large_is_left_out_and_told() -> None:
    quota = NativeQuota(user("alice"), {PRODUCE: 2.0**63, FETCH: 2.0**62})
    assert imported([quota], 1)[1] == []
    declared, left_out = imported([quota], 2)
    assert left_out == [
        "user-principal 'alice': producer_byte_rate=18446744073709552000; Proposed value for producer_byte_rate is too "
        "large for a LONG"
    ]
    assert declared == [{"user": "alice", "client_id": "", FETCH: 2.0**63, REQUEST: None}]


def test_the_table_keeps_what_can_not_be_imported_and_takes_the_rest() -> None:
    stored = {"user": "alice", "client_id": "", PRODUCE: 1.0, FETCH: 2.0, REQUEST: 3.0, "mode": "shadow"}
    quota = NativeQuota(user("alice"), {PRODUCE: math.nan, FETCH: 20.0, "controller_mutation_rate": 1.0})
    declared, left_out = imported([quota], 1)
    assert applied([stored], declared, prune=False) == [{**stored, FETCH: 20.0, REQUEST: None}]
    assert len(left_out) == 2
