"""The first rule that an event breaks, of values that Python has parsed: `event_rules.broken_rule` for the driver.

A flood of refused events is read here one by one, so everything that does not depend on the event is made once.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from pipeline.stream.reading.field_rules import (
    FIELD_RULES,
    LARGEST_BIGINT,
    MANY_DIGITS,
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

_TOO_SMALL: Final = re.compile(f"-{MANY_DIGITS}")
_TOO_LARGE: Final = re.compile(MANY_DIGITS)

_Check = Callable[[Any], str | None]


def cause_of(fields: Mapping[str, Any], appended_at_ms: int, max_event_age_ms: int) -> str | None:
    """The first rule that an event breaks, in the order of the model's fields, then that of its age; None if good.

    Args:
        fields: its members by name; None counts as missing. Names are texts already, unknown members do no harm.
        appended_at_ms: of its record.
        max_event_age_ms: see `ReadingRules`; an event of just this age is good.
    """
    for name, cause_if_missing, check in _CHECKS:
        value = fields.get(name)
        cause = cause_if_missing if value is None else check(value)
        if cause is not None:
            return cause
    is_too_old = fields["event_time_ms"] < appended_at_ms - max_event_age_ms
    return must_be_younger(max_event_age_ms) if is_too_old else None


def _check_of(rule: FieldRule) -> _Check:
    return {"STRING": _text_check, "BIGINT": _number_check, "BOOLEAN": _flag_check}[rule.spark_type](rule)


def _text_check(rule: FieldRule) -> _Check:
    empty = None if rule.may_be_empty else must_not_be_empty(rule)
    most_bytes, too_long = rule.max_utf8_bytes, must_be_shorter(rule)

    def check(text: str) -> str | None:
        if not text:
            return empty
        return too_long if most_bytes is not None and len(text.encode()) > most_bytes else None

    return check


def _number_check(rule: FieldRule) -> _Check:
    at_least = SMALLEST_BIGINT if rule.at_least is None else rule.at_least
    at_most = LARGEST_BIGINT if rule.at_most is None else rule.at_most
    too_small, too_large, no_number = must_be_at_least(rule), must_be_at_most(rule), must_be_typed(rule)

    def check(value: Any) -> str | None:
        if type(value) is int:  # a bool is no number
            return too_small if value < at_least else too_large if value > at_most else None
        if isinstance(value, str):
            if _TOO_SMALL.fullmatch(value):
                return too_small
            return too_large if _TOO_LARGE.fullmatch(value) else no_number
        return no_number

    return check


def _flag_check(rule: FieldRule) -> _Check:
    no_flag = must_be_typed(rule)
    return lambda value: None if isinstance(value, bool) else no_flag


_CHECKS: Final = tuple(
    (rule.name, must_be_present(rule) if rule.required else None, _check_of(rule)) for rule in FIELD_RULES
)
