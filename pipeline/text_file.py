"""Reads a text file that an option names, and says what is wrong with its path if it can not be read."""

from difflib import get_close_matches
from pathlib import Path

from pipeline.errors import PipelineError


class UnreadableFile(PipelineError):
    """A file can not be read as text.

    Attributes:
        path: the file.
    """

    exit_code = 2

    def __init__(self, option: str, path: Path, cause: str, remedy: str) -> None:
        self.path = path
        super().__init__(f"'{option}' must name a text file that can be read; got {path}: {cause}", remedy)


def read_text_file(option: str, path: Path) -> str:
    """The text of a file.

    Args:
        option: the option or argument that names it, for the error.
        path: the file; UTF-8.

    Raises:
        UnreadableFile: it is missing, no file, may not be read or is no UTF-8.
    """
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError as exc:
        raise UnreadableFile(option, path, "there is no such file", _remedy_of_missing(path)) from exc
    except OSError as exc:
        cause = exc.strerror or str(exc)
        raise UnreadableFile(option, path, cause, f"see what it is and who may read it: ls -ld {path}") from exc
    except UnicodeDecodeError as exc:
        byte = f"byte {exc.start} is no UTF-8"
        raise UnreadableFile(option, path, byte, "save the file as UTF-8, or name another one") from exc


def _remedy_of_missing(path: Path) -> str:
    folder = path.parent
    if not folder.is_dir():
        return f"correct the path: there is no folder {folder.absolute()}"
    alike = get_close_matches(path.name, [one.name for one in folder.iterdir()], cutoff=0.5)
    found = f"; it has {', '.join(alike)}" if alike else ""
    return f"correct the path: the folder is {folder.absolute()}{found}"
