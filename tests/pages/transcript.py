r"""Commands of a page's blocks and what they print: read from the page, played, compared, written back.

A line that begins with `$ ` is a command; it goes on in the next line after a `\` at its end. A block of `sh` has
nothing but commands, and each must end with 0. A line `…` stands for lines that are left out.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from tests.pages.blocks import Block, blocks_of
from tests.pages.shape import WAYS
from tests.pages.shell import Answer

_COMMAND: Final = re.compile(r"^\$ ((?:.*\\\n)*.*)\n", re.MULTILINE)
_SCRIPT_COMMAND: Final = re.compile(r"^(?!#|$)((?:.*\\\n)*.*)\n", re.MULTILINE)
_EVENT: Final = re.compile(r"^<!-- happens: (.*?) -->$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Exchange:
    """A command and the lines that it prints."""

    command: str
    answer: tuple[str, ...]


def exchanges(block: Block) -> Iterator[Exchange]:
    """The commands of a block. Those of `sh` have no answer."""
    if block.language == "sh":
        yield from (Exchange(found[1], ()) for found in _SCRIPT_COMMAND.finditer(block.text))
        return
    commands = list(_COMMAND.finditer(block.text))
    ends = [*(found.start() for found in commands[1:]), len(block.text)]
    for found, end in zip(commands, ends, strict=True):
        yield Exchange(found[1], tuple(block.text[found.end() : end].splitlines()))


def events_of(page: str) -> Iterator[tuple[int, str]]:
    """The events that a page waits for, each with the number of its line; the first line is 0."""
    for found in _EVENT.finditer(page):
        yield page.count("\n", 0, found.start()), found[1]


@dataclass(frozen=True, slots=True)
class Played:
    """A page, or a part of one, after it was played.

    Attributes:
        lines: it, with what was really printed in place of what it showed.
        differences: a text for each command whose answer is not the one it showed.
    """

    lines: list[str]
    differences: list[str]


@dataclass(frozen=True)
class Player:
    """Plays the blocks of a page in their order.

    Attributes:
        run: runs one command.
        names: what is written in the page, and what stands for it here: addresses, folders.
        happens: called with the text of each comment `<!-- happens: … -->` of the page.
    """

    run: Callable[[str], Answer]
    names: Mapping[str, str]
    happens: Callable[[str], None]

    def play(self, page: str, kind: str) -> Played:
        """Play the blocks of one kind, `pure` or `demo`, and wait for the events between them.

        Raises:
            AssertionError: a command did not end.
        """
        lines = page.splitlines()
        blocks = [block for block in blocks_of(page) if block.is_shell and block.how.split()[0] == kind]
        steps: list[tuple[int, Block | str]] = [(block.first_line, block) for block in blocks]
        steps += events_of(page) if blocks else ()
        renewed, differences = [], []
        for line, step in sorted(steps, key=lambda step: step[0]):
            if isinstance(step, str):
                self.happens(step)
                continue
            played = self._play_block(step)
            indent = " " * max(lines[line - 1].find("```"), 0)
            instead = [f"{indent}{shown}".rstrip() for shown in played.lines]
            renewed.append((slice(line, line + len(step.text.splitlines())), instead))
            differences += [f"line {line + 1}: {difference}" for difference in played.differences]
        for place, instead in reversed(renewed):
            lines[place] = instead
        return Played(lines, differences)

    def _play_block(self, block: Block) -> Played:
        played = [self._play_exchange(exchange, block) for exchange in exchanges(block)]
        differences = [difference for each in played for difference in each.differences]
        if block.language == "sh":
            return Played(block.text.splitlines(), differences)
        return Played([line for each in played for line in each.lines], differences)

    def _play_exchange(self, exchange: Exchange, block: Block) -> Played:
        command, told = exchange.command, f"$ {exchange.command}"
        for name, here in self.names.items():
            command = _with(name, here, command)
        answer = self.run(command)
        text = answer.text
        for name, here in self.names.items():
            text = _with(here, name, text)
        if block.language == "sh":
            failed = [f"{told}\nended with {answer.exit_code}:\n{text}"] if answer.exit_code else []
            return Played([], failed)
        way = WAYS[block.how]
        printed = way.select(exchange.answer, [line.rstrip() for line in text.splitlines()])
        difference = way.compare(exchange.answer, printed)
        return Played([*told.splitlines(), *printed], [f"{told}\n{difference}"] if difference else [])


def _with(name: str, instead: str, text: str) -> str:
    """A text with another word or path in place of one, where it is not a part of a longer word."""
    return re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", lambda _: instead, text)
