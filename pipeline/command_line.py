"""Commands of kquota as a reader can paste them: every hint, fix and example that kquota prints is made here.

A command is printed by the name or path that starts this kquota in the reader's shell and folder. In front of it stand
the environment variables with which it finds what this process works on, where the shell does not have them already.
"""

import os
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Final, Literal

from pipeline.errors import PipelineError

CONFIG: Final = "KQUOTA_CONFIG"
COMMAND_CONFIG: Final = "KQUOTA_COMMAND_CONFIG"
TABLES_ROOT: Final = "KQUOTA_TABLES__ROOT"
JOB: Final = "KQUOTA_JOB"
RUN_DIR: Final = "KQUOTA_RUN_DIR"
About = Literal["tables", "cluster", "job", "program"]
"""What a command needs to find: the tables, the cluster, both of a job and its name, or nothing."""

DISTRIBUTION: Final = "kafka-quota-pipeline"
"""The name under which pip knows kquota."""

_NAME: Final = "kquota"
# Variable to the option that means the same and wins over it.
_VARIABLES: Final[Mapping[About, Mapping[str, str]]] = {
    "tables": {CONFIG: "--config", TABLES_ROOT: "--tables"},
    "cluster": {CONFIG: "--config", COMMAND_CONFIG: "--command-config"},
    "job": {
        CONFIG: "--config",
        COMMAND_CONFIG: "--command-config",
        TABLES_ROOT: "--tables",
        JOB: "--job",
        RUN_DIR: "--run-dir",
    },
    "program": {},
}

_carried: dict[str, str] = {}


def carry(variable: str, value: str) -> None:
    """Let later commands carry an environment variable, where a shell does not have this very value already."""
    _carried[variable] = value


def carried(variable: str) -> str | None:
    """What `carry` has for a variable; None if nothing."""
    return _carried.get(variable)


def carry_nothing() -> None:
    """Forget what `carry` was given: another command begins in this process."""
    _carried.clear()


def command_text(*arguments: str, about: About = "tables") -> str:
    """A command for a POSIX shell in this process's working folder.

    Such as `KQUOTA_CONFIG=demo/kquota.toml .venv/bin/kquota throttles explain 79cc1637`.
    """
    settings = [
        f"{variable}={shlex.quote(_carried[variable])}"
        for variable, option in _VARIABLES[about].items()
        if variable in _carried and os.environ.get(variable) != _carried[variable] and option not in arguments
    ]
    program = _program(sys.argv[0], sys.executable, os.environ.get("PATH"), _folder())
    return " ".join([*settings, *map(shlex.quote, (*program, *arguments))])


def shell_lines(commands: Sequence[str]) -> list[str]:
    """Short commands, after the line that lets any shell in this folder find kquota and what this process works on.

    * `commands`: Of `command_text`, about "program".
    """
    full, bare = command_text(), command_text(about="program")
    variables, program = full.removesuffix(bare).strip(), Path(bare)
    if program.name == _NAME and program.parent != Path():
        folder = program.parent if program.is_absolute() else Path("$PWD") / program.parent
        variables += f' PATH="{folder}:$PATH"'
        commands = [f"{_NAME}{one.removeprefix(bare)}" for one in commands]
    return [f"export {variables.strip()}", *commands] if variables else list(commands)


def extra_text(extra: str) -> str:
    """A command that installs an extra of kquota into this Python. pip takes kquota itself as it is installed."""
    return pip_text("install", f"{DISTRIBUTION}[{extra}]")


def not_installed(library: str, extra: str) -> PipelineError:
    """The error of a command whose libraries are an extra, where only the core is installed."""
    return PipelineError(f"{library} is not installed", extra_text(extra))


def pip_text(*arguments: str) -> str:
    """A command of the pip of this Python, whatever the shell calls `pip`. As text, like `command_text`."""
    return shlex.join([str(_from_folder(Path(sys.executable), _folder())), "-m", "pip", *arguments])


def path_text(path: Path) -> str:
    """A path as the working folder sees it: relative if it lies below, else absolute. Not quoted."""
    return str(_from_folder(path, _folder()))


def _folder() -> Path:
    try:
        return Path.cwd()
    except FileNotFoundError:  # somebody has deleted it
        return Path("/")


@lru_cache(maxsize=8)  # asked for each throttle, and it looks at the disk
def _program(called_as: str, python: str, search_path: str | None, folder: Path) -> tuple[str, ...]:
    script = _own_script(Path(called_as), Path(python))
    if script is None:
        return str(_from_folder(Path(python), folder)), "-m", "pipeline.cli.main"
    found = shutil.which(_NAME, path=search_path)
    if found is not None and Path(found).samefile(script):
        return (_NAME,)
    shown = _from_folder(script, folder)
    # Without a slash a shell would look for it on PATH.
    return (f"./{shown}" if len(shown.parts) == 1 else str(shown),)


def _own_script(called_as: Path, python: Path) -> Path | None:
    """The console script of this kquota: the one that was called, else the one next to its Python."""
    neighbour = python.with_name(_NAME)
    return next((script for script in (called_as, neighbour) if script.name == _NAME and script.is_file()), None)


def _from_folder(path: Path, folder: Path) -> Path:
    # Not resolved: the link a reader knows is a better name than where it leads to.
    absolute = folder / path
    return absolute.relative_to(folder) if absolute.is_relative_to(folder) else absolute
