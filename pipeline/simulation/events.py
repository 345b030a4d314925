"""Reads usage events from a file and checks them as the stream does."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from schemas.usage import UsageEvent


@dataclass(frozen=True, slots=True)
class EventFile:
    """The content of a file of events.

    Attributes:
        events: The valid events, in the order of the file.
        refused: One sentence for each line or element that is not a valid event.
    """

    events: list[UsageEvent]
    refused: list[str]


def holds_events(text: str) -> bool:
    """Whether a file holds events (one JSON value per line) and not quotas. Its first line decides."""
    first = next((line for line in text.splitlines() if line.strip()), "")
    try:
        value = json.loads(first)
    except ValueError:
        return False
    elements = value if isinstance(value, list) else [value]
    return any(isinstance(element, dict) and "event_time_ms" in element for element in elements)


def read_events(text: str) -> EventFile:
    """The events of a text. Each line is a value as on the usage topic: an object, or an array of objects.

    As in the stream, each element that is not a valid event is refused alone; null values and empty arrays are ignored.
    """
    events: list[UsageEvent] = []
    refused: list[str] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except ValueError as exc:
            refused.append(f"line {number}: not JSON: {exc}")
            continue
        for where, element in _elements(value, number):
            try:
                events.append(UsageEvent.model_validate_json(json.dumps(element)))
            except ValidationError as exc:
                refused.append(f"{where}: {_mistakes(exc.errors(include_url=False))}")
    return EventFile(events, refused)


def _elements(value: Any, number: int) -> Iterator[tuple[str, Any]]:
    if value is None:
        return
    if not isinstance(value, list):
        yield f"line {number}", value
        return
    for index, element in enumerate(value):
        yield f"line {number}, element {index}", element


def _mistakes(errors: Sequence[Any]) -> str:
    return "; ".join(f"'{'.'.join(map(str, error['loc']))}' {error['msg']}; got {error['input']!r}" for error in errors)
