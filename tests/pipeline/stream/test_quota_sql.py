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
from pipeline.tables.quotas.table import EditAudit, QuotaTable
from tests.pipeline.tables.factories import AUDIT, bound, quota_table
from tests.pipeline.tables.quotas.test_source import GOOD, write_past_us
from tests.touched_tables import add_columns

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
    table = quota_table(tmp_path / "tables")
    table.alter([bound(user, 1.0) for user in ("alice", "bob", "carol")], AUDIT)
    return table


def root_of(table: QuotaTable) -> str:
    return str(Path(table.uri).parent)


def rates(table: QuotaTable) -> dict[str, float]:
    return {row["user"]: row["producer_byte_rate"] for row in table.read().rows}


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
        [sys.executable, "-c", SESSION, root_of(table), *statements],
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
    assert rates(table) == {"alice": 2e6, "bob": 1.0, "carol": 1.0}
    assert table.read().version == version + 1, "a query and what was refused left no version"
    assert table.history(1)[0].audit == EditAudit("carol", "ops1", "0.1.0", "month end")
    assert table.columns_of_others() == ["team", "seen", "contact"]
    assert [path.name for path in tmp_path.iterdir()] == ["tables"], "Spark leaves nothing in the working folder"


@pytest.fixture
def run(table: QuotaTable, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[dict[str, Any]]]:
    """Runs a statement that deletes these rows, and answers how many are left; no JVM starts.

    `meanwhile` is called while Spark starts, and `during` while the statement runs.
    """

    def run_sql(
        deleted: str, meanwhile: Callable[[], object] = lambda: None, during: Callable[[], object] = lambda: None
    ) -> list[dict[str, Any]]:
        @contextmanager
        def session(_: SparkSettings, folder: str) -> Iterator[Callable[[str], list[dict[str, Any]]]]:
            def answer(_: str) -> list[dict[str, Any]]:
                during()
                copy = DeltaTable(f"{folder}/quotas")
                if deleted:
                    copy.delete(deleted)
                return [{"left": copy.count()}]

            meanwhile()
            yield answer

        monkeypatch.setattr(quota_sql, "_session", session)
        settings = Settings(tables=TablesSettings(root=root_of(table)))
        return quota_sql.run_sql(settings, "a statement", AUDIT)

    return run_sql


def test_a_statement_is_refused_if_another_edit_came_first(table: QuotaTable, run: Callable[..., object]) -> None:
    with pytest.raises(Conflict, match=r"another edit came first \(version 3\). Fix: repeat the command") as refusal:
        run("user = 'alice'", during=lambda: table.alter([bound("bob", 2.0)], AUDIT))
    assert refusal.value.exit_code == 4
    assert rates(table) == {"alice": 1.0, "bob": 2.0, "carol": 1.0}


def test_a_statement_sees_an_edit_made_while_spark_starts(table: QuotaTable, run: Callable[..., object]) -> None:
    run("user = 'alice'", meanwhile=lambda: table.alter([bound("bob", 2.0)], AUDIT))
    assert rates(table) == {"bob": 2.0, "carol": 1.0}


def test_an_invalid_row_can_be_asked_and_mended(table: QuotaTable, run: Callable[..., list[dict[str, Any]]]) -> None:
    write_past_us(table, {**GOOD, "producer_byte_rate": 0.0})
    assert run("") == [{"left": 4}]
    run("producer_byte_rate = 0")
    assert rates(table) == {"alice": 1.0, "bob": 1.0, "carol": 1.0}
