"""The second reading of messages in which the first found a fault: element by element, with causes.

Only messages that `decode` has marked are read here, once more from the topic. Good elements are counted; bad ones
become dead letters with their own text. Elements that `decode` has counted are not counted again.
"""

from functools import cache
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from pipeline.stream.reading.column_cache import select
from pipeline.stream.reading.decode import END_KEY, EXEMPT, IGNORED, REFUSED, has_replacement_character, is_suspect
from pipeline.stream.reading.event_rules import EVENT_STRUCT, TEXT_STRUCT, broken_rule, parser_options
from pipeline.stream.reading.field_rules import FIELD_RULES, NAMES_NOT_UTF8, NO_JSON, NO_OBJECT, NO_OBJECTS

DEAD_LETTER_COLUMNS: Final = ("appended_at_ms", "topic", "partition", "offset", "element_index", "cause", "value")

_LEADING_BLANKS = r"^[ \t\r\n]+"
_PLACE = ("topic", "partition", "offset", "appended_at_ms")
_OF_THE_MESSAGE = (*_PLACE, "unread", "is_utf8", "is_json", "is_array", "opening")
_EVENT_FIELDS = tuple(rule.name for rule in FIELD_RULES)
_FRAME: Final = f"{END_KEY} ARRAY<STRING>, _corrupt STRING"
_TYPED: Final = EVENT_STRUCT.removesuffix(">") + ", _corrupt: STRING>"


def decode_again(raw: DataFrame, marked: DataFrame, max_event_age_ms: int) -> DataFrame:
    """Read the marked messages element by element.

    Args:
        raw: the frame that `decode` has read, with the same rows.
        marked: one row per message: `partition` INT, `offset` BIGINT and `unread` BOOLEAN. If `unread` is true, all
            elements of the message are read; if false, only those that `decode` has found suspect.
        max_event_age_ms: as given to `decode`.

    Returns:
        The columns of `decode` and `DEAD_LETTER_COLUMNS`. `mark` is null, `EXEMPT`, `IGNORED` or `REFUSED`;
        `element_index` counts from 0 and is null where the message is not an array. `value` is the unchanged message,
        or the element's JSON text written again without blanks.
    """
    messages = raw.join(F.broadcast(marked), on=["partition", "offset"], how="inner")
    arrays = select(select(select(messages, _message), _framed), _split)
    elements = select(select(select(arrays, _zipped), _exploded), _parsed)
    return select(select(elements.filter(_is_wanted(max_event_age_ms)), _judged, max_event_age_ms), _marked)


def _message() -> tuple[Column, ...]:
    """The properties of a message as a whole."""
    text = F.col("value").cast("string")
    message = F.regexp_replace(text, _LEADING_BLANKS, "")
    framed = F.concat(F.lit(f'{{"{END_KEY}":['), message, F.lit(f',"{END_KEY}"]}}'))
    return (
        *_columns("topic", "partition", "offset", "unread", "value"),
        message.alias("message"),
        F.unix_millis("timestamp").alias("appended_at_ms"),
        F.is_valid_utf8(text).alias("is_utf8"),
        F.substring(message, 1, 1).alias("opening"),
        F.from_json(framed, _FRAME, parser_options(levels_around=2)).alias("frame"),
    )


def _framed() -> tuple[Column, ...]:
    values = F.col("frame")[END_KEY]
    is_framed = (F.size(values) == 2) & (F.try_element_at(values, F.lit(2)) == END_KEY)
    is_json = F.coalesce(F.col("frame")["_corrupt"].isNull() & is_framed, F.lit(False))
    return (
        *_columns(*_PLACE, "unread", "value", "message", "is_utf8", "opening"),
        is_json.alias("is_json"),
        (is_json & (F.col("opening") == "[")).alias("is_array"),
    )


def _split() -> tuple[Column, ...]:
    """The elements of an array, each as text and as a variant. Any other message is its own and only element."""
    is_array, message = F.col("is_array"), F.col("message")
    texts = F.when(is_array, F.from_json(message, "ARRAY<STRING>", parser_options())).otherwise(F.array(message))
    return (
        *_columns(*_OF_THE_MESSAGE),
        F.when(~is_array, F.col("value")).alias("value"),
        texts.alias("texts"),
        F.when(is_array, F.from_json(message, "ARRAY<VARIANT>", parser_options())).alias("variants"),
    )


def _zipped() -> tuple[Column, ...]:
    texts, variants = F.col("texts"), F.col("variants")
    is_empty = F.col("is_array") & (F.size(texts) == 0)
    no_variants = F.array_repeat(F.lit(None).cast("variant"), F.size(texts))
    pairs = F.arrays_zip(
        texts.alias("element"),
        F.when(F.size(variants) == F.size(texts), variants).otherwise(no_variants).alias("variant"),
    )
    return (*_columns(*_OF_THE_MESSAGE, "value"), is_empty.alias("is_empty"), pairs.alias("pairs"))


def _exploded() -> tuple[Column, ...]:
    """One row per element, and one row for an empty array.

    The row of an array's element holds only that element and not the message: a message of one megabyte may have half
    a million elements. The explode is in a select of its own, because everything beside it is computed, and kept, for
    each row. It has the outer form: from the plain one Spark infers a filter on the array, and to apply that it would
    parse all messages of the batch, not only the marked ones.
    """
    return (
        *_columns(*_OF_THE_MESSAGE, "value", "is_empty"),
        F.posexplode_outer("pairs").alias("position", "pair"),
    )


def _parsed() -> tuple[Column, ...]:
    element, variant = F.col("pair")["element"], F.col("pair")["variant"]
    return (
        *_columns(*_OF_THE_MESSAGE, "value", "is_empty", "position"),
        element.alias("element"),
        variant.alias("variant"),
        F.from_json(element, _TYPED, parser_options()).alias("typed"),
        F.from_json(element, TEXT_STRUCT, parser_options()).alias("text"),
        F.coalesce(F.schema_of_variant(variant), F.lit("")).alias("kind"),
    )


@cache
def _is_wanted(max_event_age_ms: int) -> Column:
    return F.col("unread") | is_suspect(lambda name: F.col("typed")[name], max_event_age_ms)


def _judged(max_event_age_ms: int) -> tuple[Column, ...]:
    typed, text, is_array = F.col("typed"), F.col("text"), F.col("is_array")
    is_object = (F.substring("element", 1, 1) == "{") & (F.col("kind") != "STRING")
    cause = (
        F.when(~F.col("is_json"), F.lit(NO_JSON))
        .when(~F.col("opening").isin("{", "["), F.lit(NO_OBJECTS))
        .when(~F.coalesce(is_object, F.lit(False)), F.lit(NO_OBJECT))
        .when(
            ~F.col("is_utf8") & has_replacement_character(lambda name: typed[name]),
            F.lit(NAMES_NOT_UTF8),
        )
        .otherwise(broken_rule(lambda name: typed[name], max_event_age_ms, lambda name: text[name]))
    )
    return (
        F.col("typed.*"),
        *_columns(*_PLACE, "is_empty"),
        F.when(is_array, F.col("position")).alias("element_index"),
        F.when(F.col("is_empty"), None).otherwise(cause).alias("cause"),
        F.when(is_array, _text_of_element()).otherwise(F.col("value")).alias("value"),
    )


def _marked() -> tuple[Column, ...]:
    mark = (
        F.when(F.col("is_empty"), F.lit(IGNORED).cast("bigint"))
        .when(F.col("cause").isNotNull(), F.lit(REFUSED).cast("bigint"))
        .when(F.col("throttle_exempt"), F.lit(EXEMPT).cast("bigint"))
    )
    return (*_columns(*_EVENT_FIELDS, *DEAD_LETTER_COLUMNS), mark.alias("mark"))


def _columns(*names: str) -> tuple[Column, ...]:
    return tuple(F.col(name) for name in names)


def _text_of_element() -> Column:
    # As text, a JSON string has lost its quotes, and a JSON null has become SQL's null.
    quoted = F.when(F.col("kind") == "STRING", F.to_json("variant"))
    return F.coalesce(quoted, F.col("element"), F.lit("null")).cast("binary")
