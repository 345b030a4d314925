"""A reader of the pages, who types their commands into a shell, and compares or renews what they show."""

import os
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from tests.pages.shell import Answer, Shell, reader_environment
from tests.pages.transcript import Player

RENEW: Final = "RENEW_PAGES"
"""If this environment variable is 1, what was printed is written into the page."""


def without_waiting(_event: str) -> None:
    """For what is played without a demo: the events of a page happen there."""


def play(player: Player, page: Path, kind: str) -> list[str]:
    """Play the blocks of one kind of a page.

    Returns:
        The differences; none if the page was renewed.
    """
    played = player.play(page.read_text(encoding="utf-8"), kind)
    if os.environ.get(RENEW) != "1":
        return played.differences
    page.write_text("".join(f"{line}\n" for line in played.lines), encoding="utf-8")
    return []


class Reader:
    """Reads pages and types their commands. Use it in a `with` block, which ends its shell.

    Args:
        folder: where it is.
        addresses: what stands in the pages for an address, and that address here.
        happens: called with each event of a page.
        settings: environment variables that were set before.
    """

    def __init__(
        self,
        folder: Path,
        addresses: Mapping[str, str] | None = None,
        happens: Callable[[str], None] = without_waiting,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self._shell = Shell(folder, {**reader_environment(folder), **(settings or {})})
        names = {"/home/dana/kquota": str(folder), "ops1": socket.gethostname(), **(addresses or {})}
        self._player = Player(self._shell.run, names, happens)

    def run(self, command: str) -> Answer:
        """Type one command."""
        return self._shell.run(command)

    def play(self, page: Path, kind: str) -> list[str]:
        """Type the commands of a page, see `play`."""
        return play(self._player, page, kind)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._shell.__exit__(kind, error, trace)
