"""Reads messages of good usage events at once, and hands back all others: msgspec, with types made of `FIELD_RULES`.

It takes a message only if Spark's reading takes all of it, with the same values: JSON of known fields, each of its type
and within its bounds. It says nothing about the others: `driver_reading` finds out what is wrong with them.
"""

from typing import Annotated, Any, Final

import msgspec

from pipeline.stream.reading.field_rules import FIELD_RULES, LARGEST_BIGINT, SMALLEST_BIGINT, FieldRule

FIELDS: Final = tuple(rule.name for rule in FIELD_RULES)
_TYPES: Final[dict[str, Any]] = {"STRING": str, "BIGINT": int, "BOOLEAN": bool}


def read_strictly(value: bytes) -> list[Any] | None:
    """The events of a message, each with the attributes `FIELDS`; None if the message is not for this reader.

    An event that is older than `ReadingRules.max_event_age_ms` is not refused here. An empty array has no events.

    Args:
        value: Of a Kafka message.
    """
    try:
        found = _DECODER.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError):  # a ValidationError is a DecodeError
        return None
    # msgspec counts characters, the rule counts bytes. A text has no more bytes than its message.
    if len(value) > _SHORTEST_LIMIT and (b"\\" in value or not value.isascii()):
        return None
    return found if isinstance(found, list) else [found]


def _annotation(rule: FieldRule) -> Any:
    if rule.spark_type == "BIGINT":
        bounds = msgspec.Meta(ge=_or(rule.at_least, SMALLEST_BIGINT), le=_or(rule.at_most, LARGEST_BIGINT))
    elif rule.spark_type == "STRING":
        bounds = msgspec.Meta(min_length=0 if rule.may_be_empty else 1, max_length=rule.max_utf8_bytes)
    else:
        bounds = msgspec.Meta()
    return Annotated[_TYPES[rule.spark_type], bounds]


def _or(bound: int | None, otherwise: int) -> int:
    return otherwise if bound is None else bound


def _event_type() -> Any:
    fields: list[Any] = [
        (rule.name, _annotation(rule)) if rule.required else (rule.name, _annotation(rule) | None, None)
        for rule in FIELD_RULES
    ]
    # gc=False: events hold no other objects that could hold them, so the collector need not visit thousands of them.
    return msgspec.defstruct("Event", fields, forbid_unknown_fields=True, kw_only=True, gc=False)


_SHORTEST_LIMIT: Final = min(rule.max_utf8_bytes for rule in FIELD_RULES if rule.max_utf8_bytes is not None)
_EVENT: Final[Any] = _event_type()
_DECODER: Final[Any] = msgspec.json.Decoder(_EVENT | list[_EVENT])
