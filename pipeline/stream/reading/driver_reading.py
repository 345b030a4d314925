"""Reads messages with faults on the driver, element by element and with causes, where that gives the same as Spark.

A Spark job for them costs as much as a small batch itself. Python reads a few messages in less than a millisecond, but
not all of them as Spark does. So it reads plain ones only, and leaves every other message to `second_reading`. What is
refused, and with which words, comes from the same `FIELD_RULES`.

A message is plain if it is UTF-8 without escapes, is not deeply nested, and holds no number that Spark would write in
another way, no key twice and no name that is neither a text nor an integer.
"""

import json
import math
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
from pipeline.stream.reading.read_part import ReadPart, put_together
from pipeline.stream.reading.reading_rules import ReadingRules

_MOST_BRACKETS: Final = 100  # far below the depth at which Spark's parser gives up
_MOST_DIGITS: Final = 100  # and the length of a number
_DIGITS = re.compile(rf"[0-9]{{{_MOST_DIGITS}}}")
_LAST_OF_TWO_BYTES: Final = "\uffff"
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
        events = [_event(fields) for fields, _ in self.events]
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
        except _NotPlain:
            read.left.append(message)
            continue
        read.letters += refused
        read.ignored_count += not elements
        read.events += [(one[2], message.appended_at_ms) for one in elements if one[1] is None]
    return read


def _judged(message: Message, max_event_age_ms: int) -> list[tuple[int | None, str | None, Any]]:
    """Place, cause and content of each element; a message that is no array of elements is its own and only one."""
    text = _plain_text(message.value)
    try:
        parsed = _DECODER.decode(text)
    except json.JSONDecodeError:
        return [(None, NO_JSON, None)]
    if isinstance(parsed, list):
        return [(place, _cause(one, message, max_event_age_ms), one) for place, one in enumerate(parsed)]
    if not isinstance(parsed, dict):
        return [(None, NO_OBJECTS, None)]
    return [(None, _cause(parsed, message, max_event_age_ms), parsed)]


def _plain_text(value: bytes | None) -> str:
    if value is None or b"\\" in value:
        raise _NotPlain
    try:
        text = value.decode()
    except UnicodeDecodeError as exc:
        raise _NotPlain from exc
    if "\ufffd" in text or "\ufeff" in text or _DIGITS.search(text) or _depth(text) > _MOST_BRACKETS:
        raise _NotPlain
    return text


def _depth(text: str) -> int:
    """At least how deeply nested the message is; brackets inside names count, too."""
    deepest = depth = 0
    for bracket in _NO_BRACKETS.sub("", text):
        depth += 1 if bracket in "[{" else -1
        deepest = max(deepest, depth)
    return deepest


def _integer(literal: str) -> int:
    if literal == "-0":
        raise _NotPlain
    return int(literal)


def _other_number(literal: str) -> float:
    number = float(literal)
    if not math.isfinite(number):
        raise _NotPlain
    return number


def _no_constant(_name: str) -> float:
    # NaN and Infinity are not JSON.
    message = "not JSON"
    raise json.JSONDecodeError(message, "", 0)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise _NotPlain
    return fields


_DECODER: Final = json.JSONDecoder(
    parse_int=_integer, parse_float=_other_number, parse_constant=_no_constant, object_pairs_hook=_object
)


def _cause(element: Any, message: Message, max_event_age_ms: int) -> str | None:
    """The first rule that an element breaks, as `event_rules.broken_rule` says it; None for a good event."""
    if not isinstance(element, dict):
        return NO_OBJECT
    for rule in FIELD_RULES:
        value = element.get(rule.name)
        if (cause := _broken(rule, value)) is not None:
            return cause
    too_old = element["event_time_ms"] < message.appended_at_ms - max_event_age_ms
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


def _broken_by_text(rule: FieldRule, value: Any) -> str | None:
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise _NotPlain  # it is read as its JSON text, as Spark writes it
    text = str(value)
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


def _holds_fraction(value: Any) -> bool:
    """Whether a number is in it that Spark may write with other digits."""
    if isinstance(value, dict):
        return any(map(_holds_fraction, value.values()))
    return any(map(_holds_fraction, value)) if isinstance(value, list) else isinstance(value, float)


def _event(fields: Mapping[str, Any]) -> SimpleNamespace:
    """An event for `usage_of`. Only a name may be of another type than its column: an integer is read as its text."""
    values = {rule.name: fields.get(rule.name) for rule in FIELD_RULES}
    return SimpleNamespace(
        **{name: str(value) if name in _NAMES and value is not None else value for name, value in values.items()}
    )


def _letter(message: Message, place: int | None, cause: str | None, element: Any) -> dict[str, Any]:
    value = message.value
    if place is not None:
        if _holds_fraction(element):
            raise _NotPlain
        text = json.dumps(element, ensure_ascii=False, separators=(",", ":"))
        if max(text) > _LAST_OF_TWO_BYTES:
            raise _NotPlain  # Spark writes the others as two escapes
        value = text.encode()
    return {
        "appended_at_ms": message.appended_at_ms,
        "topic": message.topic,
        "partition": message.partition,
        "offset": message.offset,
        "element_index": place,
        "cause": cause,
        "value": value,
    }
