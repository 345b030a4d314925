"""Usage messages in plain Python: elements, their faults, and sums per sample window.

The rules are those of docs/design.md, "Topics" and "Event time".
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from tests.faults.evidence import Message, Row

LARGEST_MEASURE = 2**40
LARGEST_NAME_BYTES = 32_767
MAX_EVENT_AGE_MS = 86_400_000  # the default, which all jobs under test run with
MEASURES = ("produced_bytes", "fetched_bytes", "io_time_ns", "network_time_ns")
SUMS = (
    *("produced_bytes", "fetched_bytes", "io_time_ns", "network_time_ns", "exempt_time_ns", "request_count"),
    "broker_throttle_ms",
)


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """Something that was refused, and where. `text` is the whole message, or the element as JSON."""

    partition: int
    offset: int
    element_index: int | None
    appended_at_ms: int
    text: Any


@dataclass
class Reading:
    usage: dict[tuple[int, str, str, str], Row] = field(default_factory=dict)
    dead: list[DeadLetter] = field(default_factory=list)
    good_count: int = 0
    clamped_count: int = 0
    ignored_count: int = 0
    newest_event_ms: int | None = None


def read(messages: Iterable[Message], sample_window_ms: int) -> Reading:
    """Read messages and sum their usage per sample window, broker, user and client-id."""
    reading = Reading()
    for message in messages:
        elements = _elements(message.value)
        if elements is None:
            reading.dead.append(_dead(message, None, message.value))
            continue
        if not elements:
            reading.ignored_count += 1
        for index, element in elements:
            if is_event(element) and element["event_time_ms"] >= message.appended_at_ms - MAX_EVENT_AGE_MS:
                _add(reading, element, message.appended_at_ms, sample_window_ms)
            else:
                reading.dead.append(_dead(message, index, message.value if index is None else element))
    return reading


def is_event(element: Any) -> bool:
    if not isinstance(element, dict):
        return False
    time_ms = element.get("event_time_ms")
    numbers = {name: element.get(name) for name in (*MEASURES, "request_count", "broker_throttle_ms", "schema_version")}
    return (
        _is_integer_within(time_ms, 2**63 - 1)
        and _is_name(element.get("user"))
        and bool(element["user"])
        and _is_name(element.get("client_id"))
        and _is_name(element.get("broker_id") or "")
        and isinstance(element.get("throttle_exempt") or False, bool)
        and all(value is None or _is_integer_within(value, LARGEST_MEASURE) for value in numbers.values())
    )


def _is_integer_within(value: Any, largest: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= largest


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and len(value.encode(errors="replace")) <= LARGEST_NAME_BYTES


def _elements(value: bytes | None) -> list[tuple[int | None, Any]] | None:
    """The elements with their positions. Empty for null and an empty array; None if it is no JSON object or array."""
    if value is None:
        return []
    try:
        parsed = json.loads(value.decode(), parse_constant=_no_json)
    except ValueError:
        return None
    if isinstance(parsed, list):
        return list(enumerate(parsed))
    return [(None, parsed)] if isinstance(parsed, dict) else None


def _no_json(constant: str) -> None:
    raise ValueError(constant)


def _dead(message: Message, index: int | None, text: Any) -> DeadLetter:
    return DeadLetter(message.partition, message.offset, index, message.appended_at_ms, text)


def _add(reading: Reading, event: Row, appended_at_ms: int, sample_window_ms: int) -> None:
    time_ms = min(event["event_time_ms"], appended_at_ms)
    reading.good_count += 1
    reading.clamped_count += time_ms < event["event_time_ms"]
    reading.newest_event_ms = max(time_ms, reading.newest_event_ms or 0)
    start_ms = time_ms - time_ms % sample_window_ms
    key = (start_ms, event.get("broker_id") or "", event["user"], event["client_id"])
    row = reading.usage.setdefault(key, _new_row())
    for name, amount in _amounts(event):
        if amount is not None:
            row[name] = (row[name] or 0) + amount
    row["last_event_ms"] = max(row["last_event_ms"], time_ms)
    row["event_count"] += 1
    row["clamped_count"] += time_ms < event["event_time_ms"]


def _new_row() -> Row:
    return {**dict.fromkeys(SUMS), "last_event_ms": 0, "event_count": 0, "clamped_count": 0}


def limited(reading: Reading, limit_ms: int, sample_window_ms: int) -> Reading:
    """The same events, those after the limit as of the limit.

    Of a sample window that begins after the limit all events count as clamped, of one that holds the limit at least
    one: only its newest event is known.
    """
    if (reading.newest_event_ms or 0) <= limit_ms:
        return reading
    usage: dict[tuple[int, str, str, str], Row] = {}
    limit_start_ms = limit_ms - limit_ms % sample_window_ms
    for (start_ms, *names), row in reading.usage.items():
        clamped = row["clamped_count"]
        if row["last_event_ms"] > limit_ms:
            clamped = row["event_count"] if start_ms > limit_start_ms else max(clamped, 1)
        total = usage.setdefault((min(start_ms, limit_start_ms), names[0], names[1], names[2]), _new_row())
        for name in SUMS:
            if row[name] is not None:
                total[name] = (total[name] or 0) + row[name]
        total["last_event_ms"] = max(total["last_event_ms"], min(row["last_event_ms"], limit_ms))
        total["event_count"] += row["event_count"]
        total["clamped_count"] += clamped
    clamped_count = sum(row["clamped_count"] for row in usage.values())
    return replace(reading, usage=usage, clamped_count=clamped_count, newest_event_ms=limit_ms)


def _amounts(event: Row) -> Iterator[tuple[str, int | None]]:
    yield from ((name, event.get(name)) for name in ("produced_bytes", "fetched_bytes", "broker_throttle_ms"))
    for name in ("io_time_ns", "network_time_ns"):
        yield ("exempt_time_ns" if event.get("throttle_exempt") else name), event.get(name)
    count = event.get("request_count")
    yield "request_count", 1 if count is None else count
