"""Prints the page of the command line: every command with its help, arguments and flags, as the program has them."""

import sys
from collections.abc import Iterator
from typing import Any

from typer.main import get_command

from pipeline.cli.main import app


def commands_page() -> str:
    """The page, in Markdown."""
    lines = ["# Commands", "", "Made of the program itself; `kquota COMMAND --help` prints the same.", ""]
    for path, command in _commands(get_command(app), "kquota"):
        lines += [f"## `{path}`", "", _escaped(command.help or ""), ""]
        rows = [row for row in map(_row, command.params) if row]
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


def _row(option: Any) -> str:
    """A row of the table; "" for an option that is hidden."""
    if getattr(option, "hidden", False):
        return ""
    is_argument = option.param_type_name == "argument"
    metavar = option.metavar or (option.name.upper() if is_argument else "")
    words = [] if is_argument else [", ".join((*option.opts, *option.secondary_opts))]
    name = " ".join([*words, metavar]).strip().replace("|", "\\|")
    return f"| `{name}` | {_escaped(' '.join((getattr(option, 'help', None) or '').split()))} |"


def _escaped(text: str) -> str:
    """Text of the program as Markdown: signs that would be read as tags or as a cell's end."""
    return text.replace("<", "&lt;").replace("|", "\\|")


if __name__ == "__main__":
    sys.stdout.write(commands_page())
