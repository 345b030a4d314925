"""Prints the page of the command line: every command with its help, arguments and flags, as the program has them."""

import sys
from collections.abc import Iterator
from typing import Any

from typer import Context
from typer.main import get_command

from pipeline.cli.main import app


def commands_page() -> str:
    """The page, in Markdown."""
    lines = ["# Commands", "", "Made of the program itself; `kquota COMMAND --help` prints the same.", ""]
    for path, command in _commands(get_command(app), "kquota"):
        lines += [f"## `{path}`", "", _escaped(command.help or ""), ""]
        shown = (option.get_help_record(Context(command)) for option in command.params)
        rows = [_row(*record) for record in shown if record]
        lines += ["| option | meaning |", "| --- | --- |", *rows, ""] if rows else []
    return "\n".join(lines)


def _commands(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Each command that runs something, and the words that call it."""
    if not hasattr(command, "commands"):
        yield path, command
        return
    for name, below in command.commands.items():
        if not below.hidden:
            yield from _commands(below, f"{path} {name}")


def _row(name: str, meaning: str) -> str:
    """A row of the table: an option with its type, and its help with default and range, or that it is required."""
    cell = name.replace("|", "\\|")
    return f"| `{cell}` | {_escaped(' '.join(meaning.split()))} |"


def _escaped(text: str) -> str:
    """Text of the program as Markdown: signs that would be read as tags or as a cell's end."""
    return text.replace("<", "&lt;").replace("|", "\\|")


if __name__ == "__main__":
    sys.stdout.write(commands_page())
