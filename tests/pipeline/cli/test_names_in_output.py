"""Names come from clients. What people read shows their control characters escaped; JSON has the names as they are."""

import csv
import io
import json
import logging
import sys
from pathlib import Path
from unittest.mock import patch

import pytest

from pipeline.cli.output import print_rows
from pipeline.errors import PipelineError, first_line, printable
from pipeline.log import set_up_logging
from pipeline.tables.quotas.edit import QuotaChange
from tests.pipeline.cli.running import Terminal, kquota, new_tables
from tests.pipeline.replay.kept import KeptJob
from tests.pipeline.reports.minutes_kept import KeptMinutes
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
    kept, minute = KeptMinutes(str(tmp_path)), {"minute_start_ms": job.clock.wall_ms // 60_000 * 60_000}
    kept.use((0, "alice", EVIL), **minute)
    kept.hold((0, "alice", EVIL, 1_000), **minute, owner=EVIL)
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
        ("report", "chargeback", "--since", "2023-11-14", "--until", "2023-11-15", "--clients", "-o", "wide"),
        ("report", "slo", "--target", "1m", "--since", "2023-11-14", "--until", "2023-11-15", "-o", "wide"),
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


def test_json_has_the_name_as_it_is(job: KeptJob) -> None:
    (row,) = json.loads(kquota("quotas", "describe", "-o", "json", "--tables", job.root).stdout)
    assert row["client_id"] == EVIL
    (quota,) = json.loads(kquota("quotas", "export", "-o", "json", "--tables", job.root).stdout)["quotas"]
    assert EVIL in {part["name"] for part in quota["entity"]}


def test_csv_has_the_name_as_it_is(job: KeptJob) -> None:
    (row,) = csv.DictReader(io.StringIO(kquota("quotas", "describe", "-o", "csv", "--tables", job.root).stdout))
    assert row["client_id"] == EVIL


@pytest.mark.parametrize("stdout", [io.StringIO(), Terminal()], ids=["pipe", "terminal"])
def test_a_table_shows_a_name_escaped_and_no_markup_of_it(stdout: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("TERM", "dumb")
    with patch.object(sys, "stdout", stdout):
        print_rows([{"client_id": EVIL}], "table")
    assert SHOWN in stdout.getvalue()


def test_a_log_line_is_one_line_whatever_it_names(capsys: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    try:
        set_up_logging("INFO")
        logging.getLogger("pipeline.test").info("throttle %s", EVIL)
    finally:
        root.handlers[:] = before
        root.setLevel(level)
    line = capsys.readouterr().err
    assert line.endswith(f"throttle {SHOWN}\n")
    assert line.count("\n") == 1


def test_an_error_is_one_line_without_control_characters() -> None:
    assert is_safe(str(PipelineError(f"no quota for {EVIL}", "see the names")))
    assert is_safe(first_line(ValueError(EVIL)))
