"""Runs the commands of a console transcript in a document and compares their answers.

A block that starts with ```console has commands (`$ …`) and what they print, including standard error. A comment
`<!-- happens: … -->` stands for an event at that place. The player calls a function of the test for it.
"""

import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_BLOCK: Final = re.compile(r"^```console\n(.*?)^```\n", re.DOTALL | re.MULTILINE)
_EVENT: Final = re.compile(r"^<!-- happens: (.*?) -->$", re.MULTILINE)
# What differs from run to run: times, ids and amounts, and the widths of table columns because of them.
_CHANGING: Final = (
    (r"\b[0-9a-f]{8,}\b", "ID"),
    (r"[0-9]+([.,:][0-9]+)*", "N"),
    (r"[█▏▎▍▌▋▊▉│─━]+", "|"),
    (r"\s+", " "),
)


@dataclass(frozen=True)
class Player:
    """Plays transcripts in a folder.

    Attributes:
        folder: where commands run.
        environment: the environment variables of the commands; `kquota` is added to PATH.
        happens: called with the text of each event.
    """

    folder: Path
    environment: Mapping[str, str]
    happens: Callable[[str], None]

    def play(self, document: str) -> str:
        """Run the document. Returns it with what the commands really print."""
        kquota = self.folder / "bin" / "kquota"
        kquota.parent.mkdir(exist_ok=True)
        kquota.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m pipeline.cli.main "$@"\n')
        kquota.chmod(0o755)
        played, position = [], 0
        for place in sorted([*_BLOCK.finditer(document), *_EVENT.finditer(document)], key=lambda found: found.start()):
            played.append(document[position : place.start()])
            position = place.end()
            if place.group().startswith("<!--"):
                self.happens(place[1])
                played.append(place.group())
            else:
                commands = re.findall(r"^\$ (.*)$", place[1], re.MULTILINE)
                answers = "".join(f"$ {command}\n{self._answer(command)}" for command in commands)
                played.append(f"```console\n{answers}```\n")
        return "".join([*played, document[position:]])

    def _answer(self, command: str) -> str:
        environment = {**self.environment, "PATH": f"{self.folder / 'bin'}:{self.environment['PATH']}"}
        done = subprocess.run(
            ["/bin/bash", "-c", command],
            cwd=self.folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=120,
            check=False,
        )
        return "".join(f"{line.rstrip()}\n" for line in done.stdout.splitlines())


def shape(document: str) -> list[str]:
    """The lines of a document, without what differs from run to run."""
    lines = []
    for line in document.splitlines():
        for pattern, sign in _CHANGING:
            line = re.sub(pattern, sign, line)  # noqa: PLW2901
        if line.strip():
            lines.append(line.strip())
    return lines
