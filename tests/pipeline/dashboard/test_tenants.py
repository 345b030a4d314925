"""Every answer about a member of a tenant that lends speaks of the tenant, with the same numbers."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from pipeline.dashboard.client import client_document
from pipeline.dashboard.views import Query, quotas_document
from pipeline.job.status import status_of
from pipeline.settings.model import Settings, TablesSettings
from pipeline.tables.port import table_uri
from pipeline.tables.queries import read_table
from pipeline.tables.quotas.table import QuotaTable, TenantTable
from tests.pipeline.cli.running import kquota
from tests.pipeline.dashboard.shop import START_MS, LivedTables, Sender, quota, reader_of

BYTES = "producer_byte_rate"
TENANTS = (
    {"tenant": "team-a", "user_patterns": ("alice", "bob", "carol"), BYTES: 400_000.0, "lend": True},
    {"tenant": "team-b", "user_patterns": ("eve",), "consumer_byte_rate": 1e6},
)
SENDERS = (
    Sender("alice", "etl", lambda _: {"produced_bytes": 500_000}),
    Sender("bob", "web", lambda _: {"produced_bytes": 30_000}),
    Sender("carol", "web", lambda _: {"produced_bytes": 10_000}),
    Sender("mallory", "web", lambda _: {"produced_bytes": 10_000}),
)
NOW = "alice shares team-a's 400.0 kB/s; 3.6 × its own 100.0 kB/s while others are idle"
OWN = "carol without a quota of its own shares team-a's 400.0 kB/s; 3.6 × its own 40.0 kB/s while others are idle"


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> LivedTables:
    """One member wants more than the others leave free."""
    quotas = [quota(user, "", producer_byte_rate=100_000.0) for user in ("alice", "bob", "mallory")]
    folder = tmp_path_factory.mktemp("sharing")
    tables = LivedTables(folder, quotas, SENDERS, START_MS, at_once=True, tenants=TENANTS)
    tables.live(39)
    return tables


def test_the_page_shows_the_tenant_with_its_members_inside(tables: LivedTables) -> None:
    full, idle = reader_of(tables.root).look(tables.now_ms).summary()["tenants"]
    assert (full["tenant"], full["bound"], full["members"], full["is_at_bound"]) == ("team-a", 400_000, 3, True)
    assert [one["name"] for one in full["shown"]] == ["alice", "bob", "carol without a quota of its own"]
    alice, *others = full["shown"]
    assert alice["borrowed"] == alice["observed"] - 100_000 > 0
    assert [one["borrowed"] for one in others] == [0, 0]
    assert full["used"] == pytest.approx(sum(one["observed"] for one in full["shown"]))
    assert full["text"].startswith("team-a lends alice ")
    assert (idle["tenant"], idle["text"]) == ("team-b", "no member of team-b uses anything")


def test_what_a_tenant_lends_is_not_over_the_quota(tables: LivedTables) -> None:
    reader = reader_of(tables.root)
    found = quotas_document(reader, reader.look(tables.now_ms), Query(search="alice"))
    alice = found["rows"][0]["bounds"][BYTES]
    assert alice["used"] > 2
    assert alice["standing"] in {"near", "within"}


def test_the_client_s_page_shows_its_tenant(tables: LivedTables) -> None:
    reader = reader_of(tables.root)
    state = reader.look(tables.now_ms)
    for client, sharing in ((("alice", "etl"), NOW), (("carol", "web"), OWN), (("mallory", "web"), None)):
        found = client_document(reader, state, client)["effective"][0]
        assert found["sharing"] == sharing
    assert (found["tenant"], found["own_bound"]) == (None, None)


def test_effective_says_what_a_member_may_use_now(tables: LivedTables) -> None:
    asked = ("quotas", "effective", "alice", "etl", "--tables", tables.root)
    assert f"{BYTES}: {NOW}" in kquota(*asked).stdout.splitlines()
    (document,) = json.loads(kquota(*asked, "-o", "json").stdout)
    of_bytes = document["effective"][0]
    assert (of_bytes["tenant"], of_bytes["own_bound"], of_bytes["sharing"]) == ("team-a", 100_000, NOW)
    (level,) = {row["tenant_level"] for row in read_table(table_uri(tables.root, "rates")).to_pylist()} - {None}
    assert of_bytes["tenant_level"] == level == pytest.approx(3.6, abs=0.05)
    assert of_bytes["bound"] == level * 100_000


def test_a_decision_is_explained_with_the_bound_of_its_tenant(tables: LivedTables) -> None:
    decisions = read_table(table_uri(tables.root, "decisions")).to_pylist()
    row = max((one for one in decisions if one["user"] == "alice"), key=lambda one: int(one["evaluated_at_ms"]))
    asked = ("throttles", "explain", row["decision_id"], "--tables", tables.root)
    told = dict(line.split(maxsplit=1) for line in kquota(*asked).stdout.splitlines() if line.startswith("  "))
    factor = row["bound"] / row["own_bound"]
    assert told["tenant"].startswith(f"alice shares team-a's 400.0 kB/s; {factor:.1f} × its own 100.0 kB/s while")
    document: dict[str, Any] = json.loads(kquota(*asked, "-o", "json").stdout)[0]
    assert document["sharing"] == told["tenant"]


def test_status_counts_the_tenants_and_names_those_at_their_bound(tables: LivedTables) -> None:
    told = kquota("status", "--tables", tables.root).stdout
    assert "tenants 2, at their bound: team-a\n" in told
    found = status_of(Settings(job="hand", tables=TablesSettings(root=tables.root)), tables.now_ms)
    assert (found.tenants, found.full_tenants) == (2, ["team-a"])
    versions = f"v{QuotaTable(tables.root).version()}, tenants v{TenantTable(tables.root).version()}"
    assert f"quotas  {versions} in force" in told
    effective = kquota("quotas", "effective", "alice", "etl", "--tables", tables.root)
    assert f"quotas {versions}, recent clients: " in effective.stderr


@pytest.fixture(scope="module")
def unnamed(tmp_path_factory: pytest.TempPathFactory) -> LivedTables:
    """No client has a quota: one user is in a tenant, and another one with one client in each of two."""
    tenants = (
        {"tenant": "team-a", "user_patterns": ("ann",), BYTES: 200_000.0, "owner": "dana"},
        {"tenant": "x", "client_id_patterns": ("streams-*",), BYTES: 1e6},
        {"tenant": "y", "client_id_patterns": ("etl*",), BYTES: 20e6},
    )
    senders = (
        Sender("ann", "etl", lambda _: {"produced_bytes": 60_000}),
        Sender("bob", "streams-1", lambda _: {"produced_bytes": 30_000}),
        Sender("bob", "etl-1", lambda _: {"produced_bytes": 90_000}),
    )
    folder = tmp_path_factory.mktemp("unnamed")
    tables = LivedTables(folder, [], senders, START_MS, at_once=True, tenants=tenants)
    tables.live(15)
    return tables


def test_a_member_without_a_quota_is_named_by_its_tenant_with_the_owner(unnamed: LivedTables) -> None:
    told = kquota("status", "--tables", unnamed.root).stdout
    assert re.search(rf"nearest ann/etl at .* its {BYTES}, by tenant team-a, as of ", told)
    summary = reader_of(unnamed.root).look(unnamed.now_ms).summary()
    for shown in ("talkers", "recent"):
        assert {row["owner"] for row in summary[shown] if row["user"] == "ann"} == {"dana"}, shown


def test_a_user_in_two_tenants_has_a_sensor_in_each(unnamed: LivedTables) -> None:
    reader = reader_of(unnamed.root)
    state = reader.look(unnamed.now_ms)
    for client_id, tenant, rate in (("streams-1", "x", 30_000), ("etl-1", "y", 90_000)):
        found = client_document(reader, state, ("bob", client_id))["effective"][0]
        assert (found["tenant"], found["shared_with"]) == (tenant, [])
        assert found["observed"] == pytest.approx(rate, rel=0.2)


def test_without_tenants_nothing_speaks_of_them(tmp_path: Path) -> None:
    quotas = [quota("alice", "", producer_byte_rate=100_000.0)]
    tables = LivedTables(tmp_path, quotas, SENDERS, START_MS, at_once=True)
    tables.live(2)
    assert TenantTable(tables.root).read().rows == ()
    assert reader_of(tables.root).look(tables.now_ms).summary()["tenants"] == []
    assert "\ntenants" not in kquota("status", "--tables", tables.root).stdout
