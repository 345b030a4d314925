"""Files of quotas: rows, units and the place of mistakes (tests/pipeline/cli/test_quota_files.py); what is imported."""

import json
import math

import pytest

from pipeline.brokers.native import NativeQuota, imported
from pipeline.documents import json_text, yaml_text
from pipeline.tables.quotas.edit import validated
from pipeline.tables.quotas.files import Declared, QuotaFileRefused, applied, from_text, to_documents
from pipeline.tables.quotas.tenants import TENANT_ROWS, new_tenant
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
    assert " of candidate.yaml are not valid" in refused.value.message
    return refused.value.mistakes


def test_rows_are_read_as_a_list_or_under_quotas_and_rpks_form_has_units_too() -> None:
    assert from_text(ROWS) == Declared(DECLARED, None)
    assert from_text("quotas:" + ROWS) == Declared(DECLARED, None)
    rpks = "quotas: [{entity: [{name: a, type: user}], values: [{key: producer_byte_rate, values: 512KiB}]}]"
    (quota,) = from_text(rpks).quotas or ()
    assert quota[PRODUCE] == 524288.0


TENANTS = """
quotas: [{user: alice, producer_byte_rate: 1}]
---
kind: Tenant
tenant: team-a
user_patterns: [team-a-*, alice, team-a-*]
producer_byte_rate: 10MB/s
member.producer_byte_rate: 1MB/s
lend: true
ceiling: 3
owner: ada
---
kind: Tenant
tenant: team-b
client_id_patterns: ["etl-*"]
request_percentage: 200%
"""


def test_tenants_are_documents_of_their_own_or_a_list_next_to_the_quotas() -> None:
    declared = from_text(TENANTS)
    assert declared.quotas is not None
    assert [quota["user"] for quota in declared.quotas] == ["alice"]
    team_a, team_b = declared.tenants or []
    unset = {name: value for name, value in new_tenant("team-a").items() if name not in {"mode", "owner", "note"}}
    set_ = {PRODUCE: 1e7, f"member_{PRODUCE}": 1e6, "lend": True, "ceiling": 3.0, "owner": "ada"}
    assert team_a == {**unset, "user_patterns": ("team-a-*", "alice"), **set_}
    assert (team_b["client_id_patterns"], team_b[REQUEST], team_b["lend"]) == (("etl-*",), 200.0, False)
    stored = [{**new_tenant(row["tenant"]), **row} for row in (team_a, team_b)]
    for output in ("json", "yaml"):
        documents = to_documents([], stored, output)
        text = json_text(documents[0]) if output == "json" else "---\n".join(map(yaml_text, documents))
        again = from_text(text)
        rows = validated(applied([], again.tenants or (), prune=True, kind=TENANT_ROWS), kind=TENANT_ROWS)
        assert (again.quotas, rows) == ([], stored)


def test_a_file_says_nothing_of_a_table_that_it_does_not_name() -> None:
    (alone,) = from_text("--- {kind: Tenant, tenant: a, user_patterns: [a], producer_byte_rate: 1}").tenants or []
    assert alone["tenant"] == "a"
    assert from_text("--- {kind: Tenant, tenant: a}").quotas is None
    assert from_text("tenants: []") == Declared(None, [])
    assert from_text("quotas: []") == Declared([], None)


def test_what_a_file_does_not_declare_is_as_it_was() -> None:
    both, quotas = from_text(TENANTS), from_text(ROWS)
    tenants = Declared(None, both.tenants)
    rest = both.snapshot(3)
    assert ([one.name for one in rest.tenants], rest.versions) == (["team-a", "team-b"], (3, 3))
    assert (quotas.snapshot(7).tenants, quotas.snapshot(7).versions) == ((), (7, -1))
    with_rest = quotas.snapshot(7, rest)
    assert ([one.user for one in with_rest.quotas], with_rest.versions) == (["alice", "<default>"], (7, 3))
    assert with_rest.tenants == rest.tenants
    assert (tenants.snapshot(7).quotas, tenants.snapshot(7, rest).quotas) == ((), rest.quotas)
    assert tenants.snapshot(7, rest).versions == (7, 7)


@pytest.mark.parametrize(
    ("text", "mistakes"),
    [
        ("--- {kind: Team, tenant: a}", ["kind: 'kind' is \"Team\", not Tenant"]),
        (
            "--- {kind: Tenant, name: a}",
            ["name is not part of a tenant, which has tenant, user_", "tenant: 'tenant' is nu"],
        ),
        ("--- {kind: Tenant, tenant: a, user_patterns: a-*}", ["user_patterns: 'user_patterns' is \"a-*\", not a"]),
        ("--- {kind: Tenant, tenant: a, mode: exempt}", ["mode: 'mode' is \"exempt\", not one of enforce, shadow"]),
        ("--- {kind: Tenant, tenant: a, lend: 1}", ["lend: lend is 1, not true or false"]),
        ("--- {kind: Tenant, tenant: a, ceiling: much}", ["ceiling: ceiling is much, not a number"]),
        ("--- {kind: Tenant, tenant: a, member.producer_byte_rate: 1KB}", ["member_producer_byte_rate: 1KB has an un"]),
        ("tenants: [1]", ["tenants[0]: 1 is not a tenant"]),
        ("tenants: 1", ["the file is not a list of tenants, nor a mapping with the list 'tenants'"]),
        ("--- {tenants: [], size: 1}", ["size: 'size' is not part of a quota file"]),
        (
            f"{TENANTS}---\n{{kind: Tenant, tenant: team-a}}",
            ["document 4: tenant 'team-a' is already given in document"],
        ),
        ("tenants: [{tenant: a}, {tenant: a}]", ["tenants[1]: tenant 'a' is already given in [0]"]),
    ],
)
def test_every_mistake_of_a_tenant_is_reported_with_its_place(text: str, mistakes: list[str]) -> None:
    found = [str(one) for one in mistakes_of(text)]
    assert [one[: len(told)] for one, told in zip(found, mistakes, strict=True)] == mistakes


def test_the_fix_of_a_file_says_how_each_of_its_kinds_of_rows_is_written() -> None:
    with pytest.raises(QuotaFileRefused) as refused:
        from_text("quotas: [{user: 1}]\n--- {kind: Tenant, tenant: a}", "candidate.yaml")
    assert refused.value.message.startswith("quotas and tenants of candidate.yaml are not")
    assert all(f"; a {row} is written like" in refused.value.fix for row in ("quota", "tenant"))


def test_a_bound_of_members_under_both_of_its_names_is_refused() -> None:
    both = "{kind: Tenant, tenant: a, member.producer_byte_rate: 1, member_producer_byte_rate: 2}"
    (mistake,) = mistakes_of(f"--- {both}")
    assert str(mistake) == "'member_producer_byte_rate' is given 2 times, under both of its names"


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
