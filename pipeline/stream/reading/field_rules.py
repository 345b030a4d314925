"""The rules of a usage event's fields, read from `UsageEvent`, and the words in which a broken one is told.

No field, type, range or cause is written twice: Spark's reading (`event_rules`) and the driver's (`driver_reading`)
both take them from here.
"""

from dataclasses import dataclass
from typing import Any, Final

from pydantic.fields import FieldInfo

from schemas.columns import columns
from schemas.usage import UsageEvent

LARGEST_BIGINT: Final = 2**63 - 1
SMALLEST_BIGINT: Final = -(2**63)
MANY_DIGITS: Final = "[0-9]{19,}"
"""A regular expression for at least as many digits as a number has that is more than a BIGINT holds."""

NO_JSON: Final = "value must be JSON"
NO_OBJECTS: Final = "value must be a JSON object or an array of objects"
NO_OBJECT: Final = "element must be a JSON object"
NAMES_NOT_UTF8: Final = "user, client_id and broker_id must be UTF-8"


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
        at_most=None if at_most == LARGEST_BIGINT else at_most,
        may_be_empty=not constraint("min_length"),
        max_utf8_bytes=constraint("max_utf8_bytes"),
    )


FIELD_RULES: Final = tuple(
    _field_rule(column.name, column.type.spark, UsageEvent.model_fields[column.name]) for column in columns(UsageEvent)
)


def must_be_typed(rule: FieldRule) -> str:
    """The cause of a value of another JSON type."""
    wanted = {"BIGINT": "a JSON integer", "BOOLEAN": "true or false", "STRING": "a JSON string"}[rule.spark_type]
    return f"'{rule.name}' must be {wanted}"


def must_be_present(rule: FieldRule) -> str:
    """The cause of a required field that is missing or null."""
    return f"'{rule.name}' must be present"


def must_not_be_empty(rule: FieldRule) -> str:
    """The cause of an empty text."""
    return f"'{rule.name}' must not be empty"


def must_be_shorter(rule: FieldRule) -> str:
    """The cause of a text of too many bytes."""
    return f"'{rule.name}' must be at most {rule.max_utf8_bytes} bytes of UTF-8"


def must_be_at_least(rule: FieldRule) -> str:
    """The cause of a number that is too small."""
    return f"'{rule.name}' must be at least {'-2^63' if rule.at_least is None else rule.at_least}"


def must_be_at_most(rule: FieldRule) -> str:
    """The cause of a number that is too large."""
    return f"'{rule.name}' must be at most {LARGEST_BIGINT if rule.at_most is None else rule.at_most}"


def must_be_younger(max_event_age_ms: int) -> str:
    """The cause of an event that was old when its record was appended."""
    return f"'event_time_ms' must be at most {max_event_age_ms} ms before the append time of its record"
