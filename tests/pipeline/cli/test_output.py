"""The formats of all commands that print rows, on one table."""

import csv
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

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


def test_csv_is_read_back_by_the_csv_module_with_every_value_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    print_rows(ROWS, "csv", LAYOUT)
    first, second = csv.DictReader(io.StringIO(capsys.readouterr().out, newline=""))
    assert first == {
        "user": "alice",
        "note": 'a,b "c"\nd',
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
