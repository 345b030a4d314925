"""What a command prints about a failure without an error class of its own: here a table whose log is damaged."""

from pathlib import Path

import pytest

from tests.pipeline.cli.running import Answer, kquota


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    log = tmp_path / "quotas" / "_delta_log"
    log.mkdir(parents=True)
    (log / "00000000000000000000.json").write_text('{"protocol":', encoding="utf-8")
    return tmp_path


def alter(tables: Path) -> Answer:
    edit = ("--user", "a", "--add-config", "producer_byte_rate=1", "--reason", "test")
    return kquota("quotas", "alter", *edit, "--tables", str(tables))


def test_an_unexpected_failure_is_one_line_with_its_class(damaged: Path) -> None:
    answer = alter(damaged)
    assert answer.exit_code == 1
    assert answer.stderr.startswith("kquota: DeltaError: ")
    assert answer.stderr.count("\n") == 1
    assert "KQUOTA_LOG_LEVEL=DEBUG" in answer.stderr


def test_its_stack_is_printed_on_request(damaged: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KQUOTA_LOG_LEVEL", "DEBUG")
    answer = alter(damaged)
    assert answer.stderr.startswith("Traceback")
    assert answer.stderr.splitlines()[-1].startswith("kquota: DeltaError: ")
