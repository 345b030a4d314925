"""The formats of all commands that print rows; tables that are wider than the terminal; names that clients made.

Of a wide table 9 cells are the least of a name, 24 of a text. Every output escapes the control characters of names;
JSON and YAML are read back as they were.
"""

import io
import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from typing import Any
from unittest.mock import patch

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from pipeline.cli.output import FORMATS, Layout, fitted, print_rows
from pipeline.errors import PipelineError, first_line, printable
from pipeline.log import set_up_logging
from pipeline.tables.quotas.edit import QuotaChange
from tests.pipeline.cli.running import Terminal, kquota
from tests.pipeline.replay.kept import KeptJob
from tests.quota.factories import usage_row

ROWS: list[dict[str, Any]] = [
    {"user": "alice", "note": 'a,b "c"\nd', "bound": 1e6, "tags": ["x", "y"], "is_on": True, "until_ms": None},
    {"user": "service-" + "0" * 70, "note": "-", "bound": 0.5, "tags": [], "is_on": False, "until_ms": 7},
]
LAYOUT = Layout(("user", "bound", "note"), dropped_first=("note",))


def test_what_is_made_for_people_is_in_tables_only(capsys: pytest.CaptureFixture[str]) -> None:
    def shown(row: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"bound": f"{row['bound']} bytes/s"}

    for output, is_shown in (("table", True), ("wide", True), ("json", False), ("yaml", False)):
        print_rows(ROWS, output, shown=shown)
        assert ("0.5 bytes/s" in capsys.readouterr().out) is is_shown, output


NAMES = ("etl", "é", "€", "日本", "😀")


def printed(rows: list[dict[str, Any]], output: str, encoding: str) -> str:
    """What is printed where stdout has this encoding."""
    stdout = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    with redirect_stdout(stdout):
        print_rows(rows, output)
        stdout.flush()
    return stdout.buffer.getvalue().decode(encoding)


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1", "ascii"])
def test_every_format_is_printed_and_read_back_whatever_the_encoding_of_stdout(encoding: str) -> None:
    rows = [{"client_id": name, "used": 1} for name in NAMES]
    shown = [name.encode(encoding, "backslashreplace").decode(encoding) for name in NAMES]
    assert json.loads(printed(rows, "json", encoding)) == rows
    assert yaml.safe_load(printed(rows, "yaml", encoding)) == rows
    header, *lines = printed(rows, "table", encoding).splitlines()
    assert [line.split() for line in lines] == [[name, "1"] for name in shown]
    assert {cell_len(line.removesuffix("1")) for line in lines} == {header.index("used")}


def test_an_argument_that_is_no_text_is_refused_in_one_line() -> None:
    answer = kquota("quotas", "describe", "--user", "a\udcff")
    assert (answer.exit_code, answer.stdout) == (2, "")
    fix = "write it in utf-8, or use another encoding: export LC_ALL=C.UTF-8"
    assert answer.stderr == rf"kquota: the argument a\udcff is not utf-8. Fix: {fix}" + "\n"


@pytest.mark.parametrize("output", FORMATS)
def test_no_rows_print_nothing_or_an_empty_list(output: str, capsys: pytest.CaptureFixture[str]) -> None:
    print_rows([], output, LAYOUT)
    assert capsys.readouterr() == ("[]\n" if output in {"json", "yaml"} else "", "")


@pytest.mark.parametrize(
    ("encoding", "arguments"), [("latin-1", ("throttles", "list", "--help")), ("ascii", ("nothing",))]
)
def test_help_is_printed_whatever_the_encoding_of_stdout(arguments: tuple[str, ...], encoding: str) -> None:
    environment = {**os.environ, "PYTHONIOENCODING": encoding, "PYTHONUTF8": "0"}
    command = [sys.executable, "-m", "pipeline.cli.main", *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, check=False)
    assert done.returncode == (0 if "--help" in arguments else 2)
    assert "Usage: " in (done.stdout + done.stderr).decode(encoding)


KEYS = ("user", "client_id", "O", "until", "note")
WIDE_ROW = ("service-0007", "etl", "54919.9", "12:00:17.8", "until May, then less; ask dana")
COLUMNS = Layout(dropped_first=("client_id", "O"), texts=("note",))
WHOLE = 12 + 9 + 7 + 10 + 30 + 4 * 2  # cells of ROW, and of the header client id


cells = st.text(st.characters(exclude_categories=["C", "Z"]), max_size=30)


@pytest.mark.parametrize(
    ("width", "dropped", "shown"),
    [
        (None, [], ["service-0007  etl        54919.9  12:00:17.8  until May, then less; ask dana"]),
        (WHOLE, [], ["service-0007  etl        54919.9  12:00:17.8  until May, then less; ask dana"]),
        (WHOLE - 1, [], ["service-0007  etl        54919.9  12:00:17.8  until May, then less; ask", " " * 46 + "dana"]),
        (WHOLE - 6, [], ["service-0007  etl        54919.9  12:00:17.8  until May, then less;", " " * 46 + "ask dana"]),
        (WHOLE - 7, ["client_id"], ["service-0007  54919.9  12:00:17.8  until May, then less; ask dana"]),
        (WHOLE - 18, ["client_id", "O"], ["service-0007  12:00:17.8  until May, then less; ask dana"]),
        (21, ["client_id", "O", "note"], ["service-0  12:00:17.8", "007"]),
        (20, ["client_id", "O", "until", "note"], ["service-0007"]),
        (1, ["client_id", "O", "until", "note"], ["service-0", "007"]),
    ],
)
def test_a_narrower_terminal_breaks_texts_then_drops_columns_then_breaks_names(
    width: int | None, dropped: list[str], shown: list[str]
) -> None:
    lines, left_out = fitted(KEYS, [WIDE_ROW], COLUMNS, width)
    assert (left_out, lines[1:]) == (dropped, shown)


def test_columns_without_room_are_named(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(WHOLE - 18))
    print_rows([dict(zip(KEYS, WIDE_ROW, strict=True))], "table", COLUMNS)
    assert capsys.readouterr().err == "no room for: client_id, O; see them with -o wide\n"


def test_the_default_entity_is_never_broken_and_widths_are_cells() -> None:
    assert fitted(("user", "client_id"), [("<default>",) * 2], Layout(), 1)[0] == ["user", "<default>"]
    assert fitted(("user", "O"), [("日本", "1")], Layout(), 80)[0] == ["user  O", "日本  1"]


def test_columns_without_a_value_go_first_and_nobody_is_told() -> None:
    lines, dropped = fitted(KEYS, [(*WIDE_ROW[:3], "", WIDE_ROW[4])], COLUMNS, WHOLE - 12)
    assert (lines[0], dropped) == ("user          client id  O        note", [])


@settings(max_examples=30)
@given(st.lists(st.tuples(*[cells] * 5), min_size=1, max_size=5), st.integers(20, 100))
def test_no_line_exceeds_the_terminal_and_numbers_are_whole_or_absent(rows: list[tuple[str, ...]], width: int) -> None:
    lines, dropped = fitted(KEYS, rows, COLUMNS, width)
    assert max(map(cell_len, lines)) <= width
    for key, column in (("O", 2), ("until", 3)):
        assert key in dropped or all(any(row[column] in line for line in lines) for row in rows)


# A second log line, a screen that is cleared, a text that is reversed, and markup of rich.
EVIL = "x\n09:00:00.000  release  alice/etl \x1b[2J\x9b1m\u202e\u2028[/red]:smile:"
SHOWN = r"x\n09:00:00.000  release  alice/etl \x1b[2J\x9b1m\u202e\u2028[/red]:smile:"


def is_safe(text: str) -> bool:
    return all(line.isprintable() for line in text.split("\n"))


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


@pytest.mark.parametrize("stdout", [io.StringIO(), Terminal()], ids=["pipe", "terminal"])
def test_a_table_shows_a_name_escaped_and_no_markup_of_it(stdout: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("TERM", "dumb")
    with patch.object(sys, "stdout", stdout):
        print_rows([{"client_id": EVIL}], "table")
    assert SHOWN in stdout.getvalue()


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> KeptJob:
    """One decision on a client whose id is evil, and a quota of a user with the same name."""
    job = KeptJob(str(tmp_path_factory.mktemp("evil")), QuotaChange("alice", EVIL, {"producer_byte_rate": 1_000.0}))
    job.batch([usage_row(job.clock.wall_ms, user="alice", client_id=EVIL, produced_bytes=30_000)])
    job.flush()
    return job


@pytest.mark.parametrize(
    "command",
    [
        ("quotas", "describe"),
        ("quotas", "history", "-o", "wide"),
        ("quotas", "effective", "alice", EVIL, "-o", "wide"),
        ("quotas", "alter", "--user", "alice", "--client", EVIL, "--add-config", "mode=shadow", "--dry-run"),
        ("quotas", "delete", "--user", EVIL),
        ("throttles", "explain", "alice", EVIL),
    ],
    ids=lambda command: " ".join(command[:2]),
)
def test_commands_show_a_name_escaped(command: tuple[str, ...], job: KeptJob) -> None:
    answer = kquota(*command, "--tables", job.root)
    text = answer.stdout + answer.stderr
    assert is_safe(text), text
    assert r"\x1b[2J" in text


@pytest.mark.parametrize("verb", ["describe", "export"])
@pytest.mark.parametrize(("output", "read"), [("json", json.loads), ("yaml", yaml.safe_load)])
def test_documents_are_printable_and_readable(output: str, read: Callable[[str], Any], verb: str, job: KeptJob) -> None:
    text = kquota("quotas", verb, "-o", output, "--tables", job.root).stdout
    assert is_safe(text), text
    names = [row["client_id"] for row in read(text)] if verb == "describe" else read(text)["quotas"][0]["entity"]
    assert EVIL in (names if verb == "describe" else [part["name"] for part in names])


def test_a_line_of_the_log_or_of_an_error_is_one_line_whatever_it_names(capsys: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger()
    with patch.object(root, "handlers", root.handlers[:]), patch.object(root, "level", root.level):
        set_up_logging("DEBUG")
        logging.getLogger("pipeline.test").info("throttle %s", EVIL, exc_info=ValueError(EVIL))
    line, *trace = capsys.readouterr().err.splitlines()
    assert line.endswith(f"throttle {SHOWN}")
    assert trace == ["  ValueError: x", "  " + SHOWN.removeprefix(r"x\n")], "no line looks like one of the log"
    for text in (str(PipelineError(f"no quota for {EVIL}", "see the names")), first_line(ValueError(EVIL))):
        assert is_safe(text)
        assert "\n" not in text
