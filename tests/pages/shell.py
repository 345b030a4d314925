"""One shell for the commands of a page: what one of them sets, the next one finds, as for a reader at a terminal."""

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from signal import SIGKILL
from threading import Timer
from types import TracebackType
from typing import Final, Self

from tests.pages.blocks import ROOT
from tests.waiting import PATIENCE_SECONDS

_END: Final = "\x1e"
"""Comes after the output of each command, before its exit code."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a command printed, standard error included, and its exit code."""

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
