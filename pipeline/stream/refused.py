"""The second look at messages the fast reading did not like: element by element, with causes.

Only messages marked by `decode` come here, re-read from the topic. Good elements are counted, bad ones become dead
letters with their own text; nothing of what `decode` has counted is counted twice.
"""

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from pipeline.stream.decode import END_KEY, EXEMPT, IGNORED, REFUSED, has_replacement_character, is_suspect
from pipeline.stream.event_rules import EVENT_STRUCT, FIELD_RULES, PARSER_OPTIONS, TEXT_STRUCT, broken_rule

DEAD_LETTER_COLUMNS: Final = ("appended_at_ms", "topic", "partition", "offset", "element_index", "cause", "value")

_LEADING_BLANKS = r"^[ \t\r\n]+"
_PLACE = ("topic", "partition", "offset", "appended_at_ms")
_OF_THE_MESSAGE = (*_PLACE, "unread", "is_utf8", "is_json", "opening", "is_empty")
_EVENT_FIELDS = tuple(rule.name for rule in FIELD_RULES)


def decode_again(raw: DataFrame, marked: DataFrame) -> DataFrame:
    """Read the marked messages element by element.

    Args:
        raw: the frame `decode` has read, with the same rows.
        marked: `partition` INT, `offset` BIGINT and `unread` BOOLEAN: for true all elements of the message are
            read, for false only those that `decode` has called suspect. One row a message.

    Returns:
        The columns of `decode` and `DEAD_LETTER_COLUMNS`. `mark` is null, `EXEMPT`, `IGNORED` or `REFUSED`;
        `element_index` counts from 0 and is null where the message is not an array. `value` is the message as it is,
        or the element's JSON text, re-written without blanks.
    """
    elements = _elements(_messages(raw, marked))
    typed, text = F.col("typed"), F.col("text")
    is_object = (F.substring("element", 1, 1) == "{") & (F.col("kind") != "STRING")
    suspect = is_suspect(lambda name: typed[name])
    causes = (
        F.when(~F.col("is_json"), F.lit("value must be JSON"))
        .when(~F.col("opening").isin("{", "["), F.lit("value must be a JSON object or an array of objects"))
        .when(~F.coalesce(is_object, F.lit(False)), F.lit("element must be a JSON object"))
        .when(
            ~F.col("is_utf8") & has_replacement_character(lambda name: typed[name]),
            F.lit("user, client_id and broker_id must be UTF-8"),
        )
        .otherwise(broken_rule(lambda name: typed[name], lambda name: text[name]))
    )
    position = F.when(F.col("opening") == "[", F.col("position"))
    return (
        elements.filter(F.col("unread") | suspect)
        .select(
            "typed.*",
            "appended_at_ms",
            "topic",
            "partition",
            F.col("offset"),
            F.when(F.col("is_json"), position).alias("element_index"),
            F.when(F.col("is_empty"), None).otherwise(causes).alias("cause"),
            F.when(F.col("is_json") & (F.col("opening") == "["), _text_of_element())
            .otherwise(F.col("value"))
            .alias("value"),
            "is_empty",
        )
        .select(
            *_EVENT_FIELDS,
            *DEAD_LETTER_COLUMNS,
            F.when(F.col("is_empty"), F.lit(IGNORED).cast("bigint"))
            .when(F.col("cause").isNotNull(), F.lit(REFUSED).cast("bigint"))
            .when(F.col("throttle_exempt"), F.lit(EXEMPT).cast("bigint"))
            .alias("mark"),
        )
    )


def _messages(raw: DataFrame, marked: DataFrame) -> DataFrame:
    """The marked messages, with what each is as a whole."""
    text = F.col("value").cast("string")
    message = F.regexp_replace(text, _LEADING_BLANKS, "")
    framed = F.concat(F.lit(f'{{"{END_KEY}":['), message, F.lit(f',"{END_KEY}"]}}'))
    return (
        raw.join(F.broadcast(marked), on=["partition", "offset"], how="inner")
        .select(
            "value",
            message.alias("message"),
            "topic",
            "partition",
            "offset",
            "unread",
            F.unix_millis("timestamp").alias("appended_at_ms"),
            F.is_valid_utf8(text).alias("is_utf8"),
            F.substring(message, 1, 1).alias("opening"),
            F.from_json(framed, f"{END_KEY} ARRAY<STRING>, _corrupt STRING", PARSER_OPTIONS).alias("frame"),
        )
        .withColumn("is_json", F.coalesce(_is_framed(), F.lit(False)))
    )


def _is_framed() -> Column:
    values = F.col("frame")[END_KEY]
    return F.col("frame")["_corrupt"].isNull() & (F.size(values) == 2) & (F.try_element_at(values, F.lit(2)) == END_KEY)


def _elements(messages: DataFrame) -> DataFrame:
    """One row an element, parsed by itself; one for a message that is no array.

    A row of an array holds nothing of the message but its element: a message of one megabyte may have half a million.
    """
    is_array = F.col("is_json") & (F.col("opening") == "[")
    no_variant = F.lit(None).cast("variant")
    return (
        messages.withColumn(
            "element",
            F.when(is_array, F.from_json("message", "ARRAY<STRING>", PARSER_OPTIONS)).otherwise(F.array("message")),
        )
        .withColumn("variant", F.when(is_array, F.from_json("message", "ARRAY<VARIANT>", PARSER_OPTIONS)))
        .withColumn("is_empty", is_array & (F.size("element") == 0))
        .withColumn(
            "element", F.when(F.col("is_empty"), F.array(F.lit(None).cast("string"))).otherwise(F.col("element"))
        )
        .withColumn("variant", F.when(F.size("variant") == F.size("element"), F.col("variant")))
        .withColumn("variant", F.coalesce("variant", F.array_repeat(no_variant, F.size("element"))))
        .select(
            *_OF_THE_MESSAGE,
            F.when(~is_array, F.col("value")).alias("value"),
            F.arrays_zip("element", "variant").alias("elements"),
        )
        # In a select of its own: what is written beside an explode is computed, and its columns kept, for each row.
        .select(*_OF_THE_MESSAGE, "value", F.posexplode("elements").alias("position", "pair"))
        .select(*_OF_THE_MESSAGE, "value", "position", "pair.element", "pair.variant")
        .select(
            "*",
            F.from_json("element", EVENT_STRUCT.removesuffix(">") + ", _corrupt: STRING>", PARSER_OPTIONS).alias(
                "typed"
            ),
            F.from_json("element", TEXT_STRUCT, PARSER_OPTIONS).alias("text"),
            F.coalesce(F.schema_of_variant("variant"), F.lit("")).alias("kind"),
        )
    )


def _text_of_element() -> Column:
    # Parsed as a string, a JSON string has lost its quotes; and JSON's null is SQL's.
    quoted = F.when(F.col("kind") == "STRING", F.to_json("variant"))
    return F.coalesce(quoted, F.col("element"), F.lit("null")).cast("binary")
