"""`k=v,k2=v2` as quota values, every mistake at once."""

from typing import Any, Final

from pipeline.tables.errors import QuotaEditRefused
from pipeline.tables.quota_edit import BOUNDS

_TEXT: Final = ("mode", "owner", "note")


def parse_added(text: str) -> dict[str, Any]:
    """Read `--add-config`: bounds as numbers (`1e6` is one), mode, owner and note as text.

    Raises:
        QuotaEditRefused: A part is no `key=value`, the key is unknown, or a bound is no number.
    """
    values: dict[str, Any] = {}
    mistakes: list[str] = []
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals:
            mistakes.append(f"'--add-config' must be key=value pairs; got {part}")
        elif key in _TEXT:
            values[key] = value
        elif key in BOUNDS:
            try:
                values[key] = float(value)
            except ValueError:
                mistakes.append(f"Cannot parse quota configuration value for {key}: {value}")
        else:
            mistakes.append(_unknown("--add-config", key))
    if mistakes:
        raise QuotaEditRefused(mistakes)
    return values


def parse_deleted(text: str) -> dict[str, None]:
    """Read `--delete-config`: names of bounds.

    Raises:
        QuotaEditRefused: A name is no bound.
    """
    keys = list(filter(None, (piece.strip() for piece in text.split(","))))
    mistakes = [_unknown("--delete-config", key) for key in keys if key not in BOUNDS]
    if mistakes:
        raise QuotaEditRefused(mistakes)
    return dict.fromkeys(keys)


def _unknown(option: str, key: str) -> str:
    known = ", ".join((*BOUNDS, *_TEXT) if option == "--add-config" else BOUNDS)
    return f"'{option}' must name one of {known}; got {key}"
