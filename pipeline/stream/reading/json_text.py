"""JSON text of a parsed value, written again without blanks, as Spark writes it: by Jackson 2.18 and later to UTF-8.

Numbers with a fraction or an exponent are doubles, written as Java's `Double.toString` does since Java 19.
"""

import json
import math
import re
from decimal import Decimal
from typing import Any, Final

# Jackson writes the two halves of a character beyond U+FFFF as two escapes.
_ESCAPED: Final = re.compile('[\x00-\x1f"\\\\\ud800-\udfff\U00010000-\U0010ffff]')
_SHORT: Final = {"\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r", '"': '\\"', "\\": "\\\\"}
_MOST_PLAIN: Final = 1e7
_LEAST_PLAIN: Final = 1e-3


class UnknownText(ValueError):
    """Nobody knows here how Spark writes a value."""


JsonObject = tuple[tuple[str, Any], ...]
"""A JSON object as name and value of each member, in their order, also those of one name.

`object_pairs_hook=tuple` makes it, without a call of Python code for each object.
"""


def json_text(value: Any) -> str:
    """The text of a value of `JsonObject`, list, str, int, float, bool and None.

    Raises:
        UnknownText: A float is infinite.
    """
    if isinstance(value, tuple):
        return "{" + ",".join(f"{_quoted(name)}:{json_text(member)}" for name, member in value) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(json_text, value)) + "]"
    if isinstance(value, str):
        return _quoted(value)
    return _double(value) if isinstance(value, float) else json.dumps(value)


def _quoted(text: str) -> str:
    return '"' + _ESCAPED.sub(_escape, text) + '"'


def _escape(found: re.Match[str]) -> str:
    character = found[0]
    units = character.encode("utf-16-be", "surrogatepass").hex().upper()
    return _SHORT.get(character) or "".join(f"\\u{units[start : start + 4]}" for start in range(0, len(units), 4))


def has_a_name_twice(value: Any) -> bool:
    """Whether an object in a value has two members of one name."""
    if isinstance(value, tuple):
        members = dict(value)
        return len(members) < len(value) or any(map(has_a_name_twice, members.values()))
    return isinstance(value, list) and any(map(has_a_name_twice, value))


def _double(value: float) -> str:
    """Java and `repr` write the fewest digits that give the same double; but Java at least two, the nearest ones."""
    if not math.isfinite(value):
        raise UnknownText
    if not value:
        return "-0.0" if math.copysign(1, value) < 0 else "0.0"
    sign, size = "-" if value < 0 else "", abs(value)
    text = f"{size:.1e}"
    if float(text) != size:
        text = f"{Decimal(repr(size)):e}"
    mantissa, _, exponent = text.partition("e")
    digits, power = mantissa.replace(".", "").rstrip("0"), int(exponent)
    if not _LEAST_PLAIN <= size < _MOST_PLAIN:
        return f"{sign}{digits[0]}.{digits[1:] or '0'}E{power}"
    if power < 0:
        return f"{sign}0.{'0' * (-power - 1)}{digits}"
    return f"{sign}{digits[: power + 1].ljust(power + 1, '0')}.{digits[power + 1 :] or '0'}"
