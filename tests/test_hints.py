"""No message spells a command of kquota by hand: `pipeline.command_line` makes those that run as printed."""

import ast
import re
from pathlib import Path

import typer

from pipeline.cli.main import app

ROOT = Path(__file__).parents[1]
# Texts that name a command and do not tell the reader to run it: titles, and who does something.
NAMES = {
    "kquota run",
    "kquota meter, and every program that reports usage",
    "kquota gate, and every program that follows throttles",
    "kquota operator",
    "kquota topics",
    "kquota topics create and check",
    "kquota quotas import --from-cluster",
    "kquota quotas sync",
    "kquota what-if",
    '<!doctype html><html lang="en"><meta charset="utf-8"><title>kquota what-if</title><style>',
    "Made by `kquota demo`. `kquota demo --fresh` deletes the demo's data in this folder.\n",
}


def spelt_by_hand(source: str, commands: list[str]) -> list[str]:
    """The texts of a module with a command of kquota in them, without docstrings and help texts of options."""
    tree = ast.parse(source)
    kept_out: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr):
            kept_out.add(node.value)
        if isinstance(node, ast.keyword) and node.arg == "help":
            kept_out.update(ast.walk(node.value))
    pattern = re.compile(rf"kquota ({'|'.join(commands)})\b")
    texts = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and node not in kept_out]
    return [node.value for node in texts if isinstance(node.value, str) and pattern.search(node.value)]


def commands() -> list[str]:
    return sorted(getattr(typer.main.get_command(app), "commands"))  # noqa: B009 - typer's own type has it not


def test_no_message_spells_a_command_by_hand() -> None:
    known = commands()
    found = {
        str(path.relative_to(ROOT)): wrong
        for room in ("pipeline", "quota", "purgatory", "schemas")
        for path in (ROOT / room).rglob("*.py")
        if (wrong := [text for text in spelt_by_hand(path.read_text(), known) if text not in NAMES])
    }
    assert found == {}


def test_a_command_in_a_message_is_found_and_one_in_a_docstring_is_not() -> None:
    source = '"""See kquota mode."""\nraise E(f"{x}", f"see kquota mode {x}")\nOption(help="As kquota mode does.")\n'
    assert spelt_by_hand(source, ["mode"]) == ["see kquota mode "]
