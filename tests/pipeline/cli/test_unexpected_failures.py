"""What a command prints about a failure without an error class of its own."""

from pathlib import Path

import pytest

from pipeline.tables.layout import TABLES, create_missing
from pipeline.tables.quotas.table import QuotaTable
from tests.pipeline.cli.running import Answer, kquota


@pytest.fixture
def blocked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    def fail(*_: object) -> None:
        raise IsADirectoryError(21, "Is a directory")

    create_missing(str(tmp_path), [TABLES["quotas"]])
    monkeypatch.setattr(QuotaTable, "lock", fail)
    return tmp_path


def alter(tables: Path) -> Answer:
    edit = ("--user", "a", "--add-config", "producer_byte_rate=1", "--reason", "test")
    return kquota("quotas", "alter", *edit, "--tables", str(tables))


def test_an_unexpected_failure_is_one_line_with_its_class(blocked: Path) -> None:
    answer = alter(blocked)
    assert answer.exit_code == 1
    assert answer.stderr.startswith("kquota: IsADirectoryError: ")
    assert answer.stderr.count("\n") == 1
    assert "KQUOTA_LOG_LEVEL=DEBUG" in answer.stderr


def test_its_stack_is_printed_on_request(blocked: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KQUOTA_LOG_LEVEL", "DEBUG")
    answer = alter(blocked)
    assert answer.stderr.startswith("Traceback")
    assert answer.stderr.splitlines()[-1].startswith("kquota: IsADirectoryError: ")
