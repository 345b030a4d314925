"""`kquota quotas alter|delete` and `kquota mode`: names of entities, dry runs, versions, labels, numbers."""

import json
from pathlib import Path
from typing import Any

import pytest
from deltalake import write_deltalake
from hypothesis import given
from hypothesis import strategies as st

from pipeline.cli.entity import described_line, java_double
from pipeline.cli.quota_edits import Configs, parse_added
from pipeline.tables.quotas.edit import QuotaChange
from quota.units import Mistakes, parse_double
from tests.pipeline.cli.running import Answer, kquota, new_tables
from tests.pipeline.replay.kept import KeptJob
from tests.pipeline.tables.factories import new_table, usage
from tests.quota.factories import usage_row

NEWEST_MS = 1_700_000_000_000


@pytest.fixture
def root(tmp_path: Path) -> str:
    folder = new_tables(tmp_path / "tables")
    kquota("quotas", "alter", "--user", "alice", "--add-config", "producer_byte_rate=1000", "--tables", folder)
    return folder


def alter(root: str, *arguments: str) -> Answer:
    return kquota("quotas", "alter", "--user", "alice", *arguments, "--tables", root)


def version(root: str) -> int:
    number: int = json.loads(kquota("mode", "-o", "json", "--tables", root).stdout)["version"]
    return number


def use(root: str, user: str, client_id: str, sample_start_ms: int, **measures: int) -> None:
    """A row of `usage` whose other columns do not matter here, of one request."""
    names: dict[str, Any] = {"user": user, "client_id": client_id, "sample_start_ms": sample_start_ms}
    rows = usage(usage_row(sample_start_ms, **names, **measures), evaluated_at_ms=NEWEST_MS)
    write_deltalake(new_table(root, "usage"), rows, mode="append")


def test_a_dry_run_names_the_live_clients_it_affects_and_writes_nothing(root: str) -> None:
    for user, client_id, age_ms in (("alice", "etl", 0), ("alice", "old", 300_001), ("alice", "app", 300_000)):
        use(root, user, client_id, NEWEST_MS - age_ms)
    use(root, "bob", "etl", NEWEST_MS)
    before = version(root)
    pair = ("quotas", "alter", "--user", "alice", "--client", "etl", "--add-config", "producer_byte_rate=5,mode=shadow")
    answer = json.loads(kquota(*pair, "--dry-run", "-o", "json", "--tables", root).stdout)
    assert answer["dry_run"] is True
    assert [change["column"] for change in answer["changes"]] == ["producer_byte_rate", "mode"]
    assert answer["clients"] == [], "alice's own quota is enforced: a shadow row moves nobody"
    enforced = json.loads(alter(root, "--add-config", "producer_byte_rate=5", "--dry-run", "-o", "json").stdout)
    assert [(row["client_id"], row["old_bound"], row["new_bound"]) for row in enforced["clients"]] == [
        ("app", 1000.0, 5.0),
        ("etl", 1000.0, 5.0),
    ]
    shown = alter(root, "--delete-config", "producer_byte_rate", "--dry-run")
    assert "remove  user-principal 'alice'  producer_byte_rate  1000 (1.0 kB/s)" in shown.stdout
    assert "alice/etl  producer  1000 (1.0 kB/s)  → none  enforce   3" in shown.stdout
    assert version(root) == before


def test_an_edit_for_another_version_ends_with_4(root: str) -> None:
    before = version(root)
    late = alter(root, "--add-config", "producer_byte_rate=3", "--if-version", str(before - 1))
    assert (late.exit_code, late.stdout) == (4, "")
    assert version(root) == before


def test_all_mistakes_of_the_flags_come_at_once(root: str) -> None:
    before = version(root)
    added = "producer_byte_rate=0,consumer_byte_rate=1.5,request_percentage=x,colour=red,mode=loud,owner"
    refused = alter(root, "--add-config", added, "--delete-config", "size,note")
    assert refused.exit_code == 5
    for words in (
        "--add-config: Invalid entity config",
        "producer_byte_rate must be greater than 0",
        "consumer_byte_rate cannot be a fractional value",
        "for request_percentage: x",
        "Unexpected config names: colour;",
        "unknown mode loud",
        "Unexpected config names: size;",
    ):
        assert words in refused.stderr
    assert version(root) == before


@pytest.mark.parametrize(
    ("command", "kind"),
    [
        (("alter", "--add-config", "producer_byte_rate=1"), ("--user",)),
        (("delete",), ("--client-id",)),
        (("describe",), ("--entity-type", "users", "--entity-name")),
    ],
)
def test_an_empty_name_is_refused_because_an_unset_variable_makes_one(
    root: str, command: tuple[str, ...], kind: tuple[str, ...]
) -> None:
    before = version(root)
    refused = kquota("quotas", *command, *kind, "", "--tables", root)
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert f"{kind[-1]} is empty" in refused.stderr
    assert version(root) == before


def test_an_entity_without_a_quota_of_its_own_shows_what_holds_in_its_place(root: str) -> None:
    for entity, rate in ((("--user", "bob", "--client-id", "etl"), "1MB"), (("--user-defaults",), "2MB")):
        kquota("quotas", "alter", *entity, "--add-config", f"producer_byte_rate={rate}", "--tables", root)
    none = kquota("quotas", "describe", "--user", "bob", "--tables", root)
    assert (none.exit_code, none.stdout) == (3, "")
    assert none.stderr.splitlines()[1:] == [
        "user-principal 'bob' has no quota of its own; these apply in its place, the most specific first:",
        "  Quota configs for user-principal 'bob', client-id 'etl' are producer_byte_rate=1000000.0",
        "  Quota configs for the default user-principal are producer_byte_rate=2000000.0",
    ]
    deleted = kquota("quotas", "delete", "--user", "bob", "--tables", root)
    assert deleted.exit_code == 3
    assert "there is one for user-principal 'bob', client-id 'etl'; the default user-principal." in deleted.stderr


def test_configs_may_come_from_a_file(root: str, tmp_path: Path) -> None:
    (tmp_path / "configs").write_text("# agreed\nproducer_byte_rate = 7\nnote=a, b\n")
    assert alter(root, "--add-config-file", str(tmp_path / "configs")).exit_code == 0
    assert "producer_byte_rate=7.0, note=[a, b]" in kquota("quotas", "describe", "--tables", root).stdout
    assert alter(root, "--add-config-file", str(tmp_path / "configs"), "--add-config", "note=c").exit_code == 2


def test_an_edit_answers_programs_with_what_it_changed(root: str) -> None:
    before = version(root)
    answer = json.loads(alter(root, "--add-config", "producer_byte_rate=2000", "-o", "json").stdout)
    change = {"action": "alter", "user": "alice", "client_id": "", "column": "producer_byte_rate"}
    assert answer == {
        "version": before + 1,
        "previous_version": before,
        "dry_run": False,
        "changes": [{**change, "old": 1000.0, "new": 2000.0}],
        "warnings": [],
    }


@pytest.mark.parametrize(
    ("bound", "why"),
    [
        ("producer_byte_rate=1", "producer_byte_rate 1 B/s is less than one record; is a unit missing, as in 1MB/s?"),
        ("consumer_byte_rate=9999GB/s", "9999000000000 (9999.0 GB/s) is more than a broker can send"),
        ("request_percentage=2000000%", "request_percentage 2000000 % is more than a thousand threads"),
        ("producer_byte_rate=100,consumer_byte_rate=1000GB/s,request_percentage=100000", None),
    ],
)
def test_a_bound_that_is_surely_a_mistake_warns_in_dry_run_and_edit(bound: str, why: str | None, root: str) -> None:
    for words in (["--dry-run"], []):
        told = alter(root, "--add-config", bound, *words).stderr
        assert ("warning: user-principal 'alice': " in told) == (why is not None)
        assert (why or "") in told


def test_a_dry_run_warns_of_clients_that_would_stop_and_of_names_never_seen(root: str) -> None:
    use(root, "alice", "etl", NEWEST_MS, produced_bytes=9000)
    told = (
        "one produce request of alice/etl had at least 9.0 kB, 90.0 s of its producer_byte_rate 100.0 B/s: "
        "raise the quota to 9.0 kB/s"
    )
    answer = alter(root, "--add-config", "producer_byte_rate=100", "--dry-run")
    assert f"warning: {told}\n" in answer.stderr
    document = json.loads(alter(root, "--add-config", "producer_byte_rate=100", "--dry-run", "-o", "json").stdout)
    assert document["warnings"][0] == told
    misspelt = ("quotas", "alter", "--user", "alcie", "--add-config", "producer_byte_rate=10MB/s", "--dry-run")
    answer = kquota(*misspelt, "--tables", root)
    assert "warning: user 'alcie' was never seen; did you mean alice?\n" in answer.stderr
    assert "warning" not in alter(root, "--add-config", "producer_byte_rate=10MB/s", "--dry-run").stderr


def test_labels_are_set_and_deleted_like_bounds(root: str) -> None:
    described = ("quotas", "describe", "--tables", root)
    before = kquota(*described).stdout
    assert alter(root, "--add-config", "mode=shadow,note=[until May, a=b]").exit_code == 0
    assert kquota(*described).stdout == f"{before.strip()}, mode=shadow, note=[until May, a=b]\n"
    alter(root, "--delete-config", "mode,note")
    assert kquota(*described).stdout == before
    assert "Invalid config(s): note." in alter(root, "--delete-config", "note,producer_byte_rate").stderr


QUOTAS = (("alice", "etl"), ("alice", "<default>"), ("alice", ""), ("bob", ""), ("", "etl"), ("<default>", "<default>"))


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> str:
    changes = [QuotaChange(*entity, {"producer_byte_rate": 1_000.0}) for entity in QUOTAS]
    return KeptJob(str(tmp_path_factory.mktemp("tables")), *changes).root


SPELLINGS = (
    ("--user alice --client-id etl", ("alice", "etl")),
    ("--client etl --user alice", ("alice", "etl")),
    ("--entity-type users --entity-name alice --entity-type clients --entity-name etl", ("alice", "etl")),
    ("--user-defaults --client-defaults", ("<default>", "<default>")),
    ("--entity-type users --entity-default --entity-type clients --entity-default", ("<default>", "<default>")),
    ("--user alice", ("alice", "")),
)


def answered(stored: str, *words: str) -> Any:
    return json.loads(kquota(*words, "-o", "json", "--tables", stored).stdout)


@pytest.mark.parametrize(("flags", "entity"), SPELLINGS)
def test_an_entity_is_named_in_every_spelling(flags: str, entity: tuple[str, str], stored: str) -> None:
    given = flags.split()
    found = [answered(stored, "quotas", *verb, *given) for verb in (("describe",), ("at", "-0s"))]
    for verb in (("alter", "--add-config", "producer_byte_rate=5"), ("delete",)):
        found += [answered(stored, "quotas", *verb, *given, "--dry-run")["changes"]]
    assert [{(row["user"], row["client_id"]) for row in rows} for rows in found] == [{entity}] * 4


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1024.0, "1024.0"),
        (0.5, "0.5"),
        (0.001, "0.001"),
        (0.0001, "1.0E-4"),
        (0.00012345, "1.2345E-4"),
        (9_999_999.0, "9999999.0"),
        (10_000_000.0, "1.0E7"),
        (123_456_789_012.0, "1.23456789012E11"),
        (9_007_199_254_740_992.0, "9.007199254740992E15"),
        (1e300, "1.0E300"),
        (2e23, "2.0E23"),
        (5e-324, "4.9E-324"),
        (1e-323, "9.9E-324"),
        (2e-323, "2.0E-323"),
    ],
)
def test_a_double_prints_as_in_java(value: float, text: str) -> None:
    assert java_double(value) == text


@given(st.floats(min_value=1e-300, max_value=1e300))
def test_what_is_printed_reads_back_as_the_same_number(value: float) -> None:
    assert parse_double(java_double(value)) == value


def test_what_kafka_does_not_have_follows_what_it_has() -> None:
    bounds = {"producer_byte_rate": 1.0, "consumer_byte_rate": 2.0}
    labels = {"mode": "shadow", "owner": "team-a", "note": "until May, then a=less"}
    line = described_line({"user": "alice", "client_id": "<default>", "request_percentage": None, **bounds, **labels})
    assert line == (
        "Quota configs for user-principal 'alice', the default client-id are consumer_byte_rate=2.0, "
        "producer_byte_rate=1.0, mode=shadow, owner=team-a, note=[until May, then a=less]"
    )
    mistakes = Mistakes()
    assert parse_added(line.partition(" are ")[2], Configs.of_entity(["users"]), mistakes) == bounds | labels
    assert mistakes.found == ()
