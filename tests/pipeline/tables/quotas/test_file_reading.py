"""Files of quotas: rows, units and the place of mistakes (tests/pipeline/cli/test_quota_files.py); what is imported."""

import json
import math

import pytest

from pipeline.brokers.native import NativeQuota, imported
from pipeline.tables.quotas.files import QuotaFileRefused, from_text
from quota.units import Mistake
from tests.pipeline.brokers.quota_broker import client, ip, pair, user

PRODUCE, FETCH, REQUEST = "producer_byte_rate", "consumer_byte_rate", "request_percentage"
NO_BOUND = dict.fromkeys((PRODUCE, FETCH, REQUEST))
ROWS = """
- {user: alice, client_id: etl, producer_byte_rate: 1MB/s, mode: shadow, owner: null}
- user: <default>
  consumer_byte_rate: 2048
  request_percentage: 50%
"""
DECLARED = [
    {"user": "alice", "client_id": "etl", **NO_BOUND, PRODUCE: 1e6, "mode": "shadow", "owner": None},
    {"user": "<default>", "client_id": "", **NO_BOUND, FETCH: 2048.0, REQUEST: 50.0},
]


def mistakes_of(text: str) -> tuple[Mistake, ...]:
    with pytest.raises(QuotaFileRefused) as refused:
        from_text(text, "candidate.yaml")
    assert "quotas of candidate.yaml are not valid" in refused.value.message
    return refused.value.mistakes


def test_rows_of_the_table_are_read_as_a_list_and_under_quotas_and_rpks_form_has_units_too() -> None:
    assert from_text(ROWS) == DECLARED
    assert from_text("quotas:" + ROWS) == DECLARED
    (quota,) = from_text(
        "quotas: [{entity: [{name: a, type: user}], values: [{key: producer_byte_rate, values: 512KiB}]}]"
    )
    assert quota[PRODUCE] == 524288.0


def test_every_mistake_carries_its_place() -> None:
    text = "quotas:\n- user: 7\n  producer_byte_rate: 1KB\n  mode: loud\n- client_id: ''\n  size: 1\n"
    places = [(0, "user"), (0, PRODUCE), (0, "mode"), (1,), (1,)]
    assert [one.path for one in mistakes_of(text)] == [("quotas", *place) for place in places]
    json_text = json.dumps({"quotas": [{"user": "a", PRODUCE: 0}]}, indent=1)
    assert [one.path for one in mistakes_of(json_text)] == [("quotas", 0, PRODUCE)]


def test_all_keys_that_are_given_twice_in_json_are_found() -> None:
    first, second = '{"user": "a", "user": "b", "producer_byte_rate": 1}', '{"user": "c", "mode": "exempt", "note": "'
    text = f'{{"quotas":\n[{first}, {second}{"y" * 60}", "user": "d"}}]}}'
    found = [f"'user' is given 2 times, in {part}" for part in (first, f"{second}{'y' * 16}…")]
    assert [str(one) for one in mistakes_of(text)] == found


def test_every_bound_is_multiplied_by_the_factor_unless_it_becomes_too_large() -> None:
    quotas = [
        NativeQuota(user("bob"), {PRODUCE: 2.0**63, FETCH: 2.0**61}),
        NativeQuota(user(None), {REQUEST: 50.5}),
        NativeQuota(pair("alice", None), {PRODUCE: 1000.0, FETCH: 7.0}),
        NativeQuota(client("etl"), {FETCH: 1.0}),
    ]
    declared, left_out = imported(quotas, 3)
    assert ["producer_byte_rate is too large for a LONG" in line for line in left_out] == [True]
    assert sorted(declared, key=str) == [
        {"user": "", "client_id": "etl", **NO_BOUND, FETCH: 3.0},
        {"user": "<default>", "client_id": "", **NO_BOUND, REQUEST: 151.5},
        {"user": "alice", "client_id": "<default>", **NO_BOUND, PRODUCE: 3000.0, FETCH: 21.0},
        {"user": "bob", "client_id": "", FETCH: 3 * 2.0**61, REQUEST: None},
    ]


@pytest.mark.parametrize(
    ("quota", "told"),
    [
        (NativeQuota(ip("10.0.0.1"), {"connection_creation_rate": 7.0}), "kquota has no quotas for ip"),
        (NativeQuota(user("alice"), {"controller_mutation_rate": 2.5}), "=2.5; kquota does not meter it"),
        (NativeQuota(user("<default>"), {PRODUCE: 5.0}), "a name of the table must not be empty, nor <default>, "),
        (NativeQuota(user("alice"), {PRODUCE: math.nan}), "=nan; Quota producer_byte_rate must be a finite number"),
        (NativeQuota(user(None), {REQUEST: math.inf}), "=inf; Quota request_percentage must be a finite number"),
    ],
)
def test_what_the_table_can_not_hold_is_a_line_and_no_quota(quota: NativeQuota, told: str) -> None:
    declared, (line,) = imported([quota], 1)
    assert (declared, told in line) == ([], True)
