"""Texts that programs read and write: JSON and YAML that a terminal only shows, and text files.

Names of users and client-ids come from clients, and a document may be printed on a terminal. So what a terminal would
not show as it is, and what the encoding of the output cannot say, is escaped, by the escapes of JSON and YAML: the
names are read back as they were.
"""

import json
from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path
from shlex import quote
from typing import Any, Final

from pipeline.errors import UsageError, is_shown

UTF_8: Final = "utf-8"


def json_text(document: Any, encoding: str = UTF_8, *, indent: int | None = None, allow_nan: bool = True) -> str:
    r"""A document as JSON, without a line end after it; it is compact without an indent.

    >>> print(json_text({"user": "alice", "client_id": "é\x1b[2J\x9b"}))
    {"user":"alice","client_id":"é\u001b[2J\u009b"}
    """
    separators = (",", ":") if indent is None else None
    text = json.dumps(
        document, indent=indent, separators=separators, default=str, ensure_ascii=False, allow_nan=allow_nan
    )
    return _escaped(text, encoding, _json_escape)


def yaml_text(document: Any, encoding: str = UTF_8) -> str:
    """A document as YAML."""
    import yaml  # noqa: PLC0415 - few commands need it

    class Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]
        """Writes a text in double quotes, which alone have escapes, if it needs any."""

        def represent_str(self, text: str) -> Any:
            style = None if is_shown(text, encoding) else '"'
            return self.represent_scalar("tag:yaml.org,2002:str", text, style)

    Dumper.add_representer(str, Dumper.represent_str)
    plain = json.loads(json.dumps(document, default=str))
    text = yaml.dump(plain, Dumper=Dumper, sort_keys=False, allow_unicode=True)
    return _escaped(text, encoding, lambda sign: rf"\U{ord(sign):08x}")


def _escaped(text: str, encoding: str, escape: Callable[[str], str]) -> str:
    """A document in which every sign that is not shown is escaped; line ends stay, as no value has any."""
    if is_shown(text.replace("\n", ""), encoding):
        return text
    return "".join(sign if sign == "\n" or is_shown(sign, encoding) else escape(sign) for sign in text)


def _json_escape(sign: str) -> str:
    units = sign.encode("utf-16-be", "surrogatepass").hex()
    return "".join(rf"\u{units[start : start + 4]}" for start in range(0, len(units), 4))


class UnreadableFile(UsageError):
    """A file cannot be read as text."""

    def __init__(self, option: str, path: Path, cause: str, fix: str) -> None:
        self.path = path
        super().__init__(f"{path} of {option} cannot be read: {cause}", fix)


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
