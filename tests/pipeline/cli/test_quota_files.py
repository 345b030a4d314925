"""`kquota quotas export|apply|import`: an export can be read again, apply is declarative, import replaces."""

import json
from pathlib import Path

import pytest
import yaml

from pipeline.tables.quotas.files import applied, from_text, to_document
from tests.pipeline.cli.running import Terminal, kquota, new_tables

RPK = """
{"quotas": [
  {"entity": [{"name": "etl", "type": "client-id"}, {"name": "alice", "type": "user"}],
   "values": [{"key": "consumer_byte_rate", "values": "2048"}, {"key": "producer_byte_rate", "values": "1048576"}]},
  {"entity": [{"name": "<default>", "type": "client-id"}], "values": [{"key": "producer_byte_rate", "values": "12.0"}]}
]}
"""


@pytest.fixture
def root(tmp_path: Path) -> str:
    """A table with alice/etl in shadow mode and a quota of bob's."""
    folder = new_tables(tmp_path / "tables")
    pair = ("--user", "alice", "--client", "etl")
    values = "producer_byte_rate=5,request_percentage=7,mode=shadow,owner=team-a"
    kquota("quotas", "alter", *pair, "--add-config", values, "--tables", folder)
    kquota("quotas", "alter", "--user", "bob", "--add-config", "producer_byte_rate=1e6,note=why", "--tables", folder)
    return folder


def described(root: str) -> list[str]:
    return kquota("quotas", "describe", "--tables", root).stdout.splitlines()


BOB = "Quota configs for user-principal 'bob' are producer_byte_rate=1000000.0, note=why"
ALICE = (
    "Quota configs for user-principal 'alice', client-id 'etl' are consumer_byte_rate=2048.0, "
    "producer_byte_rate=1048576.0, mode=shadow, owner=team-a"
)
DEFAULT = "Quota configs for the default client-id are producer_byte_rate=12.0"


@pytest.mark.parametrize("output", ["json", "yaml"])
def test_an_export_reads_back_as_the_same_table(root: str, output: str, tmp_path: Path) -> None:
    exported = kquota("quotas", "export", "-o", output, "--tables", root)
    assert exported.exit_code == 0
    (tmp_path / "quotas").write_text(exported.stdout)
    again = kquota("quotas", "apply", "-f", str(tmp_path / "quotas"), "--prune", "--exit-code", "--tables", root)
    assert (again.exit_code, again.stdout) == (0, "")
    elsewhere = new_tables(tmp_path / "elsewhere")
    kquota("quotas", "apply", "-f", "-", "--tables", elsewhere, stdin=exported.stdout)
    assert described(elsewhere) == described(root)


def test_an_export_is_rpks_with_what_kafka_does_not_have_beside_it(root: str) -> None:
    pair, bob = yaml.safe_load(kquota("quotas", "export", "--tables", root).stdout)["quotas"]
    assert pair == {
        "entity": [{"name": "etl", "type": "client-id"}, {"name": "alice", "type": "user"}],
        "values": [{"key": "producer_byte_rate", "values": "5"}, {"key": "request_percentage", "values": "7"}],
        "mode": "shadow",
        "owner": "team-a",
    }
    assert bob["values"] == [{"key": "producer_byte_rate", "values": "1000000"}]


def test_apply_sets_what_the_file_names_and_leaves_the_rest(root: str) -> None:
    applied_ = kquota("quotas", "apply", "-f", "-", "-o", "wide", "--tables", root, stdin=RPK)
    assert applied_.exit_code == 0
    assert described(root) == [DEFAULT, ALICE, BOB]
    assert [line.split("  ")[0] for line in applied_.stdout.splitlines()] == ["action", "add", *["alter"] * 3]


def test_prune_deletes_what_the_file_does_not_name(root: str) -> None:
    kquota("quotas", "apply", "-f", "-", "--prune", "--tables", root, stdin=RPK)
    assert described(root) == [DEFAULT, ALICE]


@pytest.mark.parametrize("command", [("apply", "--prune", "-f"), ("import", "--no-confirm", "--from")])
@pytest.mark.parametrize("empty", ["quotas: []\n", '{"quotas": []}'])
@pytest.mark.parametrize("dry_run", [(), ("--dry-run",)])
def test_a_file_without_quotas_deletes_everything_only_with_allow_empty(
    command: tuple[str, ...], empty: str, dry_run: tuple[str, ...], root: str, tmp_path: Path
) -> None:
    before, file = described(root), tmp_path / "empty"
    file.write_text(empty)
    delete_all = ("quotas", *command, str(file), *dry_run, "--tables", root)
    refused = kquota(*delete_all)
    assert (refused.exit_code, refused.stdout, described(root)) == (5, "", before)
    assert "would delete all 2 quotas" in refused.stderr
    assert "--allow-empty" in refused.stderr
    allowed = kquota(*delete_all, "--allow-empty")
    assert (allowed.exit_code, allowed.stdout.count("remove  ")) == (0, 6)
    assert described(root) == (before if dry_run else [])
    assert kquota(*delete_all).exit_code == (5 if dry_run else 0), "an empty table stays empty without the flag"


def test_a_file_without_quotas_changes_nothing_without_prune(root: str) -> None:
    before = described(root)
    assert kquota("quotas", "apply", "-f", "-", "--tables", root, stdin="quotas: []").exit_code == 0
    assert described(root) == before


def test_import_of_a_file_without_quotas_asks_at_a_terminal_like_any_other(root: str) -> None:
    imported = ("quotas", "import", "--from", "quotas: []\n", "--tables", root)
    assert kquota(*imported, stdin=Terminal("y\n")).exit_code == 0
    assert described(root) == []


def test_a_dry_run_with_exit_code_tells_whether_anything_differs(root: str) -> None:
    before = described(root)
    check = ("quotas", "apply", "-f", "-", "--dry-run", "--exit-code", "--tables", root)
    assert kquota(*check, stdin=RPK).exit_code == 1
    assert described(root) == before
    kquota("quotas", "apply", "-f", "-", "--tables", root, stdin=RPK)
    assert kquota(*check, stdin=RPK).exit_code == 0
    assert kquota(*check, stdin="quotas: 1").exit_code == 5
    missing = kquota("quotas", "apply", "-f", "-", "--dry-run", "--exit-code", "--tables", f"{root}/no", stdin=RPK)
    assert missing.exit_code == 2, "1 means different, so trouble must not be 1"


def test_an_apply_is_one_commit_with_its_reason(root: str) -> None:
    def newest() -> list[dict[str, object]]:
        answer = kquota("quotas", "history", "-n", "1", "-o", "json", "--tables", root)
        rows: list[dict[str, object]] = json.loads(answer.stdout)
        return rows

    (before,) = newest()
    kquota("quotas", "apply", "-f", "-", "--reason", "from git", "--tables", root, stdin=RPK)
    (after,) = newest()
    assert (after["version"], after["reason"]) == (int(str(before["version"])) + 1, "from git")


def test_import_replaces_everything_and_needs_no_confirm_without_a_terminal(root: str) -> None:
    before = described(root)
    unasked = kquota("quotas", "import", "--from", RPK, "--tables", root)
    assert (unasked.exit_code, described(root)) == (2, before)
    missing = kquota("quotas", "import", "--from", f"{root}/none.yaml", "--no-confirm", "--tables", root)
    assert (missing.exit_code, described(root)) == (2, before)
    assert kquota("quotas", "import", "--from", RPK, "--no-confirm", "--tables", root).exit_code == 0
    assert described(root) == [DEFAULT, ALICE]


def test_import_shows_the_changes_and_asks_at_a_terminal(root: str) -> None:
    before = described(root)
    imported = ("quotas", "import", "--from", RPK, "-o", "wide", "--tables", root)
    refused = kquota(*imported, stdin=Terminal("n\n"))
    assert (refused.exit_code, described(root)) == (1, before)
    assert "remove  user-principal 'bob'" in refused.stdout
    assert "Import these quotas?" in refused.stderr
    assert kquota(*imported, stdin=Terminal("y\n")).exit_code == 0
    assert described(root) == [DEFAULT, ALICE]


class TerminalOfASlowReader(Terminal):
    """Somebody else edits the table before the answer is typed."""

    root: str

    def readline(self, size: int = -1, /) -> str:  # type: ignore[override] # as typeshed's own StringIO
        kquota("quotas", "alter", "--user", "zoe", "--add-config", "producer_byte_rate=1", "--tables", self.root)
        return super().readline(size)


def test_import_writes_nothing_if_the_table_was_edited_before_the_answer(root: str) -> None:
    terminal = TerminalOfASlowReader("y\n")
    terminal.root = root
    late = kquota("quotas", "import", "--from", RPK, "--tables", root, stdin=terminal)
    assert late.exit_code == 4
    assert BOB in described(root)


@pytest.mark.parametrize(("value", "bound"), [("12", 12.0), ('"12"', 12.0), ("1.5e3", 1500.0), ("1e3", 1000.0)])
def test_a_value_is_a_number_or_a_text_of_one(value: str, bound: float) -> None:
    (quota,) = from_text((QUOTA % "").replace("values: 1}", f"value: {value}}}"))
    assert quota.bounds["producer_byte_rate"] == bound


@pytest.mark.parametrize(("bound", "text"), [(12.0, "12"), (1e18, "1" + "0" * 18), (0.5, "0.5"), (1e-7, "0.0000001")])
def test_a_value_is_written_without_exponent(bound: float, text: str) -> None:
    row = {"user": "a", "client_id": "", "mode": "enforce", "owner": None, "note": None}
    rates = {"producer_byte_rate": bound, "consumer_byte_rate": None, "request_percentage": None}
    assert to_document([{**row, **rates}])["quotas"][0]["values"] == [{"key": "producer_byte_rate", "values": text}]


def test_a_label_that_is_not_named_stays_and_null_deletes_it() -> None:
    (stored,) = applied([], from_text(QUOTA % ", mode: shadow, owner: team-a"), prune=False)
    (kept,) = applied([stored], from_text(QUOTA % ""), prune=False)
    (cleared,) = applied([stored], from_text(QUOTA % ", owner: null, mode: enforce"), prune=False)
    assert (kept["mode"], kept["owner"]) == ("shadow", "team-a")
    assert (cleared["mode"], cleared["owner"]) == ("enforce", None)


QUOTA = "quotas: [{entity: [{name: a, type: user}], values: [{key: producer_byte_rate, values: 1}]%s}]"
