"""Rows and documents for programs: JSON, YAML and CSV that a terminal and a spreadsheet only show.

Names of users and client-ids come from clients. A document may be printed on a terminal, and opened by a spreadsheet.
So what a terminal would not show as it is, and what the encoding of the output cannot say, is escaped. JSON and YAML
have escapes of their own: they are read back as they were. CSV has none: its escapes are those of the tables, and a
text that a spreadsheet would run as a formula has a quote before it.
"""

import csv
import io
import json
import re
from collections.abc import Callable, Iterable
from typing import Any, Final

from pipeline.errors import is_shown, printable

UTF_8: Final = "utf-8"

# The signs that begin a formula, also in their full width. A semicolon separates cells in many languages.
_FORMULA: Final = re.compile("(^|;)(?=[=+\\-@\uff1d\uff0b\uff0d\uff20])")


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


def csv_text(rows: Iterable[Iterable[Any]], encoding: str = UTF_8) -> str:
    r"""Rows as CSV. A list or a mapping is written as JSON, None as nothing, a number as it is.

    >>> print(csv_text([["user", "used"], ["=1+1", -0.5], ["a\x1b[2J", None]]), end="")
    user,used
    '=1+1,-0.5
    a\x1b[2J,
    """
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([_csv_cell(value, encoding) for value in row] for row in rows)
    return text.getvalue()


def _csv_cell(value: Any, encoding: str) -> Any:
    if value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
        return value
    if isinstance(value, bool | dict | list | tuple):
        value = json.dumps(value, default=str, ensure_ascii=False)
    return _FORMULA.sub(r"\1'", printable(str(value), encoding))


def _escaped(text: str, encoding: str, escape: Callable[[str], str]) -> str:
    """A document in which every sign that is not shown is escaped; line ends stay, as no value has any."""
    if is_shown(text.replace("\n", ""), encoding):
        return text
    return "".join(sign if sign == "\n" or is_shown(sign, encoding) else escape(sign) for sign in text)


def _json_escape(sign: str) -> str:
    units = sign.encode("utf-16-be", "surrogatepass").hex()
    return "".join(rf"\u{units[start : start + 4]}" for start in range(0, len(units), 4))
