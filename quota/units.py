"""Bounds as people write and read them: `1MB/s`, `512KiB`, `50%`, and exact numbers; and ages.

kB, MB and GB are 1000, 1000² and 1000³ bytes; KiB, MiB and GiB are 1024, 1024² and 1024³. Letters count: `KB` and `mb`
are refused, because one reader takes them for thousands of bytes, another for 1024, a third for bits. A bound without a
unit is read as Kafka's tools read it.
"""

import json
import math
import re
from decimal import Context, Decimal, DecimalException, Inexact, InvalidOperation
from typing import Final

from quota.entity import QUOTA_TYPES, REQUEST
from quota.errors import InvalidBound
from quota.snapshot import bound_mistake

NUMBER: Final = r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
"""A decimal number, as Java's `Double.parseDouble` takes it: no underscores, no digits of other scripts."""

UNITS: Final = {
    "B": 1,
    "kB": 1000,
    "MB": 1000**2,
    "GB": 1000**3,
    "KiB": 1024,
    "MiB": 1024**2,
    "GiB": 1024**3,
}
"""Unit of a byte rate -> bytes."""

# What else Double.parseDouble takes: a type suffix, hexadecimal, and NaN and Infinity in this spelling only.
_DECIMAL: Final = re.compile(rf"({NUMBER})[fFdD]?")
_HEXADECIMAL: Final = re.compile(r"([+-]?0[xX](?:[0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)[pP][+-]?[0-9]+)[fFdD]?")
_WORD: Final = re.compile(r"[+-]?(?:NaN|Infinity)")

_WITH_UNIT: Final = re.compile(rf"({NUMBER})\s*([A-Za-z]+|%)(/s)?")
_PERCENTAGE: Final = QUOTA_TYPES[REQUEST]
_SHOWN_UNITS: Final = ("GB", "MB", "kB", "B")
_EXACT: Final = Context(prec=60, traps=[Inexact, InvalidOperation])
_ONE_OF_THE_NEXT: Final = 10_000  # tenths of a unit that are one of the next larger unit
_LARGEST: Final = 2.0**63
_SHOWN_LENGTH: Final = 60

_MINUTE_MS: Final = 60_000
_HOUR_MS: Final = 60 * _MINUTE_MS
_DAY_MS: Final = 24 * _HOUR_MS


def parse_double(text: str) -> float:
    """A number as Java's `Double.parseDouble` reads it.

    Raises:
        ValueError: Java would refuse it.
    """
    text = text.strip()
    if found := _DECIMAL.fullmatch(text):
        return float(found[1])
    if found := _HEXADECIMAL.fullmatch(text):
        return _from_hex(found[1])
    if _WORD.fullmatch(text):
        return float(text)
    message = f"'number' must be one Java can read; got {text}"
    raise ValueError(message)


def parse_bound(quota_type: str, given: object) -> float:
    """The bound of a quota, as somebody typed it.

    Args:
        quota_type: one of `QUOTA_TYPES`.
        given: a number; or a text with a number, for byte rates also with a unit of `UNITS` and `/s` (`1.5 MB/s`), for
            `request_percentage` also with `%`. A byte rate with a unit must be whole bytes and exact in a double.

    Returns:
        Bytes per second, or percent of one thread: finite and above 0.

    Raises:
        InvalidBound: it is no number, the unit is not one of this quota type, or no bound can have this value.

    >>> parse_bound("producer_byte_rate", "1.5 MB/s"), parse_bound("request_percentage", "50%")
    (1500000.0, 50.0)
    """
    if isinstance(given, str):
        value = _parse_text(quota_type, given.strip())
        shown = given.strip()
    elif isinstance(given, int | float) and not isinstance(given, bool):
        try:
            value = float(given)
        except OverflowError:
            value = math.inf
        shown = str(given)
    else:
        raise _unreadable(quota_type, given)
    refusal = bound_mistake(quota_type, value)
    if refusal is not None:
        raise InvalidBound(quota_type, given, f"{refusal}; got {_shortened(shown)}")
    return value


def exact_text(value: float) -> str:
    """A number without an exponent and without a trailing `.0`: 1e7 -> "10000000"."""
    return format(Decimal(repr(value)), "f").removesuffix(".0")


def rate_unit(quota_type: str, value: float) -> tuple[str, float]:
    """The unit in which a rate is shown, and what one of it is: ("MB/s", 1e6).

    It is the largest that is not larger than the rate, or the next one if the rate, with one decimal, would be 1000.0.
    Percentages have one unit only.
    """
    if quota_type == _PERCENTAGE:
        return "%", 1.0
    fits = (name for name in _SHOWN_UNITS if _tenths(value / UNITS[name] * 1000) >= _ONE_OF_THE_NEXT)
    name = next(fits, "B")
    return f"{name}/s", float(UNITS[name])


def rate_text(quota_type: str, value: float) -> str:
    """A rate in one unit with one decimal, rounded half up: "1.0 MB/s", "62.5 %"."""
    name, size = rate_unit(quota_type, value)
    whole, tenth = divmod(_tenths(value / size), 10)
    return f"{whole}.{tenth} {name}"


def bound_text(quota_type: str, value: float) -> str:
    """A bound exactly, with a readable size beside a large one: "1048576 (1.0 MB/s)", "999 B/s", "50 %"."""
    name, size = rate_unit(quota_type, value)
    return f"{exact_text(value)} {name}" if size == 1.0 else f"{exact_text(value)} ({rate_text(quota_type, value)})"


def seconds_text(seconds: float) -> str:
    """A time with one decimal and the digits in groups, rounded half up: "1,234.5 s"."""
    return f"{_tenths(seconds) / 10:,.1f} s"


def age_text(age_ms: float) -> str:
    """How long ago something was, or how long it took, in one or two units, cut off: "4 s", "2 min 5 s", "3 h", "2 d".

    A negative age, which two clocks can make, is "0 s".
    """
    rest_ms = max(int(age_ms), 0)
    if rest_ms < _MINUTE_MS:
        return f"{rest_ms // 1000} s"
    units = ((_DAY_MS, "d"), (_HOUR_MS, "h"), (_MINUTE_MS, "min"), (1000, "s"))
    first = next(place for place, (size_ms, _) in enumerate(units) if rest_ms >= size_ms)
    parts = []
    for size_ms, name in units[first : first + 2]:
        count, rest_ms = divmod(rest_ms, size_ms)
        parts += [f"{count} {name}"] if count else []
    return " ".join(parts)


def _parse_text(quota_type: str, text: str) -> float:
    try:
        return parse_double(text)
    except ValueError:
        found = _WITH_UNIT.fullmatch(text)
    if found is None:
        raise _unreadable(quota_type, text)
    number, unit, per_second = found.groups()
    if quota_type == _PERCENTAGE:
        if unit != "%" or per_second:
            raise InvalidBound(quota_type, text, f"'{quota_type}' must be a number or a percentage, 50%; got {text}")
        return float(number)
    if unit not in UNITS:
        known = "B, kB, MB or GB (thousands), or KiB, MiB or GiB (of 1024)"
        raise InvalidBound(quota_type, text, f"'{quota_type}' must have the unit {known}; got {_shortened(text)}")
    return _whole_bytes(quota_type, text, number, UNITS[unit])


def _whole_bytes(quota_type: str, text: str, number: str, size: int) -> float:
    """`number` times `size`, computed without rounding."""
    nearest = float(number) * size
    if not 0 < nearest <= _LARGEST:  # refused in any case, and perhaps too long to be computed with
        return nearest
    try:
        exact = _EXACT.multiply(_EXACT.create_decimal(number), Decimal(size))
        is_whole = exact == exact.to_integral_value()
    except DecimalException:
        exact, is_whole = Decimal(nearest), False
    if not is_whole:
        shown = _shortened(text)
        raise InvalidBound(quota_type, text, f"'{quota_type}' must be whole bytes per second; got {shown}")
    value = float(exact)
    if value != exact:
        message = f"'{quota_type}' must be exact in a double; got {_shortened(text)}, nearest is {exact_text(value)}"
        raise InvalidBound(quota_type, text, message)
    return value


def _unreadable(quota_type: str, given: object) -> InvalidBound:
    shown = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False, default=str)
    example = "50 or 50%" if quota_type == _PERCENTAGE else "1048576, 1MB/s or 1MiB/s"
    text = f"Cannot parse quota configuration value for {quota_type}: {_shortened(shown)}; write it like {example}"
    return InvalidBound(quota_type, given, text)


def _shortened(text: str) -> str:
    return text if len(text) <= _SHOWN_LENGTH else f"{text[: _SHOWN_LENGTH - 1]}…"


def _from_hex(text: str) -> float:
    try:
        return float.fromhex(text)
    except OverflowError:  # Java makes it infinite
        return -math.inf if text.startswith("-") else math.inf


def _tenths(value: float) -> int:
    """Ten times a number, rounded half up."""
    return math.floor(value * 10 + 0.5)
