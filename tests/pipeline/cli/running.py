"""Runs a command of kquota in this process, as the console script does."""

import io
import sys
from contextlib import redirect_stderr, redirect_stdout
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple
from unittest.mock import patch

import typer.main

from pipeline.cli.main import exit_code

# Typer makes all commands anew for each line, which takes longer than most of them.
_MADE_ONCE: Final = cache(typer.main.get_command)


class Answer(NamedTuple):
    exit_code: int
    stdout: str
    stderr: str


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def new_tables(root: Path | str) -> str:
    """Create the tables under a root, as an operator does; returns the root."""
    answer = kquota("tables", "create", "--tables", str(root))
    assert answer.exit_code == 0, answer.stderr
    return str(root)


def kquota(*arguments: str, stdin: str | io.StringIO = "") -> Answer:
    out, err = io.StringIO(), io.StringIO()
    with (
        patch.object(typer.main, "get_command", _MADE_ONCE),
        patch.object(sys, "argv", ["kquota", *arguments]),
        patch.object(sys, "stdin", io.StringIO(stdin) if isinstance(stdin, str) else stdin),
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        code = exit_code()
    return Answer(code, out.getvalue(), err.getvalue())
