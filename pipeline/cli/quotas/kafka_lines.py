"""Prints quotas as the lines of kafka-configs."""

from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Final

from quota.entity import QUOTA_TYPES, label

_BOUNDS: Final = tuple(sorted(QUOTA_TYPES))


def described_line(row: Mapping[str, Any]) -> str:
    """`Quota configs for user-principal 'alice' are producer_byte_rate=1024.0`.

    Bounds are in alphabetical order. A mode other than enforce, an owner and a note follow; a quota without them prints
    exactly as in Kafka.
    """
    values = [f"{name}={java_double(row[name])}" for name in _BOUNDS if row[name] is not None]
    if row["mode"] != "enforce":
        values.append(f"mode={row['mode']}")
    values += [f"{name}={bracketed(row[name])}" for name in ("owner", "note") if row[name] is not None]
    return f"Quota configs for {label(row['user'], row['client_id'])} are {', '.join(values)}"


def bracketed(text: str) -> str:
    """A text in the form `--add-config` reads: in square brackets if it has commas or equals signs."""
    return f"[{text}]" if "," in text or "=" in text else text


def java_double(value: float) -> str:
    """A double as Java prints it: `1024.0`, `1.0E7`, `1.0E-4`; the fewest digits that read as the same number."""
    if 1e-3 <= abs(value) < 1e7 or value == 0:
        return format(Decimal(repr(value)), "f") if "e" in repr(value) else repr(value)
    sign, digits, exponent = Decimal(repr(value)).normalize().as_tuple()
    text = "".join(map(str, digits))
    power = len(text) - 1 + int(exponent)
    return f"{'-' if sign else ''}{text[0]}.{text[1:] or '0'}E{power}"
