"""Reads messages with faults on the driver, element by element and with causes, with the same result as Spark.

A Spark job for them costs more than a small batch itself, and anybody may write one such message per batch. Python
reads a few messages in less than a millisecond, and a flood of them several times as fast as Spark with two cores.
What is refused, and with which words, comes from the same `FIELD_RULES`.

Left to `second_reading` are only messages at which the parsers have limits of their own, deeply nested ones and long
numbers, and texts that Spark reads by a writer of its own.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from pipeline.stream.reading.collected_batch import DEAD_LETTER_SCHEMA
from pipeline.stream.reading.event_cause import cause_of
from pipeline.stream.reading.event_columns import EventTimes, usage_of
from pipeline.stream.reading.field_rules import FIELD_RULES, NAMES_NOT_UTF8, NO_JSON, NO_OBJECT, NO_OBJECTS
from pipeline.stream.reading.json_text import UnknownText, has_a_name_twice, json_text
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
_BLANKS: Final = " \t\n\r"
_CLOSING: Final = {"{": "}", "[": "]"}
_FIELDS: Final = tuple(rule.name for rule in FIELD_RULES)
_NAMES: Final = tuple(rule.name for rule in FIELD_RULES if rule.spark_type == "STRING")


class _NotPlain(Exception):
    """Spark may read this in another way."""


class Message(NamedTuple):
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


class DeadLetter(NamedTuple):
    """A row of `DEAD_LETTER_SCHEMA`, its columns in that order: a message, or an element of it, that is refused.

    Attributes:
        appended_at_ms: As of the message.
        topic: As of the message.
        partition: As of the message.
        offset: As of the message.
        element_index: Its place in an array, from 0; None if the whole message is refused.
        cause: What is wrong with it.
        value: The unchanged message, or the element's JSON text written again without blanks.
    """

    appended_at_ms: int
    topic: str
    partition: int
    offset: int
    element_index: int | None
    cause: str
    value: bytes | None


@dataclass
class Reread:
    """What was read again.

    Attributes:
        events: Good events, with their append times.
        letters: What was refused.
        ignored_count: Messages that hold nothing.
        left: The messages for `second_reading`.
    """

    events: list[tuple[Mapping[str, Any], int]] = field(default_factory=list)
    letters: list[DeadLetter] = field(default_factory=list)
    ignored_count: int = 0
    left: list[Message] = field(default_factory=list)

    def part(self, rules: ReadingRules) -> ReadPart:
        """What was read, summed."""
        events = [SimpleNamespace(**fields) for fields, _ in self.events]
        appended_at_ms = np.fromiter((at_ms for _, at_ms in self.events), np.int64, len(events))
        part = ReadPart(dead_letters=self._letter_rows(), ignored_count=self.ignored_count)
        return put_together([part, usage_of(events, EventTimes.of(events, appended_at_ms), rules)])

    def _letter_rows(self) -> pa.Table:
        columns = ([letter[place] for letter in self.letters] for place in range(len(DEAD_LETTER_SCHEMA)))
        arrays = [pa.array(column, kind) for column, kind in zip(columns, DEAD_LETTER_SCHEMA.types, strict=True)]
        return pa.table(arrays, schema=DEAD_LETTER_SCHEMA)


def read_again(messages: Sequence[Message], max_event_age_ms: int) -> Reread:
    """Read messages element by element, with causes.

    Args:
        messages: Each only once.
        max_event_age_ms: See `ReadingRules`.
    """
    read = Reread()
    for message in messages:
        try:
            events, letters = _read(message, max_event_age_ms)
        except (_NotPlain, UnknownText):
            read.left.append(message)
            continue
        read.events += events
        read.letters += letters
        read.ignored_count += not events and not letters
    return read


def _read(message: Message, max_event_age_ms: int) -> tuple[list[tuple[Mapping[str, Any], int]], list[DeadLetter]]:
    """Good events, with their append time, and what is refused; neither for an array without elements."""
    text, is_utf8 = _text(message.value)
    try:
        parsed = _parsed(text)
    except ValueError:
        return [], [_letter(message, NO_JSON)]
    if isinstance(parsed, tuple):
        fields, cause = _judged(parsed, is_utf8, message.appended_at_ms, max_event_age_ms)
        return ([(fields, message.appended_at_ms)], []) if cause is None else ([], [_letter(message, cause)])
    if not isinstance(parsed, list):
        return [], [_letter(message, NO_OBJECTS)]
    # Spark has no variant of an array with a name that is there twice, and then takes texts for what is in them.
    if any(isinstance(element, str) for element in parsed) and has_a_name_twice(parsed):
        raise _NotPlain
    events, letters = [], []
    for place, element in enumerate(parsed):
        fields, cause = _judged(element, is_utf8, message.appended_at_ms, max_event_age_ms)
        if cause is None:
            events.append((fields, message.appended_at_ms))
        else:
            letters.append(_letter_of_element(message, place, cause, element))
    return events, letters


def _judged(
    element: Any, is_utf8: bool, appended_at_ms: int, max_event_age_ms: int
) -> tuple[Mapping[str, Any], str | None]:
    """The fields of an event, and what is wrong with it; None if it is good."""
    if not isinstance(element, tuple):
        return {}, NO_OBJECT
    members = dict(element)  # of a name that is there twice, the last member
    for name in _NAMES:
        value = members.get(name)
        if value is not None and not (isinstance(value, str) and value.isascii()):
            members[name] = _name(value)
            if not is_utf8 and _REPLACEMENT_CHARACTER in members[name]:
                return {}, NAMES_NOT_UTF8
    cause = cause_of(members, appended_at_ms, max_event_age_ms)
    return {name: members.get(name) for name in _FIELDS} if cause is None else {}, cause


def _text(value: bytes | None) -> tuple[str, bool]:
    """A message as Spark's parser sees it, and whether it is UTF-8."""
    if value is None:
        raise _NotPlain
    try:
        text, is_utf8 = value.decode(), True
    except UnicodeDecodeError:
        text, is_utf8 = _HALF.sub(_REPLACEMENT_CHARACTER.encode(), value).decode(errors="replace"), False
    # What is shorter has neither so many digits nor so many brackets.
    if len(text) >= _MOST_DIGITS and (_DIGITS.search(text) or _depth(text) > _MOST_BRACKETS):
        raise _NotPlain
    return text, is_utf8


def _depth(text: str) -> int:
    """At least how deeply nested the message is; brackets inside names count, too."""
    if (at_most := text.count("[") + text.count("{")) <= _MOST_BRACKETS:
        return at_most
    deepest = depth = 0
    for bracket in _NO_BRACKETS.sub("", text):
        depth += 1 if bracket in "[{" else -1
        deepest = max(deepest, depth)
    return deepest


def _no_constant(_name: str) -> float:
    # NaN and Infinity are not JSON.
    raise ValueError


_DECODER: Final[Any] = json.JSONDecoder(parse_constant=_no_constant, object_pairs_hook=tuple)


def _parsed(text: str) -> Any:
    """The one JSON value of a text: a `JsonObject`, a list of values, or any other.

    Raises:
        ValueError: It is not one JSON value with nothing but blanks around it.
    """
    text = text.strip(_BLANKS)
    if text and _CLOSING.get(text[0], text[-1]) != text[-1]:
        raise ValueError  # json would look for the place of the fault in it, and a cut message is a common fault
    try:
        value, end = _DECODER.scan_once(text, 0)
    except StopIteration as no_value:
        raise ValueError from no_value
    if end != len(text):
        raise ValueError
    return value


def _name(value: Any) -> str:
    """A name as Spark reads it: one that is no text is taken as its JSON text, half a character as a question mark."""
    text = value if isinstance(value, str) else json_text(value)
    return text.encode(errors="replace").decode()


def _letter(message: Message, cause: str) -> DeadLetter:
    topic, partition, offset, appended_at_ms, value = message
    return DeadLetter(appended_at_ms, topic, partition, offset, None, cause, value)


def _letter_of_element(message: Message, place: int, cause: str, element: Any) -> DeadLetter:
    if isinstance(element, str) and _WRITTEN_OTHERWISE.search(element):
        raise _NotPlain
    topic, partition, offset, appended_at_ms, _ = message
    return DeadLetter(appended_at_ms, topic, partition, offset, place, cause, json_text(element).encode())
