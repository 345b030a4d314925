"""The rules of a usage event as SQL expressions, read from `UsageEvent`: no field, type or range is written twice."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import Any, Final

from pydantic.fields import FieldInfo
from pyspark.sql import Column
from pyspark.sql import functions as F

from schemas.columns import columns
from schemas.usage_event import UsageEvent

_LARGEST_BIGINT = 2**63 - 1
_MANY_DIGITS = "[0-9]{19,}"  # more than a BIGINT holds

FieldOf = Callable[[str], Column]
"""Field name to the column with that field's value."""


@dataclass(frozen=True, slots=True)
class FieldRule:
    """The rule for one field of a usage event.

    Attributes:
        name: the field.
        spark_type: its type in Spark's words: STRING, BIGINT or BOOLEAN.
        required: True if null or missing is refused.
        default: the value of a null or missing optional field; None for a measure: no request of that type.
        at_least: smallest value, inclusive; None for no bound.
        at_most: largest value, inclusive; None for no bound below BIGINT's own.
        may_be_empty: False if "" is refused.
        max_utf8_bytes: most bytes of a text, inclusive; None for no bound.
    """

    name: str
    spark_type: str
    required: bool
    default: Any
    at_least: int | None
    at_most: int | None
    may_be_empty: bool
    max_utf8_bytes: int | None


def _field_rule(name: str, spark_type: str, field: FieldInfo) -> FieldRule:
    def constraint(key: str) -> int | None:
        return next((value for part in field.metadata if (value := getattr(part, key, None)) is not None), None)

    below = constraint("lt")
    at_most = constraint("le") if below is None else below - 1
    return FieldRule(
        name=name,
        spark_type=spark_type,
        required=field.is_required(),
        default=None if field.is_required() else field.default,
        at_least=constraint("ge"),
        at_most=None if at_most == _LARGEST_BIGINT else at_most,
        may_be_empty=not constraint("min_length"),
        max_utf8_bytes=constraint("max_utf8_bytes"),
    )


FIELD_RULES: Final = tuple(
    _field_rule(column.name, column.type.spark, UsageEvent.model_fields[column.name]) for column in columns(UsageEvent)
)
EVENT_STRUCT: Final = "STRUCT<" + ", ".join(f"{rule.name}: {rule.spark_type}" for rule in FIELD_RULES) + ">"
TEXT_STRUCT: Final = "STRUCT<" + ", ".join(f"{rule.name}: STRING" for rule in FIELD_RULES) + ">"

PARSER_OPTIONS: Final = {
    "mode": "PERMISSIVE",
    "columnNameOfCorruptRecord": "_corrupt",
    # Both are on by default in Spark and not JSON.
    "allowSingleQuotes": "false",
    "allowNonNumericNumbers": "false",
}


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
    age = f"'event_time_ms' must be at most {max_event_age_ms} ms before the append time of its record"
    causes.append((is_too_old, age))
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
    if rule.spark_type == "BIGINT":
        low = _at_least(rule) if rule.at_least is not None else f"'{rule.name}' must be at least -2^63"
        return [
            (ill_typed & text.rlike(f"^-{_MANY_DIGITS}$"), low),
            (ill_typed & text.rlike(f"^{_MANY_DIGITS}$"), _at_most(rule)),
            (ill_typed, f"'{rule.name}' must be a JSON integer"),
        ]
    wanted = "true or false" if rule.spark_type == "BOOLEAN" else "a JSON string"
    return [(ill_typed, f"'{rule.name}' must be {wanted}")]


def _value_causes(rule: FieldRule, value: Column) -> list[tuple[Column, str]]:
    causes = []
    if rule.required:
        causes.append((value.isNull(), f"'{rule.name}' must be present"))
    if not rule.may_be_empty:
        causes.append((value == F.lit(""), f"'{rule.name}' must not be empty"))
    if rule.max_utf8_bytes is not None:
        too_long = F.octet_length(value) > F.lit(rule.max_utf8_bytes)
        causes.append((too_long, f"'{rule.name}' must be at most {rule.max_utf8_bytes} bytes of UTF-8"))
    if rule.at_least is not None:
        causes.append((value < F.lit(rule.at_least), _at_least(rule)))
    if rule.at_most is not None:
        causes.append((value > F.lit(rule.at_most), _at_most(rule)))
    return causes


def _at_least(rule: FieldRule) -> str:
    return f"'{rule.name}' must be at least {rule.at_least}"


def _at_most(rule: FieldRule) -> str:
    return f"'{rule.name}' must be at most {_LARGEST_BIGINT if rule.at_most is None else rule.at_most}"
