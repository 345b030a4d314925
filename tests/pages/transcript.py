"""Commands of a page and what they print: read, typed into one shell, compared, written back.

A line that begins with `$ ` is a command; after a backslash at its end it goes on in the next line. A block of `sh`
has nothing but commands, and each must end with 0. A line `…` stands for lines that are left out. What one command
sets, the next one finds, as for a reader at a terminal.
"""

import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from signal import SIGKILL
from threading import Timer
from types import MappingProxyType, TracebackType
from typing import Final, Self

from tests.pages.blocks import ROOT, Block, blocks_of
from tests.waiting import PATIENCE_SECONDS

_END: Final = "\x1e"
"""Comes after the output of each command, before its exit code."""


@dataclass(frozen=True, slots=True)
class Answer:
    text: str
    exit_code: int


def reader_environment(folder: Path) -> dict[str, str]:
    """The environment of a reader of the pages: `kquota` on PATH, and no setting of its own.

    Args:
        folder: gets `.venv/bin/kquota`, which runs this checkout.
    """
    kquota = folder / ".venv" / "bin" / "kquota"
    kquota.parent.mkdir(parents=True, exist_ok=True)
    # What pip makes of the console script, but of this checkout: a kquota that is found on PATH prints its hints so.
    kquota.write_text(
        f'#!{sys.executable}\nfrom pipeline.cli.main import main\n\nif __name__ == "__main__":\n    main()\n'
    )
    kquota.chmod(0o755)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("KQUOTA_", "LC_"))}
    # So wide that no table depends on how long the names of this machine and folder are; unbuffered, so that standard
    # output and standard error come in the order of a terminal.
    terminal = {"COLUMNS": "300", "TERM": "dumb", "TZ": "UTC", "LANG": "C.UTF-8", "PYTHONUNBUFFERED": "1"}
    search_path = f"{kquota.parent}{os.pathsep}{os.environ['PATH']}"
    return {**kept, **terminal, "LOGNAME": "dana", "PATH": search_path, "PYTHONPATH": str(ROOT)}


class Shell:
    """A POSIX shell in a folder. Use it in a `with` block, which ends it and whatever it has started."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            ["/bin/sh"],
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            start_new_session=True,
        )

    def run(self, command: str) -> Answer:
        """Run a command, which may have several lines; its standard input is empty.

        Raises:
            AssertionError: it did not end, or it ended the shell, as a syntax error does.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        # `$?` must be that of the command also for the command after it.
        ends = f"ended=$?; printf '\\n{_END}%d\\n' $ended; (exit $ended)"
        self._process.stdin.write(f"{{ {command}\n}} </dev/null\n{ends}\n")
        self._process.stdin.flush()
        watchdog = Timer(PATIENCE_SECONDS, self._kill)
        watchdog.start()
        lines: list[str] = []
        try:
            for line in self._process.stdout:
                if line.startswith(_END):
                    return Answer("".join(lines).removesuffix("\n"), int(line.removeprefix(_END)))
                lines.append(line)
        finally:
            watchdog.cancel()
        message = f"the shell has ended in the command: {command}\n{''.join(lines)}"
        raise AssertionError(message)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._kill()
        self._process.communicate()

    def _kill(self) -> None:
        os.killpg(self._process.pid, SIGKILL)


_COMMAND: Final = re.compile(r"^\$ ((?:.*\\\n)*.*)\n", re.MULTILINE)
_SCRIPT_COMMAND: Final = re.compile(r"^(?!#|$)((?:.*\\\n)*.*)\n", re.MULTILINE)
_EVENT: Final = re.compile(r"^<!-- happens: (.*?) -->$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Exchange:
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


def play(
    page: Path,
    kind: str,
    run: Callable[[str], Answer],
    names: Mapping[str, str] = MappingProxyType({}),
    happens: Callable[[str], None] = lambda _event: None,
) -> list[str]:
    """Play the blocks of one kind of a page, `pure` or `demo`, and wait for the events between them.

    Args:
        page: If the environment variable RENEW_PAGES is 1, what was printed is written into it.
        kind: Of the blocks.
        run: Runs one command.
        names: What is written in the page, and what stands for it here: addresses, folders.
        happens: Called with the text of each comment `<!-- happens: … -->` of the page.

    Returns:
        A text for each command whose answer is not the one that the page shows; none if it was renewed.

    Raises:
        AssertionError: A command did not end.
    """
    text = page.read_text(encoding="utf-8")
    lines = text.splitlines()
    blocks = [block for block in blocks_of(text) if block.is_shell and block.how.split()[0] == kind]
    steps: list[tuple[int, Block | str]] = [(block.first_line, block) for block in blocks]
    steps += events_of(text) if blocks else ()
    renewed, differences = [], []
    for line, step in sorted(steps, key=lambda step: step[0]):
        if isinstance(step, str):
            happens(step)
            continue
        printed: list[str] = []
        for exchange in exchanges(step):
            shown, difference = _played(exchange, step, run, names)
            printed += shown
            differences += [f"line {line + 1}: $ {exchange.command}\n{difference}"] if difference else []
        indent = " " * max(lines[line - 1].find("```"), 0)
        instead = [f"{indent}{shown}".rstrip() for shown in printed]
        if step.language == "console":
            renewed.append((slice(line, line + len(step.text.splitlines())), instead))
    if os.environ.get("RENEW_PAGES") != "1":
        return differences
    for place, instead in reversed(renewed):
        lines[place] = instead
    page.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return []


def _played(
    exchange: Exchange, block: Block, run: Callable[[str], Answer], names: Mapping[str, str]
) -> tuple[list[str], str]:
    """A command and what it printed, as lines of the page; and how that differs from what the page shows."""
    command = exchange.command
    for name, here in names.items():
        command = _with(name, here, command)
    answer = run(command)
    text = answer.text
    for name, here in names.items():
        text = _with(here, name, text)
    if block.language == "sh":
        return [], f"ended with {answer.exit_code}:\n{text}" if answer.exit_code else ""
    select = excerpt if block.how == "run" else as_shown
    printed = select(exchange.answer, [line.rstrip() for line in text.splitlines()])
    form = str if "exact" in block.how else shape
    is_same = [*map(form, exchange.answer)] == [*map(form, printed)]
    told = "" if is_same else "\n".join(["the page shows:", *exchange.answer, "was printed:", *printed, _FIX])
    return [*f"$ {exchange.command}".splitlines(), *printed], told


def _with(name: str, instead: str, text: str) -> str:
    """A text with another word or path in place of one, where it is not a part of a longer word."""
    return re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", lambda _: instead, text)


_FIX: Final = "Fix: if what was printed is right, make pages RENEW=1 writes it into the page"
LEFT_OUT: Final = "…"
"""A line of a page that stands for lines that are left out."""
# What differs from run to run: ids, amounts, times, bars, and the widths of table columns because of them.
_CHANGING: Final = (
    (r", (capped|debt) [0-9.]+ \w+", ""),  # only where a throttle time is cut, or where a rate is below its bound
    (r"[>≤] T", "~ T"),
    (r"\b[0-9a-f]{8,}\b", "ID"),
    (r"[0-9]+([.,:][0-9]+)*", "N"),
    (r"[█▏▎▍▌▋▊▉│─━]+", "|"),
    (r"\s+", " "),
)


def shape(line: str) -> str:
    """A line without what differs from run to run."""
    for pattern, sign in _CHANGING:
        line = re.sub(pattern, sign, line)
    return line.strip()


def as_shown(shown: Sequence[str], printed: Sequence[str]) -> list[str]:
    """What was printed; where the page leaves lines out, as many of them left out as leaves the others."""
    start = list(shown).index(LEFT_OUT) if LEFT_OUT in shown else len(shown)
    end = len(shown) - start - 1
    if end < 0 or len(printed) <= start + end:
        return list(printed)
    return [*printed[:start], LEFT_OUT, *printed[len(printed) - end :]]


def excerpt(shown: Sequence[str], printed: Sequence[str]) -> list[str]:
    """For each line of the page the first one of its shape that was printed, each used once."""
    rest = list(printed)
    found = []
    for line in shown:
        like = next((other for other in rest if shape(other) == shape(line)), None)
        if like is not None:
            rest.remove(like)
        if like is not None or line == LEFT_OUT:
            found.append(like or line)
    return found


class Reader(Shell):
    """Reads pages and types their commands. Use it in a `with` block, which ends its shell.

    Of the pages, `addresses` are other ones here; `happens` is called with each event.
    """

    def __init__(
        self,
        folder: Path,
        addresses: Mapping[str, str] = MappingProxyType({}),
        happens: Callable[[str], None] = lambda _event: None,
        settings: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        super().__init__(folder, {**reader_environment(folder), **settings})
        self._names = {"/home/dana/kquota": str(folder), "ops1": socket.gethostname(), **addresses}
        self._happens = happens

    def play(self, page: Path, kind: str) -> list[str]:
        """Type the commands of a page, see `play`."""
        return play(page, kind, self.run, self._names, self._happens)
