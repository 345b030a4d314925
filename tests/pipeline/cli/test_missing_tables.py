"""A command in the wrong folder creates nothing: it names the table it misses. Only `tables create` creates tables."""

import json
from pathlib import Path

import pytest

from pipeline.tables.layout import TABLES
from tests.pipeline.cli.running import kquota

QUOTAS_FILE = '{"quotas": []}'

# Each command, and the first table it needs.
COMMANDS = (
    ("quotas", "mode"),
    ("quotas", "mode", "shadow", "--reason", "incident 7"),
    ("quotas", "quotas", "describe"),
    ("quotas", "quotas", "alter", "--user", "alice", "--add-config", "producer_byte_rate=1"),
    ("quotas", "quotas", "alter", "--user", "alice", "--add-config", "producer_byte_rate=1", "--dry-run"),
    ("quotas", "quotas", "delete", "--user", "alice"),
    ("quotas", "quotas", "export"),
    ("quotas", "quotas", "apply", "-f", "quotas.json"),
    ("quotas", "quotas", "import", "--from", "quotas.json", "--no-confirm"),
    ("quotas", "quotas", "history"),
    ("quotas", "quotas", "diff"),
    ("quotas", "quotas", "at", "-1s"),
    ("quotas", "quotas", "rollback", "0"),
    ("quotas", "quotas", "effective", "--user", "alice"),
    ("quotas", "quotas", "sql", "DELETE FROM quotas"),
    ("quotas", "quotas", "diff", "--brokers", "--bootstrap-server", "127.0.0.1:1"),
    ("quotas", "quotas", "sync", "--bootstrap-server", "127.0.0.1:1"),
    ("quotas", "quotas", "sync", "--dry-run", "--bootstrap-server", "127.0.0.1:1"),
    ("quotas", "what-if", "--quotas", "quotas.json"),
    ("throttle_events", "throttles", "list"),
    ("throttle_events", "throttles", "list", "--all"),
    ("throttle_events", "throttles", "explain", "alice", "etl"),
    ("quotas", "throttles", "verify"),
)


@pytest.fixture
def wrong_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder, with a quota file for the commands that need one."""
    folder = tmp_path / "wrong folder"
    folder.mkdir()
    (folder / "quotas.json").write_text(QUOTAS_FILE)
    monkeypatch.chdir(folder)
    return folder


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: " ".join(command[1:3]))
def test_a_command_in_the_wrong_folder_names_the_table_it_misses_and_creates_nothing(
    command: tuple[str, ...], wrong_folder: Path
) -> None:
    table, *arguments = command
    answer = kquota(*arguments)
    assert (answer.exit_code, answer.stdout) == (2, "")
    assert answer.stderr.startswith(f"kquota: no Delta table at {wrong_folder}/.kquota/tables/{table}. Fix: ")
    assert f"kquota tables create --tables '{wrong_folder}/.kquota/tables'" in answer.stderr
    assert [path.name for path in wrong_folder.iterdir()] == ["quotas.json"]


def test_doctor_in_the_wrong_folder_reports_errors_and_creates_nothing(wrong_folder: Path) -> None:
    answer = kquota("doctor")
    assert answer.exit_code == 1
    assert f"ERROR tables    no Delta table at {wrong_folder}/.kquota/tables/quotas" in answer.stdout
    assert [path.name for path in wrong_folder.iterdir()] == ["quotas.json"]


def test_tables_create_makes_all_tables_once_and_names_them(tmp_path: Path) -> None:
    root = tmp_path / "new"
    first, second = (json.loads(kquota("tables", "create", "--tables", str(root), "-o", "json").stdout) for _ in "12")
    assert [row["result"] for row in first] == ["created"] * len(TABLES)
    assert [row["result"] for row in second] == ["exists"] * len(TABLES)
    assert [row["address"] for row in first] == [str(root / name) for name in TABLES]
    assert kquota("quotas", "alter", "--user", "a", "--add-config", "mode=exempt", "--tables", str(root)).exit_code == 0


def test_mode_says_which_table_it_has_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert kquota("tables", "create").exit_code == 0
    table = tmp_path / ".kquota" / "tables" / "quotas"
    changed = kquota("mode", "shadow")
    assert (changed.stdout, changed.stderr) == ("shadow\n", f"quotas v2 of {table}\n")
    shown = json.loads(kquota("mode", "-o", "json").stdout)
    assert shown == {"mode": "shadow", "version": 2, "table": str(table)}
