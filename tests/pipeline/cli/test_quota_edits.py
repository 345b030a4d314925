"""`kquota quotas alter|delete` beyond kafka-configs: dry runs, versions, labels, formats; and `kquota mode`."""

import json
from pathlib import Path

import pyarrow as pa
import pytest
import yaml
from deltalake import write_deltalake

from pipeline.tables.layout import TABLES, create_missing
from schemas.arrow import arrow_schema
from schemas.usage import UsageRow
from tests.pipeline.cli.running import Answer, kquota, new_tables

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
    """A row of `usage` whose other columns do not matter here."""
    create_missing(root, [TABLES["usage"]])
    zero = {"string": "", "int64": 0, "date32[day]": 0}
    schema = arrow_schema(UsageRow)
    row = {field.name: zero.get(str(field.type), 0) for field in schema}
    row |= {"user": user, "client_id": client_id, "sample_start_ms": sample_start_ms, "evaluated_at_ms": NEWEST_MS}
    row |= {"last_event_ms": sample_start_ms, **measures}
    write_deltalake(f"{root}/usage", pa.Table.from_pylist([row], schema=schema), mode="append")


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
    assert version(root) == before
    shown = alter(root, "--delete-config", "producer_byte_rate", "--dry-run")
    assert "remove  user-principal 'alice'  producer_byte_rate  1000 (1.0 kB/s)" in shown.stdout
    assert "alice/etl  producer  1000 (1.0 kB/s)  → none  enforce   3" in shown.stdout
    of_clients = alter(root, "--add-config", "producer_byte_rate=2MB", "--dry-run", "-o", "wide").stdout.splitlines()
    assert len([line for line in of_clients if "1000 (1.0 kB/s)" in line and "2000000 (2.0 MB/s)" in line]) == 3
    assert "nothing was written" in shown.stderr


def test_a_dry_run_in_80_columns_keeps_client_type_and_both_bounds(root: str) -> None:
    use(root, "alice", "nightly-load-of-the-warehouse", NEWEST_MS)
    lines = alter(root, "--add-config", "producer_byte_rate=123456789", "--dry-run").stdout.splitlines()
    place = lines.index("") + 1
    assert lines[place].split()[:4] == ["client", "type", "old", "new"]
    assert max(map(len, lines)) <= 80
    found = " ".join(" ".join(lines[place + 1 :]).split())
    assert found.startswith("alice/nightly-load-of-the-warehouse producer 1000 (1.0 kB/s) → 123456789")


def test_an_edit_for_another_version_ends_with_4(root: str) -> None:
    now = version(root)
    assert alter(root, "--add-config", "producer_byte_rate=2", "--if-version", str(now)).exit_code == 0
    late = alter(root, "--add-config", "producer_byte_rate=3", "--if-version", str(now))
    assert (late.exit_code, late.stdout) == (4, "")
    assert f"not at {now} as" in late.stderr
    assert version(root) == now + 1


def test_all_mistakes_of_the_flags_come_at_once(root: str) -> None:
    before = version(root)
    added = "producer_byte_rate=0,consumer_byte_rate=1.5,request_percentage=x,colour=red,mode=loud,owner"
    refused = alter(root, "--add-config", added, "--delete-config", "size,note")
    assert refused.exit_code == 5
    for words in (
        "--add-config: Invalid entity config",
        "--add-config: Quota producer_byte_rate must be greater than 0; got 0",
        "--add-config: consumer_byte_rate cannot be a fractional value; got 1.5",
        "--add-config: Cannot parse quota configuration value for request_percentage: x",
        "Unexpected config names: colour;",
        "--add-config: unknown mode loud; use enforce, shadow, exempt",
        "--delete-config: Only quota configs can be deleted for 'users'. Unexpected config names: size;",
    ):
        assert words in refused.stderr
    assert version(root) == before


@pytest.mark.parametrize("command", ["alter", "delete", "describe"])
@pytest.mark.parametrize("option", ["--user", "--client-id", "--entity-name"])
def test_an_empty_name_is_refused_because_an_unset_variable_makes_one(root: str, command: str, option: str) -> None:
    before = version(root)
    kind = ("--entity-type", "users") if option == "--entity-name" else ()
    values = ("--add-config", "producer_byte_rate=1") if command == "alter" else ()
    refused = kquota("quotas", command, *kind, option, "", *values, "--tables", root)
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert f"{option} is empty" in refused.stderr
    assert version(root) == before


def test_bounds_are_typed_with_units_and_shown_exactly_with_their_size(root: str) -> None:
    values = "producer_byte_rate=1MB/s,consumer_byte_rate=1MiB,request_percentage=50%"
    dry = alter(root, "--add-config", values, "--dry-run", "-o", "wide").stdout
    for shown in ("1000 (1.0 kB/s)  1000000 (1.0 MB/s)", "1048576 (1.0 MB/s)", "50 %"):
        assert shown in dry
    narrow = alter(root, "--add-config", values, "--dry-run").stdout
    for line in narrow.splitlines():
        assert ("(" in line) == (")" in line), "a size is not broken"
    assert alter(root, "--add-config", values).exit_code == 0
    assert "consumer_byte_rate=1048576.0, producer_byte_rate=1000000.0, request_percentage=50.0" in (
        kquota("quotas", "describe", "--tables", root).stdout
    )


def test_what_is_not_set_is_not_deleted_and_what_is_set_is_said(root: str) -> None:
    refused = alter(root, "--delete-config", "note,producer_byte_rate")
    assert refused.stderr.endswith("Invalid config(s): note. Fix: name only what is set: producer_byte_rate\n")


def test_an_edit_of_a_pair_says_which_pair_and_old_to_new_beside_kafkas_line(root: str) -> None:
    pair = ("quotas", "alter", "--user", "alice", "--client-id", "etl", "--tables", root, "--add-config")
    kquota(*pair, "producer_byte_rate=1MiB")
    answer = kquota(*pair, "producer_byte_rate=2MB,mode=shadow")
    assert answer.stdout == "Completed updating config for client etl.\n"
    assert answer.stderr == (
        "user-principal 'alice', client-id 'etl': producer_byte_rate 1048576 (1.0 MB/s) → 2000000 (2.0 MB/s), "
        f"mode enforce → shadow\nquotas v{version(root)}\n"
    )


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
    nobody = kquota("quotas", "describe", "--client-defaults", "--tables", root)
    assert (nobody.exit_code, len(nobody.stderr.splitlines())) == (3, 1)
    deleted = kquota("quotas", "delete", "--user", "bob", "--tables", root)
    assert "there is one for user-principal 'bob', client-id 'etl'; the default user-principal." in deleted.stderr


def test_labels_are_set_and_deleted_like_bounds(root: str) -> None:
    alter(root, "--add-config", "mode=shadow,owner=team-a,note=[until May, then a=b]")
    line = kquota("quotas", "describe", "--tables", root).stdout
    assert line.endswith("mode=shadow, owner=team-a, note=[until May, then a=b]\n")
    alter(root, "--delete-config", "mode,note")
    assert kquota("quotas", "describe", "--tables", root).stdout.endswith("producer_byte_rate=1000.0, owner=team-a\n")
    assert alter(root, "--delete-config", "note").stderr.startswith(
        "kquota: quotas were not changed: Invalid config(s): note"
    )


def test_configs_may_come_from_a_file(root: str, tmp_path: Path) -> None:
    (tmp_path / "configs").write_text("# agreed\nproducer_byte_rate = 7\nnote=a, b\n")
    assert alter(root, "--add-config-file", str(tmp_path / "configs")).exit_code == 0
    assert "producer_byte_rate=7.0, note=[a, b]" in kquota("quotas", "describe", "--tables", root).stdout
    assert alter(root, "--add-config-file", str(tmp_path / "configs"), "--add-config", "note=c").exit_code == 2


def test_delete_takes_the_whole_quota_and_ends_with_3_if_there_is_none(root: str) -> None:
    pair = ("quotas", "delete", "--user", "alice", "--client", "etl", "--tables", root)
    assert kquota(*pair).exit_code == 3
    kquota("quotas", "alter", *pair[2:6], "--add-config", "mode=exempt", "--tables", root)
    assert kquota(*pair).stdout == "Completed updating config for client etl.\n"
    assert kquota("quotas", "describe", "--tables", root).stdout.count("\n") == 1


@pytest.mark.parametrize("output", ["json", "yaml"])
def test_an_edit_answers_programs_with_what_it_changed(root: str, output: str) -> None:
    before = version(root)
    answer = yaml.safe_load(alter(root, "--add-config", "producer_byte_rate=2", "-o", output).stdout)
    assert answer == {
        "version": before + 1,
        "previous_version": before,
        "dry_run": False,
        "changes": [
            {
                "action": "alter",
                "user": "alice",
                "client_id": "",
                "column": "producer_byte_rate",
                "old": 1000.0,
                "new": 2.0,
            }
        ],
    }


def test_an_unknown_format_is_refused_before_anything_is_done(root: str) -> None:
    before = version(root)
    assert alter(root, "--add-config", "producer_byte_rate=2", "-o", "xml").exit_code == 2
    assert version(root) == before


def test_the_mode_is_printed_and_set_with_a_reason(root: str) -> None:
    before = version(root)
    assert kquota("mode", "--tables", root).stdout == "enforce\n"
    assert kquota("mode", "shadow", "--reason", "incident 7", "--tables", root).stdout == "shadow\n"
    (newest,) = json.loads(kquota("quotas", "history", "-n", "1", "-o", "json", "--tables", root).stdout)
    assert (newest["version"], newest["reason"]) == (before + 1, "incident 7")
    assert newest["mode"] == {"old": "enforce", "new": "shadow"}
    assert kquota("mode", "off", "--tables", root).exit_code == 2
    assert version(root) == before + 1


def test_a_dry_run_warns_of_clients_that_the_bound_would_stop_and_of_names_never_seen(root: str) -> None:
    use(root, "alice", "etl", NEWEST_MS, produced_bytes=900)
    told = "alice/etl: producer_byte_rate 10.0 B/s is less than it used in one second, 900.0 B/s"
    answer = alter(root, "--add-config", "producer_byte_rate=10", "--dry-run")
    assert f"warning: {told}\n" in answer.stderr
    document = json.loads(alter(root, "--add-config", "producer_byte_rate=10", "--dry-run", "-o", "json").stdout)
    assert document["warnings"][0] == told
    misspelt = ("quotas", "alter", "--user", "alcie", "--add-config", "producer_byte_rate=10MB/s", "--dry-run")
    answer = kquota(*misspelt, "--tables", root)
    assert "warning: user 'alcie' was never seen; did you mean alice?\n" in answer.stderr
    assert "warning" not in alter(root, "--add-config", "producer_byte_rate=10MB/s", "--dry-run").stderr
