"""`kquota quotas sql`: Spark SQL on the quotas, with our audit, under our lock, and one line for what fails.

Each statement runs in a process of its own: the session it stops would be that of the other tests.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from filelock import FileLock

from pipeline.jvm.jars import fetch
from pipeline.tables.layout import TABLES, create_missing
from pipeline.tables.quotas.edit import QuotaChange
from pipeline.tables.quotas.table import EditAudit, QuotaTable

pytestmark = [pytest.mark.spark, pytest.mark.long]

AUDIT = EditAudit(actor="carol", host="ops1", tool_version="0.1.0", reason="")

# The statements of a session, in one process to start one JVM: each answer or refusal as a line of JSON.
SESSION = """
import json, sys
from pipeline.errors import PipelineError
from pipeline.settings.model import Settings, TablesSettings
from pipeline.stream.quota_sql import run_sql
from pipeline.tables.quotas.table import EditAudit
settings = Settings(tables=TablesSettings(root=sys.argv[1]))
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
    root = str(tmp_path / "tables")
    create_missing(root, [TABLES["quotas"]])
    table = QuotaTable(root)
    table.alter([QuotaChange(user, "", {"producer_byte_rate": 1.0}) for user in ("alice", "bob")], AUDIT)
    return table


def test_statements_land_with_their_reason_or_leave_the_table_as_it_was(table: QuotaTable, tmp_path: Path) -> None:
    version = table.read().version
    statements = {
        "SELECT user, producer_byte_rate FROM quotas ORDER BY user": None,
        "UPDATE quotas SET producer_byte_rate = 2e6 WHERE user = 'alice'": None,
        "UPDAT quotas": "[PARSE_SYNTAX_ERROR] Syntax error at or near 'UPDAT'",
        "UPDATE quotas SET producer_byte_rate = 0": "CHECK constraint producer_byte_rate_is_positive",
        "INSERT INTO quotas SELECT * FROM quotas WHERE user = 'bob'": f"so v{version + 1} stays in force: row 3",
    }
    ran = subprocess.run(
        [sys.executable, "-c", SESSION, str(Path(table.uri).parent), *statements],
        capture_output=True,
        text=True,
        check=True,
        timeout=180,
        cwd=tmp_path,
    )
    selected, updated, *refused = map(json.loads, ran.stdout.splitlines())
    assert [(row["user"], row["producer_byte_rate"]) for row in selected] == [("alice", 1.0), ("bob", 1.0)]
    assert updated == [{"num_affected_rows": 1}]
    for (kind, said), words in zip(refused, list(statements.values())[2:], strict=True):
        assert words in said
        assert "\n" not in said
        assert kind == ("QuotasLeftInvalid" if "stays in force" in said else "QuotaEditRefused")
    assert [line for line in ran.stderr.splitlines() if "incubator modules" not in line] == []
    assert {row["user"]: row["producer_byte_rate"] for row in table.read(version + 1).rows} == {
        "alice": 2e6,
        "bob": 1.0,
    }
    assert table.read().version == version + 2, "the UPDATE and the INSERT; what was refused left no version"
    audits = [commit.audit for commit in table.history(2)]
    assert audits == [EditAudit("carol", "ops1", "0.1.0", "month end")] * 2
    assert [path.name for path in tmp_path.iterdir()] == ["tables"], "Spark leaves nothing in the working folder"


def test_a_statement_waits_for_the_lock_like_every_edit(table: QuotaTable, tmp_path: Path) -> None:
    version = table.read().version
    command = [sys.executable, "-m", "pipeline.cli.main", "quotas", "sql", "DELETE FROM quotas"]
    with FileLock(Path(table.uri).with_name("quotas.lock")):
        ran = subprocess.run(
            [*command, "--tables", str(Path(table.uri).parent)],
            capture_output=True,
            text=True,
            check=False,
            timeout=180,
            cwd=tmp_path,
        )
    assert (ran.returncode, ran.stdout) == (4, "")
    assert "quotas.lock is held by another edit" in ran.stderr
    assert table.read().version == version
