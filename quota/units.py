"""Bounds as people write and read them (`1MB/s`, `512KiB`, `50%`), which of them are refused, and how ages are shown.

kB, MB and GB are 1000, 1000² and 1000³ bytes; KiB, MiB and GiB are 1024, 1024² and 1024³. Letters count: `KB` and `mb`
are refused, because one reader takes them for thousands of bytes, another for 1024, a third for bits. A bound without a
unit is read as Kafka's tools read it.

Which bounds are refused, and in which words, is the rule of Kafka 4.4.0's controller (`ClientQuotaControlManager`): a
bound is finite and above 0; a byte rate fits into a LONG and is an integer within 1e-6. That tolerance has one side: a
value just above an integer is taken, one just below is not. Before 4.4 Kafka also stored NaN, which violates every
quota and throttles by 0 ms, and an infinite percentage. One rule is added: a percentage must be below 1e19, as the
constraints of the table demand.
"""

import json
import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Context, Decimal, DecimalException, Inexact, InvalidOperation
from typing import Final

from quota.entity import QUOTA_TYPES, REQUEST
from quota.errors import InvalidBound

NUMBER: Final = r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
"""A decimal number, as Java's `Double.parseDouble` takes it: no underscores, no digits of other scripts."""

UNITS: Final = {"B": 1, "kB": 1000, "MB": 1000**2, "GB": 1000**3, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3}

# What else Double.parseDouble takes: a type suffix, hexadecimal, and NaN and Infinity in this spelling only.
_DECIMAL: Final = re.compile(rf"({NUMBER})[fFdD]?")
_HEXADECIMAL: Final = re.compile(r"([+-]?0[xX](?:[0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)[pP][+-]?[0-9]+)[fFdD]?")
_WORD: Final = re.compile(r"[+-]?(?:NaN|Infinity)")

_WITH_UNIT: Final = re.compile(rf"({NUMBER})\s*([A-Za-z]+|%)(/s)?")
_PERCENTAGE: Final = QUOTA_TYPES[REQUEST]
_SHOWN_UNITS: Final = ("GB", "MB", "kB", "B")
_EXACT: Final = Context(prec=60, traps=[Inexact, InvalidOperation])
_ONE_OF_THE_NEXT: Final = 10_000  # tenths of a unit that are one of the next larger unit
_LARGEST_LONG: Final = float(2**63)
_TOO_LARGE: Final = 1e19  # the upper end of the table's CHECK constraints
_FRACTION_TOLERANCE: Final = 1e-6
_LONGS: Final = frozenset(QUOTA_TYPES) - {_PERCENTAGE}
_SHOWN_LENGTH: Final = 60
_SUGGESTED_DIGITS: Final = 2

_SIBILANTS: Final = ("ch", "s", "x")
_AGE_UNITS: Final = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1000, "s"))


def parse_double(text: str) -> float:
    """A number as Java's `Double.parseDouble` reads it; `ValueError` where Java would refuse it."""
    text = text.strip()
    if found := _DECIMAL.fullmatch(text):
        return float(found[1])
    if found := _HEXADECIMAL.fullmatch(text):
        try:
            return float.fromhex(found[1])
        except OverflowError:  # Java makes it infinite
            return -math.inf if text.startswith("-") else math.inf
    if _WORD.fullmatch(text):
        return float(text)
    message = f"{text!r} is not a number that Java can read"
    raise ValueError(message)


def parse_bound(quota_type: str, given: object) -> float:
    """The bound of a quota, as it was typed.

    Args:
        quota_type: one of `QUOTA_TYPES`.
        given: a number; or a text with a number, for byte rates also with a unit of `UNITS` and `/s` (`1.5 MB/s`), for
            `request_percentage` also with `%`. A byte rate with a unit must be whole bytes and exact in a double.

    Returns:
        Bytes per second, or percent of one thread: finite and above 0.

    Raises:
        InvalidBound: it is not a number, the unit is not one of this quota type, or no bound can have this value.

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


def against_bound(quota_type: str, observed: float, bound: float, *, is_named: bool = True) -> str:
    """O and T in the unit of T, with as many decimals as show that O is larger: "O 5.2 > T 1.0 MB/s".

    Where not `is_named`, without the letters.

    >>> against_bound("producer_byte_rate", 100_030.0, 100_000.0)
    'O 100.03 > T 100.00 kB/s'
    """
    (unit, size), is_over = rate_unit(quota_type, bound), observed > bound
    pairs = ((f"{observed / size:.{digits}f}", f"{bound / size:.{digits}f}") for digits in range(1, 20))
    one, other = next((pair for pair in pairs if not is_over or pair[0] != pair[1]), (observed, bound))
    o, t = ("O ", "T ") if is_named else ("", "")
    return f"{o}{one} {'>' if is_over else '≤'} {t}{other} {unit}"


def bound_text(quota_type: str, value: float) -> str:
    """A bound exactly, followed by a readable size where it is large: "1048576 (1.0 MB/s)", "999 B/s", "50 %"."""
    name, size = rate_unit(quota_type, value)
    return f"{exact_text(value)} {name}" if size == 1.0 else f"{exact_text(value)} ({rate_text(quota_type, value)})"


def rounded_up(value: float, quota_type: str) -> float:
    """A value above 0, rounded up to two digits; a byte rate is at least 1, and whole."""
    place = math.floor(math.log10(value)) - _SUGGESTED_DIGITS + 1
    if quota_type != _PERCENTAGE:
        place = max(place, 0)
    # So that 1.2 * 100 stays 120, whatever the last bit of the product is.
    steps = math.ceil(round(value / 10.0**place, 6))
    return round(steps * 10.0**place, max(-place, 0))


def counted(count: int, word: str) -> str:
    """A number of things: "1 violation", "2 batches"."""
    return f"{count:,} {word}{'' if count == 1 else 'es' if word.endswith(_SIBILANTS) else 's'}"


def age_text(age_ms: float) -> str:
    """An age or a span in one or two units, cut off: "4 s", "2 min 5 s", "3 h", "2 d"; "0 s" if it is negative."""
    rest_ms = max(int(age_ms), 0)
    first = next((place for place, (size_ms, _) in enumerate(_AGE_UNITS[:3]) if rest_ms >= size_ms), None)
    if first is None:
        return f"{rest_ms // 1000} s"
    parts = []
    for size_ms, name in _AGE_UNITS[first : first + 2]:
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
            raise InvalidBound(quota_type, text, f"{text} is not a percentage; write {quota_type} like 50 or 50%")
        return float(number)
    if unit not in UNITS:
        known = f"those of {quota_type} are B, kB, MB, GB (thousands) and KiB, MiB, GiB (of 1024)"
        raise InvalidBound(quota_type, text, f"{_shortened(text)} has an unknown unit; {known}")
    return _whole_bytes(quota_type, text, number, UNITS[unit])


def _whole_bytes(quota_type: str, text: str, number: str, size: int) -> float:
    nearest = float(number) * size
    if not 0 < nearest <= _LARGEST_LONG:  # refused in any case, and perhaps too long to be computed with
        return nearest
    try:
        exact = _EXACT.multiply(_EXACT.create_decimal(number), Decimal(size))
        is_whole = exact == exact.to_integral_value()
    except DecimalException:
        exact, is_whole = Decimal(nearest), False
    if not is_whole:
        message = f"{_shortened(text)} is not a whole number of bytes; {quota_type} has no fractions"
        raise InvalidBound(quota_type, text, message)
    value = float(exact)
    if value != exact:
        message = f"{_shortened(text)} cannot be stored exactly; the nearest {quota_type} is {exact_text(value)}"
        raise InvalidBound(quota_type, text, message)
    return value


def _unreadable(quota_type: str, given: object) -> InvalidBound:
    shown = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False, default=str)
    example = "50 or 50%" if quota_type == _PERCENTAGE else "1048576, 1MB/s or 1MiB/s"
    text = f"Cannot parse quota configuration value for {quota_type}: {_shortened(shown)}; write it like {example}"
    return InvalidBound(quota_type, given, text)


def _shortened(text: str) -> str:
    return text if len(text) <= _SHOWN_LENGTH else f"{text[: _SHOWN_LENGTH - 1]}…"


def _tenths(value: float) -> int:
    return math.floor(value * 10 + 0.5)


def bound_mistake(quota_type: str, value: float) -> str | None:
    """Why a value cannot be a bound; None if it can. Kafka's words, without a full stop, where Kafka refuses it too."""
    if not math.isfinite(value):
        return f"Quota {quota_type} must be a finite number"
    if value <= 0:
        return f"Quota {quota_type} must be greater than 0"
    if value >= _TOO_LARGE and quota_type not in _LONGS:
        return f"Quota {quota_type} must be below {_TOO_LARGE:g}"
    if quota_type in _LONGS:
        if value > _LARGEST_LONG:
            return f"Proposed value for {quota_type} is too large for a LONG"
        if math.fmod(value, 1.0) > _FRACTION_TOLERANCE:
            return f"{quota_type} cannot be a fractional value"
    return None


_LEAST_BYTES: Final = 100.0
_MOST_BYTES: Final = 1e12
_MOST_PERCENT: Final = 1e5  # of a thousand threads


def doubtful_bound(quota_type: str, value: float) -> str | None:
    """Why a bound that is allowed is surely a mistake; None if it may be meant.

    >>> doubtful_bound("producer_byte_rate", 1.0)
    'producer_byte_rate 1 B/s is less than one record; is a unit missing, as in 1MB/s?'
    """
    shown = f"{quota_type} {bound_text(quota_type, value)}"
    if quota_type == _PERCENTAGE:
        return f"{shown} is more than a thousand threads; 100 % is one" if value > _MOST_PERCENT else None
    if value < _LEAST_BYTES:
        return f"{shown} is less than one record; is a unit missing, as in {exact_text(value)}MB/s?"
    return f"{shown} is more than a broker can send; mode=exempt removes the bound" if value > _MOST_BYTES else None


Step = str | int


@dataclass(frozen=True, slots=True)
class Mistake:
    """One thing that is wrong, without a full stop, at keys and positions (from 0) in a file.

    The path may be a flag of the command line, or empty.
    """

    text: str
    path: tuple[Step, ...] = ()

    @property
    def place(self) -> str:
        """The path as text: `quotas[0].values[1]`."""
        steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in self.path)
        return "".join(steps).removeprefix(".")

    def __str__(self) -> str:
        """The place, if there is one, and what is wrong."""
        return f"{self.place}: {self.text}" if self.path else self.text


class Mistakes:
    """Collects what is wrong with typed quotas, on the command line or in a file, to report all of it at once.

    >>> mistakes = Mistakes()
    >>> mistakes.at("quotas", 0).at("mode").add("unknown mode loud")
    >>> print(mistakes.found[0], mistakes.found[0].path)
    quotas[0].mode: unknown mode loud ('quotas', 0, 'mode')
    """

    def __init__(self) -> None:
        self._path: tuple[Step, ...] = ()
        self._found: list[Mistake] = []

    def at(self, *steps: Step) -> "Mistakes":
        """The collector for a place further in; it adds to the same list."""
        inner = Mistakes()
        inner._path, inner._found = (*self._path, *steps), self._found
        return inner

    def add(self, text: str) -> None:
        """Add a mistake."""
        self._found.append(Mistake(text, self._path))

    @contextmanager
    def bound(self) -> Iterator[None]:
        """Add a bound that is refused inside the block, and go on after the block."""
        try:
            yield
        except InvalidBound as exc:
            self.add(exc.mistake)

    @property
    def found(self) -> tuple[Mistake, ...]:
        """All mistakes of all places, in order."""
        return tuple(self._found)
