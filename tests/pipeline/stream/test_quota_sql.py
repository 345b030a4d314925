"""`kquota quotas sql`: Spark SQL on the quotas, with our audit, under our lock, and one line for what fails.

Each statement runs in a process of its own: the session it stops would be that of the other tests.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
from deltalake import DeltaTable
from filelock import FileLock

from pipeline.errors import Conflict
from pipeline.jvm.jars import fetch
from pipeline.settings.model import Settings, TablesSettings
from pipeline.stream import quota_sql
from pipeline.tables.layout import TABLES, create_missing
from pipeline.tables.quotas.edit import QuotaChange
from pipeline.tables.quotas.table import EditAudit, QuotaTable
from tests.object_store import ObjectStore
from tests.pipeline.cli.running import kquota
from tests.touched_tables import add_columns

AUDIT = EditAudit(actor="carol", host="ops1", tool_version="0.1.0", reason="")

# Spark and delta-rs read an address in ways of their own; what people name folders must mean the same to both.
FOLDER = "tables of João's 100% team"

# The statements of a session, in one process to start one JVM: each answer or refusal as a line of JSON.
SESSION = """
import json, sys
from pipeline.errors import PipelineError
from pipeline.settings.loading import load_settings
from pipeline.stream.quota_sql import run_sql
from pipeline.tables.object_store import reach_with
from pipeline.tables.quotas.table import EditAudit
settings = load_settings(flags={"tables": {"root": sys.argv[1]}})
reach_with(settings.store, settings.tables.root)
audit = EditAudit("carol", "ops1", "0.1.0", "month end")
for statement in sys.argv[2:]:
    try:
        answer = run_sql(settings, statement, audit)
    except PipelineError as exc:
        answer = [type(exc).__name__, str(exc)]
    print(json.dumps(answer), flush=True)
"""


@pytest.fixture
def table(tmp_path: Path) -> QuotaTable:
    fetch()
    root = str(tmp_path / FOLDER)
    create_missing(root, [TABLES["quotas"]])
    table = QuotaTable(root)
    table.alter([QuotaChange(user, "", {"producer_byte_rate": 1.0}) for user in ("alice", "bob", "carol")], AUDIT)
    return table


def run(root: str, statements: Iterable[str], folder: Path, **environment: str) -> "subprocess.CompletedProcess[str]":
    """Run statements one after the other on the table under a root."""
    return subprocess.run(
        [sys.executable, "-c", SESSION, root, *statements],
        capture_output=True,
        text=True,
        check=True,
        timeout=180,
        cwd=folder,
        env={**os.environ, **environment},
    )


@pytest.mark.spark
@pytest.mark.long
def test_statements_land_with_their_reason_or_leave_the_table_as_it_was(table: QuotaTable, tmp_path: Path) -> None:
    version = table.read().version
    statements = {
        "SELECT user, producer_byte_rate FROM quotas ORDER BY user": None,
        "UPDATE quotas SET producer_byte_rate = 2e6 WHERE user = 'alice'": None,
        "UPDATE quotas SET producer_byte_rate = 0": "CHECK constraint producer_byte_rate_is_positive",
        "INSERT INTO quotas SELECT * FROM quotas WHERE user = 'bob'": f"so v{version + 1} stays in force: row 3",
    }
    ran = run(str(Path(table.uri).parent), statements, tmp_path)
    selected, updated, *refused = map(json.loads, ran.stdout.splitlines())
    assert [(row["user"], row["producer_byte_rate"]) for row in selected] == [
        ("alice", 1.0),
        ("bob", 1.0),
        ("carol", 1.0),
    ]
    assert updated == [{"num_affected_rows": 1}]
    for (kind, said), words in zip(refused, list(statements.values())[2:], strict=True):
        assert words in said
        assert "\n" not in said
        assert kind == "Refused"
    assert [line for line in ran.stderr.splitlines() if "incubator modules" not in line] == []
    assert {row["user"]: row["producer_byte_rate"] for row in table.read(version + 1).rows} == {
        "alice": 2e6,
        "bob": 1.0,
        "carol": 1.0,
    }
    assert table.read().version == version + 2, "what was refused left no version"
    audits = [commit.audit for commit in table.history(2)]
    assert audits == [EditAudit("carol", "ops1", "0.1.0", "month end")] * 2
    assert [path.name for path in tmp_path.iterdir()] == [FOLDER], "Spark leaves nothing in the working folder"


@pytest.mark.spark
@pytest.mark.long
def test_columns_of_others_are_kept_and_features_of_others_are_refused(table: QuotaTable, tmp_path: Path) -> None:
    add_columns(table.uri)
    is_refused = {
        "UPDATE quotas SET team = 'red' WHERE user = 'alice'": False,
        "ALTER TABLE quotas SET TBLPROPERTIES ('delta.enableRowTracking' = 'true')": True,
        "ALTER TABLE quotas DROP FEATURE rowTracking": False,
        "ALTER TABLE quotas DROP FEATURE domainMetadata": False,
    }
    ran = run(str(Path(table.uri).parent), is_refused, tmp_path)
    # Delta prints a line of its own when it raises the protocol.
    answers = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("[")]
    assert ["Conflict" in answer for answer in answers] == [*is_refused.values()], answers
    assert "(domainMetadata, rowTracking)" in str(answers[1])
    table.alter([QuotaChange("bob", "", {"producer_byte_rate": 2.0})], AUDIT)
    rows = DeltaTable(table.uri).to_pyarrow_table().sort_by("user").select(["user", "team"]).to_pylist()
    assert rows == [{"user": name, "team": "red" if name == "alice" else None} for name in ("alice", "bob", "carol")]


@pytest.mark.spark
@pytest.mark.long
def test_in_a_store_what_a_statement_leaves_is_one_edit(store: ObjectStore, tmp_path: Path) -> None:
    fetch()
    root = store.address("sql")
    create_missing(root, [TABLES["quotas"]])
    table = QuotaTable(root)
    table.alter([QuotaChange(user, "", {"producer_byte_rate": 1.0}) for user in ("alice", "bob")], AUDIT)
    version = table.read().version
    statements = {
        "UPDATE quotas SET producer_byte_rate = 2e6 WHERE user = 'alice'": [{"num_affected_rows": 1}],
        "INSERT INTO quotas SELECT * FROM quotas": "quotas were not changed: ",
    }
    ran = run(root, statements, tmp_path, **store.environment)
    for answer, wanted in zip(map(json.loads, ran.stdout.splitlines()), statements.values(), strict=True):
        if isinstance(wanted, list):
            assert answer == wanted
        else:
            assert answer[0] == "Refused"
            assert wanted in answer[1]
    newest = table.read()
    assert {row["user"]: row["producer_byte_rate"] for row in newest.rows} == {"alice": 2e6, "bob": 1.0}
    assert newest.version == version + 1, "a query and what was refused left no version"
    assert table.history(1)[0].audit == EditAudit("carol", "ops1", "0.1.0", "month end")


def test_a_statement_waits_for_the_lock_like_every_edit(table: QuotaTable, monkeypatch: pytest.MonkeyPatch) -> None:
    root = str(Path(table.uri).parent)
    session: Any = MagicMock()
    monkeypatch.setattr(quota_sql, "build_spark_session", lambda *_, **__: session)
    monkeypatch.setattr(quota_sql, "QuotaTable", partial(QuotaTable, lock_timeout_seconds=0.01))
    with FileLock(Path(table.uri).with_name("quotas.lock")), pytest.raises(Conflict, match="held by another edit"):
        quota_sql.run_sql(Settings(tables=TablesSettings(root=root)), "DELETE FROM quotas", AUDIT)
    assert "DELETE FROM quotas" not in [call.args[0] for call in session.sql.call_args_list]
    session.stop.assert_called_once_with()


def test_the_command_prints_the_rows_and_names_columns_of_others(
    table: QuotaTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_columns(table.uri)
    monkeypatch.setattr(quota_sql, "run_sql", lambda *_: [{"team": "red"}])
    told = kquota("quotas", "sql", "SELECT team FROM quotas", "--tables", str(Path(table.uri).parent))
    assert (told.exit_code, "red" in told.stdout) == (0, True)
    assert "kept as they are: team, seen, contact\n" in told.stderr
