"""The formats of all commands that print rows, on one table."""

import csv
import io
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.cells import cell_len

from pipeline.cli.output import FORMATS, Layout, print_rows
from tests.pipeline.cli.running import kquota

ROWS: list[dict[str, Any]] = [
    {"user": "alice", "note": 'a,b "c"\nd', "bound": 1e6, "tags": ["x", "y"], "is_on": True, "until_ms": None},
    {"user": "service-" + "0" * 70, "note": "-", "bound": 0.5, "tags": [], "is_on": False, "until_ms": 7},
]
LAYOUT = Layout(("user", "bound", "note"), dropped_first=("note",))


@pytest.fixture(autouse=True)
def _eighty_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def test_a_table_fits_eighty_columns_and_says_on_stderr_what_it_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    print_rows(ROWS, "table", LAYOUT)
    answer = capsys.readouterr()
    assert max(map(len, answer.out.splitlines())) == 80
    assert answer.out.splitlines()[0].split() == ["user", "bound"]
    assert answer.err == (
        "no room for: note; see them with -o wide\nnames with … are shortened; see them in full with -o wide\n"
    )


def test_a_wider_terminal_shows_more(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    print_rows(ROWS, "table", LAYOUT)
    answer = capsys.readouterr()
    assert ROWS[1]["user"] in answer.out
    assert r'a,b "c"\nd' in answer.out
    assert answer.err == ""


def test_wide_shows_all_keys_those_of_the_table_first(capsys: pytest.CaptureFixture[str]) -> None:
    print_rows(ROWS, "wide", LAYOUT)
    header, *lines = capsys.readouterr().out.splitlines()
    assert header.split() == ["user", "bound", "note", "tags", "is", "on", "until", "ms"]
    assert len(lines) == len(ROWS)


def test_csv_is_read_back_by_the_csv_module(capsys: pytest.CaptureFixture[str]) -> None:
    print_rows(ROWS, "csv", LAYOUT)
    first, second = csv.DictReader(io.StringIO(capsys.readouterr().out, newline=""))
    assert first == {
        "user": "alice",
        "note": r'a,b "c"\nd',
        "bound": "1000000.0",
        "tags": '["x", "y"]',
        "is_on": "true",
        "until_ms": "",
    }
    assert second["user"] == ROWS[1]["user"]


def test_json_and_yaml_are_the_rows_or_the_document_in_their_place(capsys: pytest.CaptureFixture[str]) -> None:
    print_rows(ROWS, "json", LAYOUT)
    assert json.loads(capsys.readouterr().out) == ROWS
    print_rows(ROWS, "yaml", LAYOUT, document={"rows": ROWS})
    assert yaml.safe_load(capsys.readouterr().out) == {"rows": ROWS}


def test_what_is_made_for_people_is_in_tables_only(capsys: pytest.CaptureFixture[str]) -> None:
    def shown(row: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"bound": f"{row['bound']} bytes/s"}

    for output, is_shown in (("table", True), ("wide", True), ("csv", False), ("json", False), ("yaml", False)):
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
    assert [row["client_id"] for row in csv.DictReader(io.StringIO(printed(rows, "csv", encoding)))] == shown
    header, *lines = printed(rows, "table", encoding).splitlines()
    assert [line.split() for line in lines] == [[name, "1"] for name in shown]
    assert {cell_len(line.removesuffix("1")) for line in lines} == {header.index("used")}


def test_a_shortened_name_fits_whatever_the_encoding_of_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(ROWS, "table", "ascii")
    assert max(map(len, text.splitlines())) == 80
    assert "0~0" in text
    assert "names with ~ are shortened" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments", [("--help",), ("quotas", "--help"), ("throttles", "list", "--help"), ("nothing",)]
)
@pytest.mark.parametrize("encoding", ["latin-1", "ascii"])
def test_help_is_printed_whatever_the_encoding_of_stdout(arguments: tuple[str, ...], encoding: str) -> None:
    environment = {**os.environ, "PYTHONIOENCODING": encoding, "PYTHONUTF8": "0"}
    command = [sys.executable, "-m", "pipeline.cli.main", *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, check=False)
    text = (done.stdout + done.stderr).decode(encoding)
    assert done.returncode == (0 if "--help" in arguments else 2), text
    assert "Usage: " in text
    assert "Error" not in done.stderr.decode(encoding) or done.returncode == 2


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
    ("command", "known"),
    [
        ("topics create --bootstrap-server 127.0.0.1:1", "table"),
        ("topics check --acls", "table"),
        ("tables create", "table"),
        ("quotas alter --user alice --add-config producer_byte_rate=1", "kafka, table"),
        ("quotas apply -f missing.yaml", "table"),
        ("quotas sql nothing", "table"),
        ("throttles verify", "table"),
        ("what-if -f missing.yaml", "table"),
        ("mode shadow", "table"),
    ],
)
def test_a_command_refuses_another_format_before_it_does_anything(
    command: str, known: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    answer = kquota(*command.split(), "-o", "xml")
    assert (answer.exit_code, answer.stdout) == (2, "")
    assert answer.stderr.startswith(f"kquota: unknown format -o xml; use {known}, wide, csv, json, yaml")
    assert list(tmp_path.iterdir()) == []
