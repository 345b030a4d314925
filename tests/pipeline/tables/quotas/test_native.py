"""What becomes of the quotas of brokers in the table: values by a factor, and a line for all that it cannot hold."""

import math

import pytest

from pipeline.brokers.native import NativeQuota, imported
from pipeline.tables.quotas.files import DeclaredQuota, applied
from tests.pipeline.brokers.quota_broker import client, ip, pair, user

PRODUCE, FETCH, REQUEST = "producer_byte_rate", "consumer_byte_rate", "request_percentage"
NONE = dict.fromkeys((PRODUCE, FETCH, REQUEST))


@pytest.mark.parametrize("factor", [1, 3])
def test_every_bound_is_multiplied_by_the_factor(factor: int) -> None:
    quotas = [
        NativeQuota(user(None), {REQUEST: 50.5}),
        NativeQuota(pair("alice", None), {PRODUCE: 1000.0, FETCH: 7.0}),
        NativeQuota(client("etl"), {FETCH: 1.0}),
    ]
    declared, left_out = imported(quotas, factor)
    assert left_out == []
    assert set(map(str, declared)) == {
        str(DeclaredQuota("<default>", "", {**NONE, REQUEST: 50.5 * factor}, {})),
        str(DeclaredQuota("alice", "<default>", {**NONE, PRODUCE: 1000.0 * factor, FETCH: 7.0 * factor}, {})),
        str(DeclaredQuota("", "etl", {**NONE, FETCH: 1.0 * factor}, {})),
    }


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
    assert declared == [DeclaredQuota("alice", "", {FETCH: 2.0**63, REQUEST: None}, {})]


def test_the_table_keeps_what_can_not_be_imported_and_takes_the_rest() -> None:
    stored = {"user": "alice", "client_id": "", PRODUCE: 1.0, FETCH: 2.0, REQUEST: 3.0, "mode": "shadow"}
    quota = NativeQuota(user("alice"), {PRODUCE: math.nan, FETCH: 20.0, "controller_mutation_rate": 1.0})
    declared, left_out = imported([quota], 1)
    assert applied([stored], declared, prune=False) == [{**stored, FETCH: 20.0, REQUEST: None}]
    assert len(left_out) == 2
