"""`kquota quotas sql`: Spark SQL on a copy of the quotas, of which the rows are one edit; one line for what fails.

Each statement runs in a process of its own: the session it stops would be that of the other tests.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from pipeline.errors import Conflict
from pipeline.jvm.jars import fetch
from pipeline.settings.model import Settings, SparkSettings, TablesSettings
from pipeline.stream import quota_sql
from pipeline.tables.layout import TABLES, create_missing
from pipeline.tables.quotas.edit import QuotaChange
from pipeline.tables.quotas.table import EditAudit, QuotaTable
from tests.pipeline.cli.running import kquota
from tests.pipeline.tables.quotas.test_source import GOOD, write_past_us
from tests.touched_tables import add_columns

AUDIT = EditAudit(actor="carol", host="ops1", tool_version="0.1.0", reason="")

# The statements of a session, in one process to start one JVM: each answer or refusal as a line of JSON.
SESSION = """
import json, sys
from pipeline.errors import PipelineError
from pipeline.settings.model import load_settings
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
    root = str(tmp_path / "tables")
    create_missing(root, [TABLES["quotas"]])
    table = QuotaTable(root)
    table.alter([QuotaChange(user, "", {"producer_byte_rate": 1.0}) for user in ("alice", "bob", "carol")], AUDIT)
    return table


@pytest.mark.spark
@pytest.mark.long
def test_statements_land_with_their_reason_or_leave_the_table_as_it_was(table: QuotaTable, tmp_path: Path) -> None:
    add_columns(table.uri)
    version = table.read().version
    statements = {
        "SELECT user, producer_byte_rate FROM quotas ORDER BY user": [
            {"user": name, "producer_byte_rate": 1.0} for name in ("alice", "bob", "carol")
        ],
        "UPDATE quotas SET producer_byte_rate = 2e6 WHERE user = 'alice'": [{"num_affected_rows": 1}],
        "UPDATE quotas SET producer_byte_rate = 0": "user-principal 'alice': Quota producer_byte_rate must be greater",
        "INSERT INTO quotas SELECT * FROM quotas WHERE user = 'bob'": "user-principal 'bob' has 2 rows, not one",
        "ALTER TABLE quotas ADD COLUMNS (team STRING)": "it changes columns or properties of the table",
        "UPDATE quotas SET": "PARSE_SYNTAX_ERROR",
    }
    ran = subprocess.run(
        [sys.executable, "-c", SESSION, str(Path(table.uri).parent), *statements],
        capture_output=True,
        text=True,
        check=True,
        timeout=180,
        cwd=tmp_path,
    )
    # Delta prints a line of its own when it raises the protocol.
    answers = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("[")]
    for answer, wanted in zip(answers, statements.values(), strict=True):
        if isinstance(wanted, list):
            assert answer == wanted
        else:
            assert answer[0] == "Refused"
            assert wanted in answer[1]
            assert "\n" not in answer[1]
    assert [line for line in ran.stderr.splitlines() if "incubator modules" not in line] == []
    newest = table.read()
    assert {row["user"]: row["producer_byte_rate"] for row in newest.rows} == {"alice": 2e6, "bob": 1.0, "carol": 1.0}
    assert newest.version == version + 1, "a query and what was refused left no version"
    assert table.history(1)[0].audit == EditAudit("carol", "ops1", "0.1.0", "month end")
    assert table.columns_of_others() == ["team", "seen", "contact"]
    assert [path.name for path in tmp_path.iterdir()] == ["tables"], "Spark leaves nothing in the working folder"


@pytest.fixture
def spark_does(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Sets what a statement does with the copy at an address, and what happens while Spark starts; no JVM starts."""

    def use(run: Callable[[str], list[dict[str, Any]]], while_it_starts: Callable[[], object] = lambda: None) -> None:
        @contextmanager
        def session(_: SparkSettings, folder: str) -> Iterator[Callable[[str], list[dict[str, Any]]]]:
            while_it_starts()
            yield lambda _: run(f"{folder}/quotas")

        monkeypatch.setattr(quota_sql, "_session", session)

    return use


def without_alice(copy: str) -> list[dict[str, Any]]:
    DeltaTable(copy).delete("user = 'alice'")
    return []


def test_a_statement_is_refused_if_another_edit_came_first(table: QuotaTable, spark_does: Callable[..., None]) -> None:
    def run(copy: str) -> list[dict[str, Any]]:
        table.alter([QuotaChange("bob", "", {"producer_byte_rate": 2.0})], AUDIT)
        return without_alice(copy)

    spark_does(run)
    with pytest.raises(Conflict, match=r"another edit came first \(version 3\). Fix: repeat the command") as refusal:
        quota_sql.run_sql(settings_of(table), "DELETE FROM quotas WHERE user = 'alice'", AUDIT)
    assert refusal.value.exit_code == 4
    assert [row["user"] for row in table.read().rows] == ["alice", "bob", "carol"]


def test_an_edit_while_spark_starts_is_in_the_rows_that_a_statement_sees(
    table: QuotaTable, spark_does: Callable[..., None]
) -> None:
    edit = QuotaChange("bob", "", {"producer_byte_rate": 2.0})
    spark_does(without_alice, while_it_starts=lambda: table.alter([edit], AUDIT))
    quota_sql.run_sql(settings_of(table), "DELETE FROM quotas WHERE user = 'alice'", AUDIT)
    assert {row["user"]: row["producer_byte_rate"] for row in table.read().rows} == {"bob": 2.0, "carol": 1.0}


def test_a_table_with_an_invalid_row_can_be_asked_and_mended(
    table: QuotaTable, spark_does: Callable[..., None]
) -> None:
    write_past_us(table, {**GOOD, "producer_byte_rate": 0.0})
    spark_does(lambda _: [{"count(1)": 4}])
    assert quota_sql.run_sql(settings_of(table), "SELECT count(*) FROM quotas", AUDIT) == [{"count(1)": 4}]

    def run(copy: str) -> list[dict[str, Any]]:
        DeltaTable(copy).delete("producer_byte_rate = 0")
        return []

    spark_does(run)
    quota_sql.run_sql(settings_of(table), "DELETE FROM quotas WHERE producer_byte_rate = 0", AUDIT)
    assert 0.0 not in [row["producer_byte_rate"] for row in table.read().rows]


def settings_of(table: QuotaTable) -> Settings:
    return Settings(tables=TablesSettings(root=str(Path(table.uri).parent)))


def test_the_command_prints_the_rows_and_names_columns_of_others(
    table: QuotaTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_columns(table.uri)
    monkeypatch.setattr(quota_sql, "run_sql", lambda *_: [{"team": "red"}])
    told = kquota("quotas", "sql", "SELECT team FROM quotas", "--tables", str(Path(table.uri).parent))
    assert (told.exit_code, "red" in told.stdout) == (0, True)
    assert "kept as they are: team, seen, contact\n" in told.stderr
