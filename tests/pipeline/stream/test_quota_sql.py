"""`kquota quotas sql`: Spark SQL on the quotas, with our audit, under our lock, and one line for what fails.

Each statement runs in a process of its own: the session it stops would be that of the other tests.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
from deltalake import DeltaTable
from filelock import FileLock

from pipeline.jvm.jars import fetch
from pipeline.tables.layout import TABLES, create_missing
from pipeline.tables.quotas.edit import QuotaChange
from pipeline.tables.quotas.table import EditAudit, QuotaTable
from tests.object_store import ObjectStore

pytestmark = [pytest.mark.spark, pytest.mark.long]

AUDIT = EditAudit(actor="carol", host="ops1", tool_version="0.1.0", reason="")

# Spark and delta-rs read an address in ways of their own; what people name folders must mean the same to both.
FOLDER = "tables of João's 100% team"

# The statements of a session, in one process to start one JVM: each answer or refusal as a line of JSON.
SESSION = """
import json, sys
from pipeline.errors import PipelineError
from pipeline.settings.loading import load_settings
from pipeline.stream.quota_sql import run_sql
from pipeline.tables.quotas.table import EditAudit
settings = load_settings(flags={"tables": {"root": sys.argv[1]}})
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


def test_statements_land_with_their_reason_or_leave_the_table_as_it_was(table: QuotaTable, tmp_path: Path) -> None:
    version = table.read().version
    statements = {
        "SELECT user, producer_byte_rate FROM quotas ORDER BY user": None,
        "UPDATE quotas SET producer_byte_rate = 2e6 WHERE user = 'alice'": None,
        "MERGE INTO quotas USING (SELECT 'bob' AS who) ON user = who "
        "WHEN MATCHED THEN UPDATE SET producer_byte_rate = 3e6": None,
        "DELETE FROM quotas WHERE user = 'carol'": None,
        "UPDAT quotas": "[PARSE_SYNTAX_ERROR] Syntax error at or near 'UPDAT'",
        "UPDATE quotas SET producer_byte_rate = 0": "CHECK constraint producer_byte_rate_is_positive",
        "INSERT INTO quotas SELECT * FROM quotas WHERE user = 'bob'": f"so v{version + 3} stays in force: row 3",
    }
    ran = run(str(Path(table.uri).parent), statements, tmp_path)
    selected, updated, merged, deleted, *refused = map(json.loads, ran.stdout.splitlines())
    assert [(row["user"], row["producer_byte_rate"]) for row in selected] == [
        ("alice", 1.0),
        ("bob", 1.0),
        ("carol", 1.0),
    ]
    assert updated == deleted == [{"num_affected_rows": 1}]
    assert merged[0]["num_updated_rows"] == 1
    for (kind, said), words in zip(refused, list(statements.values())[4:], strict=True):
        assert words in said
        assert "\n" not in said
        assert kind == "Refused"
    assert [line for line in ran.stderr.splitlines() if "incubator modules" not in line] == []
    assert {row["user"]: row["producer_byte_rate"] for row in table.read(version + 3).rows} == {
        "alice": 2e6,
        "bob": 3e6,
    }
    assert table.read().version == version + 4, "what was refused left no version"
    audits = [commit.audit for commit in table.history(4)]
    assert audits == [EditAudit("carol", "ops1", "0.1.0", "month end")] * 4
    assert [path.name for path in tmp_path.iterdir()] == [FOLDER], "Spark leaves nothing in the working folder"


def test_columns_of_others_are_kept_and_features_of_others_are_refused_with_what_drops_them(
    table: QuotaTable, tmp_path: Path
) -> None:
    given = "SET TBLPROPERTIES ('delta.enable"
    statements: dict[str, list[str]] = {
        "ALTER TABLE quotas ADD COLUMN team STRING": [],
        "UPDATE quotas SET team = 'red' WHERE user = 'alice'": [],
        f"ALTER TABLE quotas {given}RowTracking' = 'true')": [
            "DROP FEATURE rowTracking",
            "DROP FEATURE domainMetadata",
        ],
        "ALTER TABLE quotas DROP FEATURE rowTracking": [],
        "ALTER TABLE quotas DROP FEATURE domainMetadata": [],
        f"ALTER TABLE quotas {given}InCommitTimestamps' = 'true')": ["DROP FEATURE inCommitTimestamp"],
        "ALTER TABLE quotas DROP FEATURE inCommitTimestamp": [],
        "ALTER TABLE quotas SET TBLPROPERTIES ('delta.appendOnly' = 'true')": [],
        "ALTER TABLE quotas UNSET TBLPROPERTIES ('delta.appendOnly')": [],
        "ALTER TABLE quotas CLUSTER BY (user)": [],
    }
    ran = run(str(Path(table.uri).parent), statements, tmp_path)
    # Delta prints a line of its own when it raises the protocol.
    *answers, clustered = (json.loads(line) for line in ran.stdout.splitlines() if line.startswith("["))
    for answer, drops in zip(answers, list(statements.values()), strict=False):
        dropping = re.findall(r"ALTER TABLE quotas (DROP FEATURE \w+)", "".join(map(str, answer)))
        assert (dropping, "Conflict" in answer) == (drops, bool(drops)), answer
    assert clustered[0] == "Conflict"
    subprocess.run(["/bin/sh", "-e", "-c", clustered[1][clustered[1].index("cd ") :]], check=True)
    table.alter([QuotaChange("bob", "", {"producer_byte_rate": 2.0})], AUDIT)
    rows = DeltaTable(table.uri).to_pyarrow_table().sort_by("user").select(["user", "team"]).to_pylist()
    assert rows == [{"user": name, "team": "red" if name == "alice" else None} for name in ("alice", "bob", "carol")]
    command = [
        sys.executable,
        "-m",
        "pipeline.cli.main",
        "quotas",
        "sql",
        "SELECT team FROM quotas WHERE user = 'alice'",
    ]
    told = subprocess.run(
        [*command, "--tables", str(Path(table.uri).parent)], capture_output=True, text=True, check=True
    )
    assert "red" in told.stdout
    assert "note: columns that kquota does not know have no effect and are kept as they are: team\n" in told.stderr


def test_in_a_store_what_a_statement_leaves_is_one_edit(store: ObjectStore, tmp_path: Path) -> None:
    fetch()
    root = store.address("sql")
    create_missing(root, [TABLES["quotas"]])
    table = QuotaTable(root)
    table.alter([QuotaChange(user, "", {"producer_byte_rate": 1.0}) for user in ("alice", "bob")], AUDIT)
    version = table.read().version
    statements = {
        "SELECT user FROM quotas ORDER BY user": [{"user": "alice"}, {"user": "bob"}],
        "UPDATE quotas SET producer_byte_rate = 2e6 WHERE user = 'alice'": [{"num_affected_rows": 1}],
        "UPDATE quotas SET producer_byte_rate = 0": "CHECK constraint producer_byte_rate_is_positive",
        "INSERT INTO quotas SELECT * FROM quotas": "quotas were not changed: ",
        "ALTER TABLE quotas ADD COLUMN team STRING": "it changes columns or properties of the table",
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
