"""The first reading of Kafka messages as usage events: fast, each message is parsed once, as a whole.

A message is one JSON object or an array of objects. This reading does not explain what it refuses: it marks the
message, or the element, and `second_reading` reads it again. So for good messages no causes are
carried along, and the cost is little more than that of a bare `from_json`.
"""

import secrets
from functools import cache
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from pipeline.stream.reading.column_cache import select
from pipeline.stream.reading.event_rules import EVENT_STRUCT, FieldOf, broken_rule, parser_options
from pipeline.stream.reading.field_rules import FIELD_RULES

# Marks: null is a good event. Negative marks are the five below. Any other says what to read again: see
# `_read_again_at`.
EXEMPT: Final = -1
"""A good event whose request time is exempt."""
IGNORED: Final = -2
"""A message with a null value or an empty array: it holds nothing, and nothing is wrong with it."""
REFUSED: Final = -3
"""Not a usage event; only the second reading sets this mark."""
PACKED: Final = -4
"""A packed message, which Spark does not read: see `packed_messages`."""
FOREIGN: Final = -5
"""A good event of a user of another share; only the sums have this mark."""
PACKED_BEGIN: Final = b"\xff\xff\xff\xff"
"""The first bytes of every Arrow IPC stream, and of no JSON: they are not UTF-8."""
OFFSET_BITS: Final = 47
"""The low 47 bits of a mark hold the offset. The bits above hold twice the partition (below 2^15), plus 1 for a whole
message."""

# from_json stops at the end of the first JSON value and does not see what follows it, as in `{...} garbage`. So the
# last bracket of a message is replaced by an end of our own, which holds a key drawn at random. The key is found in its
# place if, and only if, the message is one object or one array.
END_KEY: Final = f"end_{secrets.token_hex(8)}"
_ELEMENT = EVENT_STRUCT.replace("STRUCT<", f"STRUCT<{END_KEY}: BOOLEAN, ", 1)
_OBJECT = _ELEMENT.replace("STRUCT<", "STRUCT<_corrupt: STRING, ", 1)
_ARRAY = f"STRUCT<_corrupt: STRING, elements: ARRAY<{_ELEMENT}>>"
_FIELDS: Final = tuple(rule.name for rule in FIELD_RULES)
_NAMES: Final = tuple(rule.name for rule in FIELD_RULES if rule.spark_type == "STRING")
_REPLACEMENT_CHARACTER: Final = "\ufffd"  # what from_json reads invalid UTF-8 as


def decode(raw: DataFrame, max_event_age_ms: int) -> DataFrame:
    """Read the usage events of a frame of messages.

    A user, client-id or broker that is not a JSON string is taken as its JSON text; a lone surrogate becomes `?`.
    A null optional field counts as absent. If a field is written twice, the last one counts.

    Args:
        raw: frame with the columns `source.RAW_COLUMNS`, streaming or static.
        max_event_age_ms: see `ReadingRules`.

    Returns:
        One row per element, and one row for a message without readable elements. Columns: the fields of `UsageEvent`
        (optional ones null where absent), `appended_at_ms` BIGINT and `mark` BIGINT. The mark is null, `EXEMPT`,
        `IGNORED`, `PACKED`, or says what to read again. The event's fields have a meaning only where the mark is null
        or `EXEMPT`.
    """
    elements = select(select(raw, _parsed), _exploded).filter(_is_element())
    return select(select(elements, _fields), _marked, max_event_age_ms)


def _parsed() -> tuple[Column, ...]:
    text = F.col("value").cast("string")
    length = F.octet_length("value")
    cut = F.substring(F.col("value"), F.lit(1), length - 1).cast("string")
    opening = F.substring(text, 1, 1)
    closing = F.substring(F.col("value"), length, F.lit(1)).cast("string")
    an_object = F.concat(cut, F.lit(f',"{END_KEY}":true}}'))
    an_array = F.concat(F.lit('{"elements":'), cut, F.lit(f',{{"{END_KEY}":true}}]}}'))
    parsed_object = F.from_json(an_object, _OBJECT, parser_options())
    parsed_array = F.from_json(an_array, _ARRAY, parser_options(levels_around=1))
    return (
        F.when((opening == "{") & (closing == "}"), parsed_object).alias("object"),
        F.when((opening == "[") & (closing == "]"), parsed_array).alias("array"),
        opening.alias("opening"),
        is_packed().alias("is_packed"),
        F.unix_millis("timestamp").alias("appended_at_ms"),
        F.col("partition"),
        F.col("offset"),
    )


def _exploded() -> tuple[Column, ...]:
    is_object = F.col("opening") == "{"
    an_object, elements = F.col("object"), F.col("array")["elements"]
    object_is_whole = an_object["_corrupt"].isNull() & an_object[END_KEY].isNotNull()
    array_is_whole = F.col("array")["_corrupt"].isNull() & F.try_element_at(elements, F.lit(-1))[END_KEY].isNotNull()
    is_whole = F.when(is_object, object_is_whole).otherwise(array_is_whole)
    return (
        an_object,
        # The outer form. From the plain one Spark infers a filter on the array, and parses every value again for it.
        F.explode_outer(F.when(is_whole, elements)).alias("element"),
        is_object.alias("is_object"),
        F.col("opening").isNull().alias("is_null"),
        F.coalesce(is_whole, F.lit(False)).alias("is_whole"),
        F.col("is_packed"),
        F.col("appended_at_ms"),
        F.col("partition"),
        F.col("offset"),
    )


@cache
def _is_element() -> Column:
    return F.col("element")[END_KEY].isNull()


def _fields() -> tuple[Column, ...]:
    is_object = F.col("is_object")
    return (
        *[F.when(is_object, F.col("object")[name]).otherwise(F.col("element")[name]).alias(name) for name in _FIELDS],
        *[F.col(name) for name in ("is_null", "is_whole", "is_packed", "appended_at_ms", "partition", "offset")],
    )


def _marked(max_event_age_ms: int) -> tuple[Column, ...]:
    mark = (
        F.when(F.col("is_null"), F.lit(IGNORED).cast("bigint"))
        .when(F.col("is_packed"), F.lit(PACKED).cast("bigint"))
        .when(~F.col("is_whole"), _read_again_at(is_whole_message=True))
        .when(is_suspect(F.col, max_event_age_ms), _read_again_at(is_whole_message=False))
        .when(F.col("throttle_exempt"), F.lit(EXEMPT).cast("bigint"))
    )
    return (*[F.col(name) for name in _FIELDS], F.col("appended_at_ms"), mark.alias("mark"))


def _read_again_at(*, is_whole_message: bool) -> Column:
    """The mark of a message to read again: as a whole if nothing of it was counted, else only its suspect elements."""
    place = F.col("partition").cast("bigint") * 2 + int(is_whole_message)
    return F.shiftleft(place, OFFSET_BITS).bitwiseOR(F.col("offset"))


def is_packed() -> Column:
    """Whether the column `value` is a packed message; null for a null value."""
    return F.substring("value", 1, len(PACKED_BEGIN)) == F.lit(PACKED_BEGIN)


def is_suspect(field: FieldOf, max_event_age_ms: int) -> Column:
    """True for a well-typed event that breaks a rule, or that may have been written in an encoding other than UTF-8."""
    return broken_rule(field, max_event_age_ms).isNotNull() | has_replacement_character(field)


def has_replacement_character(field: FieldOf) -> Column:
    """True if a name holds U+FFFD: it was sent, or the parser has put it in place of invalid UTF-8. Never null."""
    found = F.lit(False)
    for name in _NAMES:
        found = found | F.coalesce(F.contains(field(name), F.lit(_REPLACEMENT_CHARACTER)), F.lit(False))
    return found
