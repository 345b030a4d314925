"""`kquota quotas history|diff|at|rollback`: earlier versions, who changed what, and going back."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from pipeline.tables.quotas.table import QuotaTable
from pipeline.tables.upkeep import clean, compact
from schemas.arrow import arrow_schema
from schemas.rows import QuotaRow
from tests.pipeline.cli.running import kquota, new_tables
from tests.pipeline.tables.quotas.test_source import GOOD, write_past_us


@pytest.fixture
def root(tmp_path: Path) -> str:
    """Four edits: alice 1000, alice 2000 and bob, bob gone, alice shadow."""
    folder = new_tables(tmp_path / "tables")

    def edit(verb: str, *arguments: str) -> None:
        assert kquota("quotas", verb, *arguments, "--tables", folder).exit_code == 0

    edit("alter", "--user", "alice", "--add-config", "producer_byte_rate=1000", "--reason", "first")
    edit("alter", "--user", "alice", "--add-config", "producer_byte_rate=2000", "--reason", "second")
    edit("alter", "--user", "bob", "--add-config", "request_percentage=5")
    edit("delete", "--user", "bob", "--reason", "left")
    return folder


def history(root: str, *arguments: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(
        kquota("quotas", "history", *arguments, "-o", "json", "--tables", root).stdout
    )
    return rows


def described(root: str, *arguments: str) -> list[str]:
    return kquota("quotas", *(arguments or ("describe",)), "--tables", root).stdout.splitlines()


ALICE_1000 = "Quota configs for user-principal 'alice' are producer_byte_rate=1000.0"
ALICE_2000 = "Quota configs for user-principal 'alice' are producer_byte_rate=2000.0"
BOB = "Quota configs for user-principal 'bob' are request_percentage=5.0"


def test_at_shows_the_quotas_of_a_time(root: str) -> None:
    commits = {row["reason"]: row["committed_at"] for row in history(root, "-n", "4")}
    assert described(root, "at", commits["first"]) == [ALICE_1000]
    assert described(root, "at", commits[""]) == [ALICE_2000, BOB]
    assert described(root, "at", commits[""], "--user", "bob") == [BOB]
    assert described(root, "at", "2999-01-01") == [ALICE_2000]
    too_early = kquota("quotas", "at", "-52w", "--tables", root)
    assert (too_early.exit_code, too_early.stdout) == (3, "")
    assert kquota("quotas", "at", "yesterday", "--tables", root).exit_code == 2


def test_a_rollback_is_a_new_version_that_says_so(root: str) -> None:
    with_bob = history(root, "-n", "2")[1]["version"]
    assert kquota("quotas", "rollback", str(with_bob), "--dry-run", "--tables", root).exit_code == 0
    assert described(root) == [ALICE_2000]
    kquota("quotas", "rollback", str(with_bob), "--reason", "he is back", "--tables", root)
    assert described(root) == [ALICE_2000, BOB]
    newest, before = history(root, "-n", "2")
    assert newest["reason"] == f"rollback to v{with_bob}: he is back"
    assert newest["version"] == before["version"] + 1
    future = kquota("quotas", "rollback", "99", "--tables", root)
    assert future.exit_code == 1
    listed = future.stderr.partition("name one of these: ")[2]
    ran = subprocess.run(["/bin/sh", "-c", listed], capture_output=True, text=True, check=True)
    assert f"\n{newest['version']}  " in ran.stdout, "the fix runs as printed"


def test_a_rollback_restores_rows_that_only_sql_could_write(root: str) -> None:
    row = {"user": "dora", "client_id": "", "producer_byte_rate": 1.5, "mode": "enforce"}
    write_deltalake(f"{root}/quotas", pa.Table.from_pylist([row], schema=arrow_schema(QuotaRow)), mode="append")
    version = history(root, "-n", "1")[0]["version"]
    assert kquota("quotas", "delete", "--user", "dora", "--tables", root).exit_code == 0
    assert kquota("quotas", "rollback", str(version), "--tables", root).exit_code == 0
    assert described(root, "describe", "--user", "dora") == [
        "Quota configs for user-principal 'dora' are producer_byte_rate=1.5"
    ]


def test_history_outlives_compaction_vacuum_and_clean_up(root: str) -> None:
    before = history(root, "-n", "100")
    compact(f"{root}/quotas", many_files=0)
    assert clean(f"{root}/quotas") == 0, "every file is needed for 400 days"
    with pytest.raises(Exception, match=r"(?i)retention"):
        DeltaTable(f"{root}/quotas").vacuum(retention_hours=1, dry_run=False)
    after = [row for row in history(root, "-n", "100") if row["operation"] != "OPTIMIZE"]
    assert after == before
    first = next(row for row in after if row["reason"] == "first")
    assert described(root, "at", first["committed_at"]) == [ALICE_1000]


def test_a_refused_version_is_not_shown_as_in_force(root: str) -> None:
    invalid = write_past_us(QuotaTable(root), {**GOOD, "user": "zoe", "producer_byte_rate": 0.0})
    for command in (
        ("quotas", "describe"),
        ("quotas", "describe", "-o", "json"),
        ("quotas", "at", "0s"),
        ("quotas", "export"),
        ("mode",),
    ):
        answer = kquota(*command, "--tables", root)
        assert answer.exit_code == 0
        assert "zoe" not in answer.stdout
        assert f"it is refused, and v{invalid - 1} is in force" in answer.stderr
        assert (f"kquota quotas rollback {invalid - 1}" in answer.stderr) is ("at" not in command)
    assert "zoe" in kquota("quotas", "export", "--version", str(invalid), "--tables", root).stdout


def test_history_and_diff_tell_who_why_and_old_to_new(root: str) -> None:
    left, bob, second, first, *_creation = history(root)
    assert [row["reason"] for row in (left, bob, second, first)] == ["left", "", "second", "first"]
    assert all(second[name] for name in ("actor", "host", "tool_version"))
    (change,) = second["changes"]
    assert (change["action"], change["old"], change["new"]) == ("alter", 1000.0, 2000.0)
    (change,) = left["changes"]
    assert (change["action"], change["column"], change["new"]) == ("remove", "request_percentage", None)
    backwards = kquota("quotas", "diff", str(left["version"]), str(first["version"]), "-o", "json", "--tables", root)
    (change,) = json.loads(backwards.stdout)
    assert (change["old"], change["new"]) == (2000.0, 1000.0)
    assert kquota("quotas", "diff", "0", "99", "--tables", root).exit_code == 1
