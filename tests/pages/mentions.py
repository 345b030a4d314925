"""Commands of kquota that a page names, in blocks and in running text, compared with those that exist."""

import re
from collections.abc import Iterator
from functools import cache
from typing import Any, Final

from markdown_it import MarkdownIt
from typer.main import get_command

from pipeline.cli.main import app
from tests.pages.blocks import blocks_of
from tests.pages.transcript import exchanges

_COMMAND: Final = re.compile(r"(?:^|[\s;|&(])kquota ((?:[^;|&()\n]|\\\n)*)")
_FLAG: Final = re.compile(r"--?[a-z][a-z-]*")


def unknown_in(page: str) -> Iterator[str]:
    """The commands that do not exist, and the flags that their commands do not have."""
    texts = [exchange.command for block in blocks_of(page) if block.is_shell for exchange in exchanges(block)]
    for token in MarkdownIt("commonmark").parse(page):
        texts += [child.content for child in token.children or () if child.type == "code_inline"]
    for text in texts:
        for found in _COMMAND.finditer(text):
            yield from _unknown(found[1].split())


def _unknown(words: list[str]) -> Iterator[str]:
    command, path = _kquota(), "kquota"
    while hasattr(command, "commands") and words and re.fullmatch("[a-z][a-z-]*", words[0]):
        word = words[0]
        path += f" {words.pop(0)}"
        if word not in command.commands:
            yield path
            return
        command = command.commands[word]
    flags = {name for option in command.params for name in (*option.opts, *option.secondary_opts)} | {"--help"}
    yield from (f"{path} {word}" for word in words if _FLAG.fullmatch(word) and word not in flags)


@cache
def _kquota() -> Any:
    return get_command(app)
