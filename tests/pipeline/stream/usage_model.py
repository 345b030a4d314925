"""What a usage message holds, by another reading than the job's: a parser of RFC 8259 for bytes, and `UsageEvent`.

It shares no code with `pipeline.stream.usage_reader`, and uses neither `json` nor msgspec. The rules are those of
docs/meter.md, "What a usage message is".
"""

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from schemas.usage import UsageEvent

MOST_LEVELS = 100
LARGEST_SUM = 2**53

_BLANKS = re.compile(rb"[ \t\n\r]*")
_NUMBER = re.compile(rb"(-?(?:0|[1-9][0-9]*))(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_STRING = re.compile(rb'"((?:[^"\\\x00-\x1f]+|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*+)"')
_ESCAPE = re.compile(rb"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_SHORT = {b"b": "\b", b"f": "\f", b"n": "\n", b"r": "\r", b"t": "\t"}
_WORDS = ((b"true", True), (b"false", False), (b"null", None))


class NotJson(Exception):
    """The message is not JSON, or too deep."""


@dataclass(frozen=True)
class Element:
    """An element of an array, or the one object of a message.

    Attributes:
        index: Its place in the array; None for an object.
        value: Parsed: dict, list, str, int, float, bool or None.
        written: Its bytes.
    """

    index: int | None
    value: Any
    written: bytes


@dataclass
class Expected:
    """What is read from messages; `dead` has offset, element and bytes of what is refused."""

    usage: dict[tuple[Any, ...], dict[str, int | None]] = field(default_factory=dict)
    dead: list[tuple[int, int | None, bytes]] = field(default_factory=list)
    good_count: int = 0
    clamped_count: int = 0
    ignored_count: int = 0


@dataclass(frozen=True)
class Dated:
    """A usage event and the time at which it counts."""

    event: UsageEvent
    time_ms: int

    @property
    def is_clamped(self) -> bool:
        return self.time_ms < self.event.event_time_ms


Judged = Sequence[tuple[Element, UsageEvent | None]]
"""The elements of a message, each with the event that it is; None if it is none, but for its age."""


def judged(values: Sequence[bytes | None]) -> list[Judged]:
    """Read messages. One that is no JSON, or neither object nor array, is its own and only element."""

    def judge(value: bytes | None) -> Judged:
        try:
            elements = [] if value is None else elements_of(value)
        except NotJson:
            return [(Element(None, None, value or b""), None)]
        return [(element, usage_event(element)) for element in elements]

    return list(map(judge, values))


def expected_of(
    messages: Sequence[Judged], appended_at_ms: Sequence[int], max_event_age_ms: int, limit_ms: int = 2**63
) -> Expected:
    """What messages hold; event times after the limit count as of the limit."""
    expected = Expected()
    groups: dict[tuple[Any, ...], list[Dated]] = defaultdict(list)
    for offset, (elements, appended_ms) in enumerate(zip(messages, appended_at_ms, strict=True)):
        expected.ignored_count += not elements
        for element, event in elements:
            if event is None or event.event_time_ms < appended_ms - max_event_age_ms:
                expected.dead.append((offset, element.index, element.written))
                continue
            dated = Dated(event, min(event.event_time_ms, appended_ms, limit_ms))
            expected.good_count += 1
            expected.clamped_count += dated.is_clamped
            start_ms = dated.time_ms - dated.time_ms % 1000
            groups[start_ms, event.broker_id, event.user, event.client_id].append(dated)
    expected.usage = {key: _sums(events) for key, events in groups.items()}
    return expected


def elements_of(message: bytes) -> list[Element]:
    """The elements of a message, none of an empty array.

    Raises:
        NotJson: It is neither an object nor an array.
    """
    parsed, spans = _Parser(message).parse()
    if isinstance(parsed, list):
        written = [message[begin:end] for begin, end in spans]
        return [Element(index, *one) for index, one in enumerate(zip(parsed, written, strict=True))]
    if not isinstance(parsed, dict):
        raise NotJson
    return [Element(None, parsed, message)]


def usage_event(element: Element) -> UsageEvent | None:
    """The event that an element is; None if it is none."""
    try:
        element.written.decode()
        return UsageEvent.model_validate(element.value)
    except (UnicodeDecodeError, ValidationError):
        return None


class _Parser:
    """Reads one JSON value of bytes, and where the elements of an outermost array are."""

    def __init__(self, message: bytes) -> None:
        self.message = message
        self.at = 0
        self.spans: list[tuple[int, int]] = []

    def parse(self) -> tuple[Any, list[tuple[int, int]]]:
        value = self.value(1)
        self.skip_blanks()
        if self.at != len(self.message):
            raise NotJson
        return value, self.spans

    def value(self, level: int) -> Any:
        self.skip_blanks()
        first = self.message[self.at : self.at + 1]
        if first in {b"[", b"{"}:
            if level > MOST_LEVELS:
                raise NotJson
            self.at += 1
            return self.array(level) if first == b"[" else self.object(level)
        if first == b'"':
            return self.string()
        for word, value in _WORDS:
            if self.message.startswith(word, self.at):
                self.at += len(word)
                return value
        return self.number()

    def array(self, level: int) -> list[Any]:
        values: list[Any] = []
        if self.is_next(b"]"):
            return values
        while True:
            self.skip_blanks()
            begin = self.at
            values.append(self.value(level + 1))
            if level == 1:
                self.spans.append((begin, self.at))
            if self.is_next(b"]"):
                return values
            self.expect(b",")

    def object(self, level: int) -> dict[str, Any]:
        members: dict[str, Any] = {}
        if self.is_next(b"}"):
            return members
        while True:
            self.skip_blanks()
            name = self.string()
            self.expect(b":")
            members[name] = self.value(level + 1)
            if self.is_next(b"}"):
                return members
            self.expect(b",")

    def string(self) -> str:
        found = _STRING.match(self.message, self.at)
        if found is None:
            raise NotJson
        self.at = found.end()
        # As UTF-16: halves of a character that are written one after the other become that character.
        units = _ESCAPE.sub(_unescaped, found[1].decode("utf-8", "replace").encode("utf-8"))
        text = units.decode("utf-8", "surrogatepass")
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")

    def number(self) -> int | float:
        found = _NUMBER.match(self.message, self.at)
        if found is None:
            raise NotJson
        self.at = found.end()
        if found[0] != found[1]:
            return 0.5
        return int(found[0]) if len(found[0]) < 1_000 else int(found[0][:1_000])

    def skip_blanks(self) -> None:
        found = _BLANKS.match(self.message, self.at)
        assert found is not None
        self.at = found.end()

    def is_next(self, character: bytes) -> bool:
        self.skip_blanks()
        is_next = self.message.startswith(character, self.at)
        self.at += is_next
        return is_next

    def expect(self, character: bytes) -> None:
        if not self.is_next(character):
            raise NotJson


def _unescaped(escape: re.Match[bytes]) -> bytes:
    written = escape[1]
    if written[:1] == b"u" and len(written) > 1:
        return chr(int(written[1:], 16)).encode("utf-8", "surrogatepass")
    return _SHORT.get(written, written.decode()).encode()


def _sums(dated: Sequence[Dated]) -> dict[str, int | None]:
    def total(values: list[int | None]) -> int | None:
        known = [value for value in values if value is not None]
        return min(sum(known), LARGEST_SUM) if known else None

    events = [one.event for one in dated]
    exempt = [e for e in events if e.throttle_exempt]
    charged = [e for e in events if not e.throttle_exempt]
    return {
        "produced_bytes": total([e.produced_bytes for e in events]),
        "fetched_bytes": total([e.fetched_bytes for e in events]),
        "io_time_ns": total([e.io_time_ns for e in charged]),
        "network_time_ns": total([e.network_time_ns for e in charged]),
        "exempt_time_ns": total([t for e in exempt for t in (e.io_time_ns, e.network_time_ns)]),
        "request_count": total([e.request_count for e in events]),
        "broker_throttle_ms": total([e.broker_throttle_ms for e in events]),
        "event_count": len(events),
        "clamped_count": sum(one.is_clamped for one in dated),
        "last_event_ms": max(one.time_ms for one in dated),
    }
