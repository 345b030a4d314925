"""What a usage message holds, by another reading than the job's: a parser of RFC 8259 for bytes, and `UsageEvent`.

It shares no code with `pipeline.stream.usage_reader`, and uses neither `json` nor msgspec. The rules are those of
docs/meter.md, "What a usage message is", and of docs/design.md, "Event time". The judge of tests/faults reads with it.
"""

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pydantic import ValidationError

from schemas.usage import UsageEvent

MOST_LEVELS = 100
LARGEST_SUM = 2**53

_BLANKS = re.compile(rb"[ \t\n\r]*")
_TOKEN = re.compile(
    rb'(?P<opening>[\[{])|(?P<word>true|false|null)|"(?P<text>(?:[^"\\\x00-\x1f]+|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*+)"'
    rb"|(?P<integer>-?(?:0|[1-9][0-9]*))(?P<rest>(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)"
)
_ESCAPE = re.compile(rb"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_SHORT = {b"b": "\b", b"f": "\f", b"n": "\n", b"r": "\r", b"t": "\t"}
_WORDS = {b"true": True, b"false": False, b"null": None}


class NotJson(Exception):
    """The message is not JSON, or too deep."""


class Element(NamedTuple):
    """An element of an array, or the one value of a message: its place, its bytes, and the event that it is.

    The event is None if it is none, but for its age.
    """

    place: int | None
    written: bytes
    event: UsageEvent | None


@dataclass
class Expected:
    """What is read from messages; `dead` has place of the message, element and bytes of what is refused."""

    usage: dict[tuple[Any, ...], dict[str, Any]] = field(default_factory=dict)
    dead: list[tuple[int, int | None, bytes]] = field(default_factory=list)
    good_count: int = 0
    clamped_count: int = 0
    ignored_count: int = 0

    @property
    def newest_event_ms(self) -> int | None:
        return max((row["last_event_ms"] or 0 for row in self.usage.values()), default=None)


def judged(values: Sequence[bytes | None]) -> list[list[Element]]:
    """The elements of messages. One that is no JSON, or neither object nor array, is its own and only element."""
    return [[] if value is None else _elements_of(value) for value in values]


def _elements_of(message: bytes) -> list[Element]:
    parser = _Parser(message)
    try:
        parsed = parser.parse()
    except NotJson:
        return [Element(None, message, None)]
    if not isinstance(parsed, list):
        return [Element(None, message, _event_of(parsed, message))]
    written = [message[begin:end] for begin, end in parser.spans]
    return [Element(index, one, _event_of(parsed[index], one)) for index, one in enumerate(written)]


def _event_of(value: Any, written: bytes) -> UsageEvent | None:
    try:
        written.decode()
        return UsageEvent.model_validate(value)
    except (UnicodeDecodeError, ValidationError):
        return None


def expected_of(
    messages: Sequence[Sequence[Element]],
    appended_at_ms: Sequence[int],
    max_event_age_ms: int,
    limit_ms: int = 2**63,
    window_ms: int = 1_000,
) -> Expected:
    """What messages hold; event times after the limit count as of the limit."""
    expected = Expected()
    groups: dict[tuple[Any, ...], list[tuple[UsageEvent, int]]] = defaultdict(list)
    for place, (elements, appended_ms) in enumerate(zip(messages, appended_at_ms, strict=True)):
        expected.ignored_count += not elements
        for index, written, event in elements:
            if event is None or event.event_time_ms < appended_ms - max_event_age_ms:
                expected.dead.append((place, index, written))
                continue
            time_ms = min(event.event_time_ms, appended_ms, limit_ms)
            expected.good_count += 1
            expected.clamped_count += time_ms < event.event_time_ms
            groups[time_ms - time_ms % window_ms, event.broker_id, event.user, event.client_id].append((event, time_ms))
    expected.usage = {key: _sums(*zip(*dated, strict=True)) for key, dated in groups.items()}
    return expected


class _Parser:
    """Reads one JSON value of bytes, and where the elements of an outermost array are."""

    def __init__(self, message: bytes) -> None:
        self.message = message
        self.at = 0
        self.spans: list[tuple[int, int]] = []

    def parse(self) -> Any:
        value = self.value(1)
        self.skip_blanks()
        if self.at != len(self.message):
            raise NotJson
        return value

    def value(self, level: int) -> Any:
        self.skip_blanks()
        found = _TOKEN.match(self.message, self.at)
        if found is None:
            raise NotJson
        self.at = found.end()
        if found["opening"]:
            return self.container(found["opening"] == b"[", level)
        if found["word"]:
            return _WORDS[found["word"]]
        if found["integer"]:
            return 0.5 if found["rest"] else int(found["integer"][:1_000])
        # As UTF-16: halves of a character that are written one after the other become that character.
        units = _ESCAPE.sub(_unescaped, found["text"].decode("utf-8", "replace").encode("utf-8"))
        text = units.decode("utf-8", "surrogatepass")
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")

    def container(self, is_array: bool, level: int) -> Any:
        if level > MOST_LEVELS:
            raise NotJson
        closing, content = b"]" if is_array else b"}", list[Any]()
        is_closed = self.is_next(closing)
        while not is_closed:
            self.skip_blanks()
            begin = self.at
            content.append(self.value(level + 1) if is_array else self.member(level))
            if level == 1:
                self.spans.append((begin, self.at))
            is_closed = self.is_next(closing)
            if not is_closed and not self.is_next(b","):
                raise NotJson
        return content if is_array else dict(content)

    def member(self, level: int) -> tuple[str, Any]:
        name = self.value(level + 1)
        if not isinstance(name, str) or not self.is_next(b":"):
            raise NotJson
        return name, self.value(level + 1)

    def skip_blanks(self) -> None:
        found = _BLANKS.match(self.message, self.at)
        assert found is not None
        self.at = found.end()

    def is_next(self, character: bytes) -> bool:
        self.skip_blanks()
        is_next = self.message.startswith(character, self.at)
        self.at += is_next
        return is_next


def _unescaped(escape: re.Match[bytes]) -> bytes:
    written = escape[1]
    if written[:1] == b"u" and len(written) > 1:
        return chr(int(written[1:], 16)).encode("utf-8", "surrogatepass")
    return _SHORT.get(written, written.decode()).encode()


def _sums(events: Sequence[UsageEvent], times_ms: Sequence[int]) -> dict[str, Any]:
    def total(values: list[int | None]) -> int | None:
        known = [value for value in values if value is not None]
        return min(sum(known), LARGEST_SUM) if known else None

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
        "clamped_count": sum(time_ms < e.event_time_ms for e, time_ms in zip(events, times_ms, strict=True)),
        "last_event_ms": max(times_ms),
    }
