"""`--add-config k=v,k2=[v,w]` and `--delete-config k,k2`, read as kafka-configs reads them; every mistake at once."""

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from pipeline.tables.quotas.edit import LABELS
from quota.entity import QUOTA_TYPES
from quota.snapshot import MODES
from quota.units import Mistakes, parse_bound

_KNOWN: Final = (*QUOTA_TYPES, *LABELS)

_OUTSIDE_BRACKETS: Final = r"(?=[^\]]*(?:\[|$))"
_SEPARATOR: Final = re.compile("," + _OUTSIDE_BRACKETS)
_EQUALS: Final = re.compile(r"\s*=\s*" + _OUTSIDE_BRACKETS)
_FORMAT: Final = (
    'Invalid entity config: all configs to be added must be in the format "key=val" or "key=[val1,val2]" '
    "to group values which contain commas"
)


def parse_added(text: str, types: Iterable[str], mistakes: Mistakes) -> dict[str, Any]:
    """Read `--add-config`: bounds as numbers (`1e6` is one) or with a unit (`1MB/s`), mode, owner and note as text.

    Args:
        text: `k=v` pairs; square brackets keep commas together: `note=[until May, then less]`.
        mistakes: Gets what is wrong: a part that is not `key=value`, an unknown key or mode, an invalid bound.
    """
    pairs = [_EQUALS.split(part) for part in _SEPARATOR.split(text)]
    if any(len(pair) != 2 for pair in pairs):
        mistakes.add(_FORMAT)
    # Given twice, the last one counts, as it does in Kafka.
    given = {pair[0].strip(): re.sub(r"[\[\]]", "", pair[1]).strip() for pair in pairs if len(pair) == 2}
    return checked(given, types, mistakes)


def checked(given: Mapping[str, str], types: Iterable[str], mistakes: Mistakes) -> dict[str, Any]:
    """Convert names and texts to values of a quota; what is wrong with them goes to `mistakes`."""
    values: dict[str, Any] = {}
    _refuse_unknown("added", given, types, mistakes)
    for key, text in given.items():
        if key in QUOTA_TYPES:
            with mistakes.bound():
                values[key] = parse_bound(key, text)
        elif key == "mode" and text not in MODES:
            mistakes.add(f"unknown mode {text}; use {', '.join(MODES)}")
        elif key in LABELS:
            values[key] = text
    return values


def parse_deleted(text: str, types: Iterable[str], mistakes: Mistakes) -> dict[str, Any]:
    """Read `--delete-config`: the values to delete; the mode becomes enforce. Unknown names go to `mistakes`."""
    keys = list(filter(None, (piece.strip() for piece in text.split(","))))
    _refuse_unknown("deleted", keys, types, mistakes)
    return {key: "enforce" if key == "mode" else None for key in keys}


def _refuse_unknown(done: str, keys: Iterable[str], types: Iterable[str], mistakes: Mistakes) -> None:
    """Refuse names that are not quota configs, in Kafka's words without its part on SCRAM."""
    unknown = [key for key in keys if key not in _KNOWN]
    if unknown:
        kind = next(iter(types), "users")
        names = f"Unexpected config names: {', '.join(unknown)}; known are {', '.join(_KNOWN)}"
        mistakes.add(f"Only quota configs can be {done} for '{kind}'. {names}")
