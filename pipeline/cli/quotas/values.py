"""`--add-config k=v,k2=[v,w]` and `--delete-config k,k2`, read as kafka-configs reads them; every mistake at once."""

import re
from collections.abc import Iterable, Sequence
from typing import Any, Final

from pipeline.tables.errors import QuotaEditRefused
from pipeline.tables.quotas.edit import LABELS
from quota.bound_rules import bound_mistake
from quota.entity import QUOTA_TYPES

_OUTSIDE_BRACKETS: Final = r"(?=[^\]]*(?:\[|$))"
_SEPARATOR: Final = re.compile("," + _OUTSIDE_BRACKETS)
_EQUALS: Final = re.compile(r"\s*=\s*" + _OUTSIDE_BRACKETS)
_FORMAT: Final = (
    'Invalid entity config: all configs to be added must be in the format "key=val" or "key=[val1,val2]" '
    "to group values which contain commas"
)

# What Double.parseDouble takes: decimal or hexadecimal, with an optional type suffix; no underscores, and NaN and
# Infinity in this spelling only.
_DECIMAL: Final = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)[fFdD]?")
_HEXADECIMAL: Final = re.compile(r"([+-]?0[xX](?:[0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)[pP][+-]?\d+)[fFdD]?")
_WORD: Final = re.compile(r"[+-]?(?:NaN|Infinity)")


def parse_double(text: str) -> float:
    """A number as Java's `Double.parseDouble` reads it.

    Raises:
        ValueError: Java would refuse it.
    """
    text = text.strip()
    if found := _DECIMAL.fullmatch(text):
        return float(found[1])
    if found := _HEXADECIMAL.fullmatch(text):
        return float.fromhex(found[1])
    if _WORD.fullmatch(text):
        return float(text)
    message = f"'number' must be one Java can read; got {text}"
    raise ValueError(message)


def parse_added(text: str, types: Iterable[str]) -> dict[str, Any]:
    """Read `--add-config`: bounds as numbers (`1e6` is one), mode, owner and note as text.

    Args:
        text: `k=v` pairs; square brackets keep commas together: `note=[until May, then less]`.
        types: The entity types, for the words of a refusal.

    Raises:
        QuotaEditRefused: A part is no `key=value`, a key is unknown, a bound is no number or none that Kafka takes.
    """
    pairs = [_EQUALS.split(part) for part in _SEPARATOR.split(text)]
    if any(len(pair) != 2 for pair in pairs):
        raise QuotaEditRefused([_FORMAT])
    # Given twice, the last one counts, as it does in Kafka.
    return checked({key.strip(): re.sub(r"[\[\]]", "", value).strip() for key, value in pairs}, types)


def checked(given: dict[str, str], types: Iterable[str]) -> dict[str, Any]:
    """Convert names and texts to values of a quota.

    Raises:
        QuotaEditRefused: As `parse_added` says.
    """
    values: dict[str, Any] = {}
    mistakes = unexpected_names("added", [key for key in given if key not in {*QUOTA_TYPES, *LABELS}], types)
    for key, text in given.items():
        if key in LABELS:
            values[key] = text
        elif key in QUOTA_TYPES:
            try:
                values[key] = parse_double(text)
            except ValueError:
                mistakes.append(f"Cannot parse quota configuration value for {key}: {text}")
                continue
            refusal = bound_mistake(key, values[key])
            if refusal is not None:
                mistakes.append(f"{refusal}; got {text}")
    if mistakes:
        raise QuotaEditRefused(mistakes)
    return values


def parse_deleted(text: str, types: Iterable[str]) -> dict[str, Any]:
    """Read `--delete-config`: the values to delete; the mode becomes enforce.

    Raises:
        QuotaEditRefused: A name is unknown.
    """
    keys = list(filter(None, (piece.strip() for piece in text.split(","))))
    mistakes = unexpected_names("deleted", [key for key in keys if key not in {*QUOTA_TYPES, *LABELS}], types)
    if mistakes:
        raise QuotaEditRefused(mistakes)
    return {key: "enforce" if key == "mode" else None for key in keys}


def unexpected_names(done: str, keys: Sequence[str], types: Iterable[str]) -> list[str]:
    """Kafka's message for names that are no quota config, without its part on SCRAM; empty without such names."""
    if not keys:
        return []
    kind = next(iter(types), "users")
    known = ", ".join((*QUOTA_TYPES, *LABELS))
    return [
        f"Only quota configs can be {done} for '{kind}'. Unexpected config names: {', '.join(keys)}; known are {known}"
    ]
