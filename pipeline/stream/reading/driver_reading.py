"""Reads messages with faults on the driver, element by element and with causes, with the same result as Spark.

A Spark job for them costs more than a small batch itself, and anybody may write one such message per batch. Python
reads a few messages in less than a millisecond. What is refused, and with which words, comes from the same
`FIELD_RULES`.

Left to `second_reading` are only messages at which the parsers have limits of their own, deeply nested ones and long
numbers, and texts that Spark reads by a writer of its own.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Final

import numpy as np
import pyarrow as pa

from pipeline.stream.reading.collected_batch import DEAD_LETTER_SCHEMA
from pipeline.stream.reading.event_columns import EventTimes, usage_of
from pipeline.stream.reading.field_rules import (
    FIELD_RULES,
    LARGEST_BIGINT,
    MANY_DIGITS,
    NAMES_NOT_UTF8,
    NO_JSON,
    NO_OBJECT,
    NO_OBJECTS,
    SMALLEST_BIGINT,
    FieldRule,
    must_be_at_least,
    must_be_at_most,
    must_be_present,
    must_be_shorter,
    must_be_typed,
    must_be_younger,
    must_not_be_empty,
)
from pipeline.stream.reading.json_text import JsonObject, UnknownText, has_a_name_twice, json_text
from pipeline.stream.reading.read_part import ReadPart, put_together
from pipeline.stream.reading.reading_rules import ReadingRules

_MOST_BRACKETS: Final = 100  # far below the depth at which Spark's parser gives up
_MOST_DIGITS: Final = 100  # and the length of a number
_DIGITS = re.compile(rf"[0-9]{{{_MOST_DIGITS}}}")
# One character of Spark's reader, three of Python's: half of a character beyond U+FFFF, written in UTF-8 by itself.
_HALF: Final = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]?")
_REPLACEMENT_CHARACTER: Final = "\ufffd"
_WRITTEN_OTHERWISE: Final = re.compile("[\x00-\x1f\x7f\ud800-\udfff\U00010000-\U0010ffff]")
_NO_BRACKETS: Final = re.compile(r"[^][{}]+")
_TOO_SMALL: Final = re.compile(f"-{MANY_DIGITS}")
_TOO_LARGE: Final = re.compile(MANY_DIGITS)
_NAMES: Final = frozenset(rule.name for rule in FIELD_RULES if rule.spark_type == "STRING")


class _NotPlain(Exception):
    """Spark may read this in another way."""


@dataclass(frozen=True, slots=True)
class Message:
    """A message of a batch.

    Attributes:
        topic: Where it is.
        partition: Of the topic.
        offset: In the partition.
        appended_at_ms: When it was appended.
        value: Its value; None if it was too large to be fetched.
    """

    topic: str
    partition: int
    offset: int
    appended_at_ms: int
    value: bytes | None


@dataclass
class Reread:
    """What was read again.

    Attributes:
        events: Good events, with their append times.
        letters: Rows of `DEAD_LETTER_SCHEMA`.
        ignored_count: Messages that hold nothing.
        left: The messages for `second_reading`.
    """

    events: list[tuple[Mapping[str, Any], int]] = field(default_factory=list)
    letters: list[dict[str, Any]] = field(default_factory=list)
    ignored_count: int = 0
    left: list[Message] = field(default_factory=list)

    def part(self, rules: ReadingRules) -> ReadPart:
        """What was read, summed."""
        events = [SimpleNamespace(**fields) for fields, _ in self.events]
        appended_at_ms = np.fromiter((at_ms for _, at_ms in self.events), np.int64, len(events))
        letters = pa.Table.from_pylist(self.letters, DEAD_LETTER_SCHEMA)
        part = ReadPart(dead_letters=letters, ignored_count=self.ignored_count)
        return put_together([part, usage_of(events, EventTimes.of(events, appended_at_ms), rules)])


def read_again(messages: Sequence[Message], max_event_age_ms: int) -> Reread:
    """Read messages element by element, with causes.

    Args:
        messages: Each only once.
        max_event_age_ms: See `ReadingRules`.
    """
    read = Reread()
    for message in messages:
        try:
            elements = _judged(message, max_event_age_ms)
            refused = [_letter(message, *one) for one in elements if one[1] is not None]
        except (_NotPlain, UnknownText):
            read.left.append(message)
            continue
        read.letters += refused
        read.ignored_count += not elements
        read.events += [(one[2], message.appended_at_ms) for one in elements if one[1] is None]
    return read


def _judged(message: Message, max_event_age_ms: int) -> list[tuple[int | None, str | None, Any]]:
    """Place, cause and content of each element; a message that is no array of elements is its own and only one."""
    text, is_utf8 = _text(message.value)
    try:
        parsed = _DECODER.decode(text)
    except json.JSONDecodeError:
        return [(None, NO_JSON, None)]

    def judged(place: int | None, element: Any) -> tuple[int | None, str | None, Any]:
        if not isinstance(element, JsonObject):
            return place, NO_OBJECT, element
        names = {name: _name(element.get(name)) for name in _NAMES}
        fields = {rule.name: element.get(rule.name) for rule in FIELD_RULES} | names
        if not is_utf8 and any(_REPLACEMENT_CHARACTER in name for name in names.values() if name):
            return place, NAMES_NOT_UTF8, element
        cause = _cause(fields, message, max_event_age_ms)
        return place, cause, fields if cause is None else element

    if isinstance(parsed, list):
        # Spark has no variant of an array with a name that is there twice, and then takes texts for what is in them.
        if has_a_name_twice(parsed) and any(isinstance(element, str) for element in parsed):
            raise _NotPlain
        return [judged(place, element) for place, element in enumerate(parsed)]
    return [judged(None, parsed) if isinstance(parsed, JsonObject) else (None, NO_OBJECTS, None)]


def _text(value: bytes | None) -> tuple[str, bool]:
    """A message as Spark's parser sees it, and whether it is UTF-8."""
    if value is None:
        raise _NotPlain
    try:
        text, is_utf8 = value.decode(), True
    except UnicodeDecodeError:
        text, is_utf8 = _HALF.sub(_REPLACEMENT_CHARACTER.encode(), value).decode(errors="replace"), False
    if _DIGITS.search(text) or _depth(text) > _MOST_BRACKETS:
        raise _NotPlain
    return text, is_utf8


def _depth(text: str) -> int:
    """At least how deeply nested the message is; brackets inside names count, too."""
    deepest = depth = 0
    for bracket in _NO_BRACKETS.sub("", text):
        depth += 1 if bracket in "[{" else -1
        deepest = max(deepest, depth)
    return deepest


def _no_constant(_name: str) -> float:
    # NaN and Infinity are not JSON.
    message = "not JSON"
    raise json.JSONDecodeError(message, "", 0)


_DECODER: Final = json.JSONDecoder(parse_constant=_no_constant, object_pairs_hook=JsonObject)


def _name(value: Any) -> str | None:
    """A name as Spark reads it: one that is no text is taken as its JSON text, half a character as a question mark."""
    text = value if isinstance(value, str) or value is None else json_text(value)
    return text and text.encode(errors="replace").decode()


def _cause(fields: Mapping[str, Any], message: Message, max_event_age_ms: int) -> str | None:
    """The first rule that an event breaks, as `event_rules.broken_rule` says it; None for a good event."""
    for rule in FIELD_RULES:
        if (cause := _broken(rule, fields[rule.name])) is not None:
            return cause
    too_old = fields["event_time_ms"] < message.appended_at_ms - max_event_age_ms
    return must_be_younger(max_event_age_ms) if too_old else None


def _broken(rule: FieldRule, value: Any) -> str | None:
    """The first rule that the value of one field breaks."""
    if value is None:
        return must_be_present(rule) if rule.required else None
    if rule.spark_type == "STRING":
        return _broken_by_text(rule, value)
    if rule.spark_type == "BOOLEAN":
        return None if isinstance(value, bool) else must_be_typed(rule)
    return _broken_by_number(rule, value)


def _broken_by_text(rule: FieldRule, text: str) -> str | None:
    if not text and not rule.may_be_empty:
        return must_not_be_empty(rule)
    is_too_long = rule.max_utf8_bytes is not None and len(text.encode()) > rule.max_utf8_bytes
    return must_be_shorter(rule) if is_too_long else None


def _broken_by_number(rule: FieldRule, value: Any) -> str | None:
    if isinstance(value, str):
        if _TOO_SMALL.fullmatch(value):
            return must_be_at_least(rule)
        return must_be_at_most(rule) if _TOO_LARGE.fullmatch(value) else must_be_typed(rule)
    if isinstance(value, bool) or not isinstance(value, int):
        return must_be_typed(rule)
    if value < (SMALLEST_BIGINT if rule.at_least is None else rule.at_least):
        return must_be_at_least(rule)
    return must_be_at_most(rule) if value > (LARGEST_BIGINT if rule.at_most is None else rule.at_most) else None


def _letter(message: Message, place: int | None, cause: str | None, element: Any) -> dict[str, Any]:
    value = message.value
    if place is not None:
        if isinstance(element, str) and _WRITTEN_OTHERWISE.search(element):
            raise _NotPlain
        value = json_text(element).encode()
    return {
        "appended_at_ms": message.appended_at_ms,
        "topic": message.topic,
        "partition": message.partition,
        "offset": message.offset,
        "element_index": place,
        "cause": cause,
        "value": value,
    }
