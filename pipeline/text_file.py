"""Text files that an option names, and what is wrong with a path that cannot be read, or not be written."""

import os
from difflib import get_close_matches
from pathlib import Path
from shlex import quote

from pipeline.errors import UsageError


class UnreadableFile(UsageError):
    """A file cannot be read as text."""

    def __init__(self, option: str, path: Path, cause: str, fix: str) -> None:
        self.path = path
        super().__init__(f"{path} of {option} cannot be read: {cause}", fix)


def _unwritable(option: str, path: Path, cause: str, fix: str) -> UsageError:
    return UsageError(f"{path} of {option} cannot be written: {cause}", fix)


def refuse_unwritable(option: str, path: Path) -> None:
    """Refuse (`UsageError`) a path before work is done whose result could not be written to it. Writes nothing."""
    folder = path.parent
    if not folder.is_dir():
        raise _unwritable(option, path, f"there is no folder {folder}", f"mkdir -p {quote(str(folder))}")
    if path.is_dir():
        example = quote(str(path / "report.html"))
        raise _unwritable(option, path, "it is a folder", f"name a file in it: {option} {example}")
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise _unwritable(option, path, "permission denied", f"see who may write: ls -ld {quote(str(folder))}")


def read_text_file(option: str, path: Path) -> str:
    """The text of a UTF-8 file; `UnreadableFile` if it is missing, not a file, may not be read or is not UTF-8."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError as exc:
        raise UnreadableFile(option, path, "there is no such file", _remedy_of_missing(path)) from exc
    except OSError as exc:
        fix = f"see what it is and who may read it: ls -ld {quote(str(path))}"
        raise UnreadableFile(option, path, exc.strerror or str(exc), fix) from exc
    except UnicodeDecodeError as exc:
        byte = f"byte {exc.start} is not UTF-8"
        raise UnreadableFile(option, path, byte, "save the file as UTF-8, or name another one") from exc


def _remedy_of_missing(path: Path) -> str:
    folder = path.parent
    if not folder.is_dir():
        return f"correct the path: there is no folder {folder.absolute()}"
    alike = get_close_matches(path.name, [one.name for one in folder.iterdir()], cutoff=0.5)
    found = f"; it has {', '.join(alike)}" if alike else ""
    return f"correct the path: the folder is {folder.absolute()}{found}"
