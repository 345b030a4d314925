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
_WAYS: Final = ("pure", "pure exact", "demo", "cluster", "store", "run")
_UNPLAYED: Final = "unplayed: "
_OTHER_SHELLS: Final = frozenset({"", "bash", "shell", "zsh"})


@dataclass(frozen=True, slots=True)
class Block:
    """One block of code; `first_line` is that after the opening fence, `language` and `how` are the info string."""

    first_line: int
    language: str
    how: str
    text: str

    @property
    def is_shell(self) -> bool:
        return self.language in {"sh", "console"}

    @property
    def says_how_it_is_tested(self) -> bool:
        """Whether a shell block, `sh` or `console`, says how it is tested; any other block must have no commands."""
        if self.is_shell:
            return self.how in _WAYS or (self.how.startswith(_UNPLAYED) and self.how != _UNPLAYED.strip())
        return self.language not in _OTHER_SHELLS and not any(
            line.startswith(("$ ", "kquota ")) for line in self.text.splitlines()
        )


def blocks_of(page: str) -> Iterator[Block]:
    """The blocks of code of a page, first one first, also those inside lists."""
    for token in MarkdownIt("commonmark").parse(page):
        if token.type in {"fence", "code_block"} and token.map is not None:
            language, _, how = token.info.strip().partition(" ")
            yield Block(token.map[0] + (token.type == "fence"), language, how.strip(), token.content)
