"""The rules of a usage event as SQL expressions, made of `FIELD_RULES`."""

from collections.abc import Callable
from functools import reduce
from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F

from pipeline.stream.reading.field_rules import (
    FIELD_RULES,
    MANY_DIGITS,
    FieldRule,
    must_be_at_least,
    must_be_at_most,
    must_be_present,
    must_be_shorter,
    must_be_typed,
    must_be_younger,
    must_not_be_empty,
)

FieldOf = Callable[[str], Column]
"""Field name to the column with that field's value."""


EVENT_STRUCT: Final = "STRUCT<" + ", ".join(f"{rule.name}: {rule.spark_type}" for rule in FIELD_RULES) + ">"
TEXT_STRUCT: Final = "STRUCT<" + ", ".join(f"{rule.name}: STRING" for rule in FIELD_RULES) + ">"

_DEEPEST: Final = 1_000  # Jackson's own limit for any JSON
_OPTIONS: Final = {
    "mode": "PERMISSIVE",
    "columnNameOfCorruptRecord": "_corrupt",
    # Both are on by default in Spark and not JSON.
    "allowSingleQuotes": "false",
    "allowNonNumericNumbers": "false",
}


def parser_options(levels_around: int = 0) -> dict[str, str]:
    """Options of `from_json`: a message of 1000 nested levels is read, a deeper one is no JSON.

    Args:
        levels_around: how many levels the caller has put around the message; they do not count.
    """
    return {**_OPTIONS, "maxNestingDepth": str(_DEEPEST + levels_around)}


def broken_rule(typed: FieldOf, max_event_age_ms: int, text: FieldOf | None = None) -> Column:
    """The first rule that an event breaks, in the order of the model's fields; then the rule of its age.

    The frame has the record's append time as `appended_at_ms`. The age counts from there, and not from the time of
    reading: usage of a backlog is still usage.

    Args:
        typed: the fields as parsed into their types; null where missing, null or of another type.
        max_event_age_ms: an event may be dated this long before its record's append time, inclusive.
        text: the same fields as JSON text. Without it a value of another type counts as missing.

    Returns:
        STRING: the cause for `dead_letters`, the same text for every event with the same fault; null for a good event.
    """
    causes: list[tuple[Column, str]] = []
    for rule in FIELD_RULES:
        if text is not None:
            causes += _type_causes(rule, _is_ill_typed(rule, typed(rule.name), text(rule.name)), text(rule.name))
        causes += _value_causes(rule, typed(rule.name))
    # Not the difference of both: event times go down to -2^63, and it would overflow.
    is_too_old = typed("event_time_ms") < F.col("appended_at_ms") - F.lit(max_event_age_ms)
    causes.append((is_too_old, must_be_younger(max_event_age_ms)))
    first, *others = causes
    return reduce(lambda chain, cause: chain.when(cause[0], F.lit(cause[1])), others, F.when(first[0], F.lit(first[1])))


def _is_ill_typed(rule: FieldRule, typed: Column, text: Column) -> Column:
    """True if the text is not the value. For a field written twice the parser keeps the last value it could read."""
    if rule.spark_type == "STRING":
        return typed.isNull() & text.isNotNull()
    # A truth value is compared as text: a cast would take "1" for true. An integer is not: -0 is 0.
    is_read = typed.cast("string") == text if rule.spark_type == "BOOLEAN" else typed == text.try_cast("bigint")
    return text.isNotNull() & ~F.coalesce(is_read, F.lit(False))


def _type_causes(rule: FieldRule, ill_typed: Column, text: Column) -> list[tuple[Column, str]]:
    causes = [(ill_typed, must_be_typed(rule))]
    if rule.spark_type == "BIGINT":
        too_small, too_large = text.rlike(f"^-{MANY_DIGITS}$"), text.rlike(f"^{MANY_DIGITS}$")
        causes[:0] = [(ill_typed & too_small, must_be_at_least(rule)), (ill_typed & too_large, must_be_at_most(rule))]
    return causes


def _value_causes(rule: FieldRule, value: Column) -> list[tuple[Column, str]]:
    causes = []
    if rule.required:
        causes.append((value.isNull(), must_be_present(rule)))
    if not rule.may_be_empty:
        causes.append((value == F.lit(""), must_not_be_empty(rule)))
    if rule.max_utf8_bytes is not None:
        causes.append((F.octet_length(value) > F.lit(rule.max_utf8_bytes), must_be_shorter(rule)))
    if rule.at_least is not None:
        causes.append((value < F.lit(rule.at_least), must_be_at_least(rule)))
    if rule.at_most is not None:
        causes.append((value > F.lit(rule.at_most), must_be_at_most(rule)))
    return causes
