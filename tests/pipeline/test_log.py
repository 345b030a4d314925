"""The log: it does not fail by itself, and no place in the code fills it."""

import builtins
import io
import logging
import sys
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import Mock

import pytest

from pipeline.errors import first_line
from pipeline.log import CutShort, set_up_logging


@pytest.fixture
def line_of(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., str]]:
    """What the handler of this process prints of a warning. The root logger is put back at the end."""
    text, root = io.StringIO(), logging.getLogger()
    handlers, level = list(root.handlers), root.level
    monkeypatch.setattr(sys, "stderr", text)
    set_up_logging("INFO")
    (ours,) = root.handlers

    def line_of(message: str, *arguments: Any) -> str:
        ours.handle(logging.LogRecord("some", logging.WARNING, "some.py", 7, message, arguments, None))
        return text.getvalue()

    yield line_of
    root.handlers[:], root.level = handlers, level


@pytest.mark.parametrize(("message", "arguments"), [("%d", ("x",)), ("%s %s", (1,))], ids=["type", "count"])
def test_a_record_that_can_not_be_formatted_is_one_line(
    line_of: Callable[..., str], message: str, arguments: tuple[Any, ...]
) -> None:
    (line,) = line_of(message, *arguments).splitlines()
    assert line.startswith("WARNING some line 7: not formatted: ")


def test_a_line_is_escaped_though_no_file_opens(line_of: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    refuse = Mock(side_effect=OSError(24, "Too many open files"))
    monkeypatch.setattr(builtins, "open", refuse)
    monkeypatch.setattr(io, "open_code", refuse)
    assert line_of("a\nb").endswith(" WARNING some a\\nb\n")


def logged(cut_short: CutShort, level: int, times: int, line: int = 1) -> list[str]:
    """What is added to the records that pass."""
    records = [logging.LogRecord("some", level, "some.py", line, "text", None, None) for _ in range(times)]
    return [getattr(record, "cut_short", "") for record in records if cut_short.filter(record)]


@pytest.mark.parametrize(("level", "passed"), [(logging.WARNING, 20), (logging.ERROR, 20), (logging.INFO, 1_000)])
def test_a_place_that_warns_again_and_again_is_cut_short(level: int, passed: int) -> None:
    cut_short = CutShort(lambda: 0.0)
    assert len(logged(cut_short, level, 1_000)) == passed
    assert len(logged(cut_short, level, 5, line=2)) == 5, "another place"


def test_the_lines_that_were_left_out_are_counted() -> None:
    now = 0.0
    cut_short = CutShort(lambda: now)
    assert logged(cut_short, logging.WARNING, 120)[-1] == " (more lines like this are left out for 10 s)"
    now = 9.9
    assert logged(cut_short, logging.WARNING, 1) == []
    now = 10.0
    assert logged(cut_short, logging.WARNING, 2) == [" (101 lines like this were left out)", ""]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("one line.", "one line"),
        ("\n  the first\nthe second", "the first"),
        ("calling o1.go.\n: java.io.IOException: gone\n\tat a.B", "java.io.IOException: gone"),
        ("[STREAM_FAILED] Query ended.\n=== Streaming Query ===", "[STREAM_FAILED] Query ended"),
        (" \n", "ValueError"),
    ],
)
def test_the_first_line_is_what_an_exception_says_first(text: str, line: str) -> None:
    assert first_line(ValueError(text)) == line
