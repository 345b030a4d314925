"""The fenced blocks of README.md and docs/*.md, and how each one is tested.

The info string of a block with commands says it: its language, `sh` (commands) or `console` (commands and what they
print), and then one of

    pure                played without broker and Spark
    pure exact          so, and every character of the answer is compared
    demo                played beside a running demo
    cluster             played with a broker and a Spark cluster, which the page starts
    store               played with an object store, which the page starts
    run                 lines of what the demo itself prints, in `console`; its command starts the demo
    unplayed: REASON    not played, because

Statements of `sql` are run by tests/deploy/test_sql.py.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from markdown_it import MarkdownIt

ROOT: Final = Path(__file__).parents[2]
PAGES: Final = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
SHELL_LANGUAGES: Final = ("sh", "console")
LANGUAGES: Final = (*SHELL_LANGUAGES, "python", "json", "yaml", "toml", "properties", "text", "sql")
WAYS: Final = ("pure", "pure exact", "demo", "cluster", "store", "run")
UNPLAYED: Final = "unplayed: "


@dataclass(frozen=True, slots=True)
class Block:
    """One block of code.

    Attributes:
        first_line: Number of the line after the opening fence; the page's first line is 0.
        language: First word of the info string; "" without a fence, or if the string is empty.
        how: The rest of the info string.
        text: What is between the fences.
        is_fenced: False for a block that is only indented.
    """

    first_line: int
    language: str
    how: str
    text: str
    is_fenced: bool = True

    @property
    def is_shell(self) -> bool:
        """Whether it has commands for a shell."""
        return self.language in SHELL_LANGUAGES


def blocks_of(page: str) -> Iterator[Block]:
    """The blocks of code of a page, first one first, also those inside lists."""
    for token in MarkdownIt("commonmark").parse(page):
        if token.type in {"fence", "code_block"} and token.map is not None:
            is_fenced = token.type == "fence"
            language, _, how = token.info.strip().partition(" ")
            yield Block(token.map[0] + is_fenced, language, how.strip(), token.content, is_fenced)


def mistakes_in(page: str) -> Iterator[str]:
    """What keeps a block of the page from being tested, one sentence each."""
    for block in blocks_of(page):
        mistake = _mistake(block)
        if mistake:
            yield f"line {block.first_line}: {mistake}"


def _mistake(block: Block) -> str:
    if not block.is_fenced:
        return "the block must be fenced; got one that is indented"
    if block.language not in LANGUAGES:
        return f"the language must be one of {', '.join(LANGUAGES)}; got {block.language or 'none'}"
    if not block.is_shell:
        commands = [line for line in block.text.splitlines() if line.startswith(("$ ", "kquota "))]
        return f"commands must be in a block of sh or console; got {commands[0]}" if commands else ""
    if block.how in WAYS or (block.how.startswith(UNPLAYED) and block.how.removeprefix(UNPLAYED).strip()):
        return ""
    kinds = f"{', '.join(WAYS)} or '{UNPLAYED}REASON'"
    return f"'{block.language}' must be followed by {kinds}; got {block.how or 'nothing'}"
