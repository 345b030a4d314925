"""`kquota tenants`, and files of quotas with tenants: words, edits, warnings, files for both tables, versions."""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from pipeline.tables.quotas.table import EditedTable, TenantTable
from tests.pipeline.cli.running import Answer, kquota, new_tables
from tests.pipeline.cli.test_quota_edits import NEWEST_MS, use
from tests.pipeline.tables.factories import tenant
from tests.pipeline.tables.quotas.test_source import write_past_us

TEAM_A = (
    "team-a: users team-a-*, alice and client-ids etl-* may produce 10.0 MB/s together; each user without a quota of "
    "its own may produce 2.0 MB/s; what one leaves the others may use, up to 3 times their own bound; owner ada"
)


@pytest.fixture
def root(tmp_path: Path) -> str:
    folder = new_tables(tmp_path / "tables")
    config = "producer_byte_rate=10MB/s,member.producer_byte_rate=2MB/s,lend=true,ceiling=3,owner=ada"
    patterns = ("--add-user", "team-a-*", "--add-user", "alice", "--add-client-id", "etl-*")
    made = kquota(
        "tenants", "alter", "team-a", "--add-config", config, *patterns, "--reason", "first", "--tables", folder
    )
    assert made.exit_code == 0, made.stderr
    return folder


def tenants(root: str, *words: str, stdin: str = "") -> Answer:
    return kquota("tenants", *words, "--tables", root, stdin=stdin)


def alter(root: str, name: str, *words: str) -> Answer:
    return tenants(root, "alter", name, *words)


def described(root: str) -> list[str]:
    return tenants(root, "describe").stdout.splitlines()


def test_a_tenant_is_described_in_one_line_and_an_edit_names_each_value(root: str) -> None:
    assert described(root) == [TEAM_A]
    alter(root, "b", "--add-config", "consumer_byte_rate=5MB/s,request_percentage=50%,mode=shadow", "--add-user", "b")
    assert described(root)[0] == (
        "b: users b may fetch 5.0 MB/s, use 50.0 % together; each user without a quota of its own may fetch "
        "500.0 kB/s, use 5.0 %; no member gets more than its own bound; shadow: throttles no client"
    )
    assert "none of them throttles" not in tenants(root, "describe").stderr
    assert kquota("mode", "shadow", "--tables", root).exit_code == 0
    assert "none of them throttles while all quotas are in shadow mode" in tenants(root, "describe").stderr
    one = tenants(root, "describe", "team-a", "-o", "json")
    (row,) = json.loads(one.stdout)
    assert (row["user_patterns"], row["producer_byte_rate"], row["lend"]) == (["team-a-*", "alice"], 1e7, True)
    assert "tenants v3" in one.stderr
    edit = alter(root, "team-a", "--remove-user", "alice", "--delete-config", "ceiling,lend", "--add-config", "note=x")
    assert edit.stdout.splitlines()[1:] == [
        "alter   tenant 'team-a'  user_patterns  team-a-*, alice  team-a-*",
        "alter   tenant 'team-a'  lend           true             false",
        "alter   tenant 'team-a'  ceiling        3",
        "alter   tenant 'team-a'  note                            x",
    ]


def test_an_unknown_tenant_is_not_found_and_those_there_are_are_named(root: str) -> None:
    alters = (("alter", "team-b", *rest) for rest in (("--remove-user", "x"), ("--delete-config", "owner")))
    for words in (("describe", "team-b"), ("delete", "team-b"), *alters):
        answer = tenants(root, *words)
        assert answer.exit_code == 3
        assert "no tenant team-b; there are team-a. Fix: " in answer.stderr
    assert tenants(root, "delete", "team-a").exit_code == 0
    assert tenants(root, "describe").exit_code == 3


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--add-user", "alice", "--add-config", "producer_byte_rate=1"), "'alice' is in the tenants 'b' and 'team-a'"),
        (("--add-config", "producer_byte_rate=1"), "tenant 'b': it has no pattern"),
        (("--add-user", "b"), "tenant 'b': it has no bound"),
        (("--add-user", "<default>", "--add-config", "producer_byte_rate=1"), "user_patterns has '<default>'"),
        (("--add-user", "a*b", "--add-config", "producer_byte_rate=1"), "user_patterns has 'a*b'"),
        (("--add-config", "ceiling=0.5,lend=true"), "ceiling"),
        (("--add-user", "b", "--add-config", "producer_byte_rate=1,ceiling=2"), "with lend"),
        (("--add-user", "b", "--add-config", "member.request_percentage=1,producer_byte_rate=1"), "has no effect wi"),
        (("--add-config", "mode=exempt"), "unknown mode exempt; use enforce, shadow"),
        (("--add-config", "lend=maybe"), "lend is maybe, not true or false"),
        (("--add-config", "user_patterns=b"), "Unexpected config names: user_patterns; known are producer_byte_rate,"),
        (("--remove-user", "carol", "--add-user", "b"), "tenant 'b' has no user pattern carol"),
        (("--delete-config", "ceiling", "--add-user", "b"), "Invalid config(s): ceiling"),
    ],
)
def test_what_can_not_be_a_tenant_is_refused_with_the_reason(words: tuple[str, ...], told: str, root: str) -> None:
    refused = alter(root, "b", *words)
    assert (refused.exit_code, refused.stdout) == (5, "")
    assert "tenants were not changed: " in refused.stderr
    assert told in refused.stderr
    assert described(root) == [TEAM_A]


@pytest.mark.parametrize("words", [(), ("--add-user", ""), ("--add-config", "owner=a", "--add-config", "owner=b")])
def test_flags_that_can_not_be_meant_are_refused(words: tuple[str, ...], root: str) -> None:
    assert alter(root, "team-a", *words).exit_code == 2
    assert alter(root, "", "--add-user", "b").exit_code == 2


def test_an_edit_warns_of_patterns_that_match_all_or_less_than_one_may_think(root: str) -> None:
    rate = ("--add-config", "producer_byte_rate=1000")
    both = alter(root, "b", "--add-user", "*", "--add-client-id", "x-*", *rate, "-o", "json")
    everybody, never = json.loads(both.stdout)["warnings"]
    assert everybody.startswith("tenant 'b': user pattern * matches every user, so all clients are members that no ")
    assert never.startswith("tenant 'b': client-id pattern x-* matches pairs and clients without a quota, never the qu")
    assert "warning" not in alter(root, "b", "--add-user", "b-*").stderr, "only what is added is told"
    planned = alter(root, "c", "--add-client-id", "*", *rate, "--dry-run").stderr
    assert "warning: tenant 'c': client-id pattern * matches every client-id" in planned


def test_a_dry_run_writes_nothing_and_another_version_ends_with_4(root: str) -> None:
    planned = alter(root, "team-a", "--add-config", "ceiling=2", "--dry-run", "-o", "json")
    document = json.loads(planned.stdout)
    change = {"action": "alter", "tenant": "team-a", "column": "ceiling", "old": 3.0, "new": 2.0}
    same = {"version": 2, "previous_version": 2, "dry_run": True, "clients": [], "warnings": []}
    assert document == {**same, "changes": [change]}
    assert "tenants v2, dry run, nothing was written" in planned.stderr
    late = alter(root, "team-a", "--add-config", "ceiling=2", "--if-version", "1")
    assert (late.exit_code, "kquota tenants diff 1 2" in late.stderr) == (4, True)
    assert described(root) == [TEAM_A]


def test_a_dry_run_warns_of_patterns_that_match_no_name_that_was_seen(root: str) -> None:
    use(root, "bob", "web", NEWEST_MS)
    words = ("--add-user", "bob", "--add-user", "bop", "--add-user", "bo*", "--add-client-id", "x-*", "--dry-run")
    told = alter(root, "team-a", *words).stderr
    assert "warning: user 'bop' was never seen; did you mean bob?\n" in told
    assert "warning: client-id pattern x-* matches no name that was seen\n" in told
    assert "'bob' was" not in told
    assert "bo*" not in told


def test_a_dry_run_names_the_live_clients_that_come_into_a_tenant_or_leave_it(root: str) -> None:
    for user, client_id in (("alice", "web"), ("bob", "web")):
        use(root, user, client_id, NEWEST_MS)
    kquota("quotas", "alter", "--user", "alice", "--add-config", "producer_byte_rate=4MB/s", "--tables", root)
    words = ("--remove-user", "alice", "--add-user", "bob", "--dry-run")
    document = json.loads(alter(root, "team-a", *words, "-o", "json").stdout)
    moved = [
        tuple(client[name] for name in ("user", "old_tenant", "new_tenant", "new_level"))
        for client in document["clients"]
    ]
    assert moved == [("alice", "team-a", None, 3), ("bob", None, "team-a", 9)]
    shown = alter(root, "team-a", *words).stdout
    header, alice, bob = shown.partition("\n\n")[2].splitlines()
    assert header.split() == ["client", "type", "old", "new", "tenant"]
    assert alice.endswith("→ 4000000 (4.0 MB/s)  team-a → none")
    assert bob.endswith("none                  → 6000000 (6.0 MB/s)  none → team-a")
    applied = kquota("quotas", "apply", "-f", "-", "--dry-run", "-o", "json", "--tables", root, stdin=FILE)
    after = {client["user"]: client["new_tenant"] for client in json.loads(applied.stdout)["clients"]}
    assert after == {"alice": None, "bob": "team-b"}, "both tables count together"


def test_history_diff_and_rollback_are_those_of_the_quotas(root: str) -> None:
    alter(root, "team-a", "--add-config", "ceiling=2", "--reason", "less")
    less, first, *_ = json.loads(tenants(root, "history", "-o", "json").stdout)
    assert (less["reason"], first["reason"], "mode" in less) == ("less", "first", False)
    change = {"action": "alter", "tenant": "team-a", "column": "ceiling", "old": 3.0, "new": 2.0}
    assert less["changes"] == json.loads(tenants(root, "diff", "-o", "json").stdout) == [change]
    assert "tenants v2 → v3, values that differ: 1\n" in tenants(root, "diff").stderr
    back = tenants(root, "rollback", "2", "--reason", "sorry")
    assert back.stdout.splitlines()[1:] == ["alter   tenant 'team-a'  ceiling  2    3"]
    assert described(root) == [TEAM_A]
    newest = json.loads(tenants(root, "history", "-o", "json").stdout)[0]
    assert (newest["version"], newest["reason"]) == (4, "rollback to v2: sorry")
    future = tenants(root, "rollback", "99")
    assert (future.exit_code, "kquota tenants history" in future.stderr) == (3, True)


def test_a_refused_version_of_the_tenants_is_not_shown_as_in_force(root: str) -> None:
    invalid = write_past_us(TenantTable(root), tenant("b", 1.0, user_patterns=("alice",)))
    for command in (("tenants", "describe"), ("quotas", "export")):
        answer = kquota(*command, "--tables", root)
        assert "team-a" in answer.stdout
        assert "tenant: b" not in answer.stdout
        assert f"v{invalid - 1} is in force" in answer.stderr
        assert f"kquota tenants rollback {invalid - 1}" in answer.stderr


FILE = """
quotas: [{user: bob, producer_byte_rate: 1MB/s}]
---
{kind: Tenant, tenant: team-a, user_patterns: [team-a-*], producer_byte_rate: 5MB/s}
---
{kind: Tenant, tenant: team-b, user_patterns: [bob], consumer_byte_rate: 1MB/s}
"""


def test_one_file_changes_quotas_and_tenants_and_an_export_reads_back(root: str, tmp_path: Path) -> None:
    done = kquota("quotas", "apply", "-f", "-", "--exit-code", "--tables", root, stdin=FILE)
    assert done.exit_code == 1
    assert "add     user-principal 'bob'  producer_byte_rate" in done.stdout
    assert "alter   tenant 'team-a'       producer_byte_rate" in done.stdout
    assert "owner ada" in described(root)[0], "an owner that the file does not name stays"
    assert "no member gets more than its own bound" in described(root)[0], "what else it does not name goes"
    assert kquota("quotas", "apply", "-f", "-", "--exit-code", "--tables", root, stdin=FILE).exit_code == 0
    elsewhere = new_tables(tmp_path / "elsewhere")
    for output in ("yaml", "json"):
        exported = kquota("quotas", "export", "-o", output, "--tables", root).stdout
        same = kquota("quotas", "apply", "-f", "-", "--prune", "--exit-code", "--tables", root, stdin=exported)
        assert (same.exit_code, same.stdout) == (0, "")
        kquota("quotas", "apply", "-f", "-", "--tables", elsewhere, stdin=exported)
        assert described(elsewhere) == described(root)


def test_an_export_counts_the_tenants(root: str) -> None:
    assert "tenants v2: 1 tenant\n" in kquota("quotas", "export", "--tables", root).stderr


def test_a_file_prunes_only_the_table_that_it_names(root: str) -> None:
    kquota("quotas", "alter", "--user", "alice", "--add-config", "producer_byte_rate=1", "--tables", root)
    apply = ("quotas", "apply", "--prune", "-f", "-", "--tables", root)
    kquota(*apply, stdin="quotas: [{user: bob, producer_byte_rate: 1}]")
    assert described(root) == [TEAM_A]
    kquota(*apply, stdin="---" + FILE.rpartition("---")[2])
    assert [line.partition(":")[0] for line in described(root)] == ["team-b"]
    quotas = kquota("quotas", "describe", "--tables", root).stdout
    assert quotas.splitlines() == ["Quota configs for user-principal 'bob' are producer_byte_rate=1.0"]
    refused = kquota(*apply, stdin="tenants: []")
    assert (refused.exit_code, "--allow-empty" in refused.stderr) == (5, True)
    assert kquota(*apply, "--allow-empty", stdin="tenants: []").exit_code == 0
    assert described(root) == []


def test_the_tenants_of_a_file_alone_are_applied(root: str) -> None:
    done = tenants(root, "apply", "-f", "-", "-o", "json", stdin=FILE)
    assert {change["tenant"] for change in json.loads(done.stdout)["changes"]} == {"team-a", "team-b"}
    assert kquota("quotas", "describe", "--tables", root).exit_code == 3
    none = tenants(root, "apply", "-f", "-", stdin="quotas: []")
    assert (none.exit_code, "the file declares no tenants" in none.stderr) == (5, True)


def test_a_file_with_an_impossible_tenant_changes_no_quota(root: str) -> None:
    broken = FILE.replace("[bob]", "[team-a-*]")
    refused = kquota("quotas", "apply", "-f", "-", "--tables", root, stdin=broken)
    assert (refused.exit_code, refused.stdout) == (5, "")
    assert kquota("quotas", "describe", "--tables", root).exit_code == 3


def test_quotas_stored_without_tenants_are_shown_with_how_to_go_on(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    patient = EditedTable.__init__

    def hasty(table: EditedTable[Any], root: str) -> None:
        patient(table, root, lock_timeout_seconds=0.05)

    monkeypatch.setattr(EditedTable, "__init__", hasty)
    apply = ("quotas", "apply", "-f", "-", "--prune", "--if-version", "1", "--tables", root)
    with FileLock(Path(root) / "tenants.lock"):
        failed = kquota(*apply, stdin=FILE)
    assert failed.exit_code == 4
    assert "add     user-principal 'bob'  producer_byte_rate" in failed.stdout
    stored, how, _ = failed.stderr.split("\n", 2)
    assert stored == "quotas v2"
    assert how.startswith("the quotas are stored, the tenants are not. To complete it: ")
    assert how.endswith("kquota tenants apply -f - --prune")
    assert described(root) == [TEAM_A]
    again = tenants(root, *how.partition("kquota tenants ")[2].split(), stdin=FILE)
    assert again.exit_code == 0
    assert len(described(root)) == 2


def test_a_pattern_of_another_tenant_is_refused_with_the_command_that_removes_it(root: str) -> None:
    added = ("--add-user", "alice", "--add-client-id", "etl-*", "--add-config", "producer_byte_rate=1")
    refused = alter(root, "b", *added)
    assert refused.exit_code == 5
    _, _, fix = refused.stderr.strip().partition("kquota tenants ")
    assert fix == "alter team-a --remove-user alice --remove-client-id 'etl-*'"
    assert alter(root, *shlex.split(fix)[1:]).exit_code == 0
    assert alter(root, "b", *added).exit_code == 0


def test_a_file_of_empty_documents_declares_neither_quotas_nor_tenants(root: str) -> None:
    refused = kquota("quotas", "apply", "-f", "-", "--tables", root, stdin="---\n---\n")
    assert (refused.exit_code, "declares neither quotas nor tenants. Fix: " in refused.stderr) == (5, True)
