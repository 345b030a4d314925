"""Sums usage events per sample window and client, and in the same pass counts everything that is not an event."""

from collections.abc import Sequence
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from pipeline.stream.reading.column_cache import group
from pipeline.stream.reading.decode import EXEMPT, FOREIGN, REFUSED
from pipeline.stream.reading.field_rules import FIELD_RULES
from pipeline.stream.reading.reading_rules import ReadingRules
from quota.shares import Share

LARGEST_SUM: Final = 2**53
"""The largest sum, 9 PB or 104 days in one sample window; larger ones are cut to it. Doubles are exact up to here."""

GROUP_KEYS: Final = ("sample_start_ms", "broker_id", "user", "client_id")
SUMS: Final = (
    "produced_bytes",
    "fetched_bytes",
    "io_time_ns",
    "network_time_ns",
    "request_count",
    "event_count",
    "clamped_count",
)
_DEFAULTS: Final = {rule.name: rule.default for rule in FIELD_RULES}


def aggregate(decoded: DataFrame, rules: ReadingRules, columns: Sequence[str] = ()) -> DataFrame:
    """Sum usage per sample window, broker, user and client-id.

    An event that is later than its record's append time counts as of the append time. An event at exactly the append
    time is not later. See docs/design.md, "Event time".

    Args:
        decoded: rows of `decode` or `second_reading.decode_again`.
        rules: of the job.
        columns: columns of `decoded` that are kept for rows marked `REFUSED`; null in every other row.

    Returns:
        One row per group: `GROUP_KEYS`, `mark`, `columns`, `SUMS` BIGINT and `last_event_ms`. Exempt
        events are groups of their own. Rows that are not events have null `GROUP_KEYS` and are counted in
        `event_count`; so are all events of users of other shares, marked `FOREIGN`. A sum is null if no event of the
        group had a value: there was no request of that type.
    """
    return group(decoded, _keys, (rules.sample_window_ms, rules.share, tuple(columns)), _sums)


def _keys(sample_window_ms: int, share: Share, columns: tuple[str, ...]) -> tuple[Column, ...]:
    is_good = F.coalesce(F.col("mark"), F.lit(EXEMPT)) == EXEMPT
    # Null where the user is null, which no good event has.
    is_foreign = is_good & ~_is_of(share) if share.of > 1 else F.lit(False)
    is_event = is_good & ~is_foreign
    event_time_ms = F.least("event_time_ms", "appended_at_ms")
    keys = [
        event_time_ms - F.pmod(event_time_ms, F.lit(sample_window_ms)),
        _or_default("broker_id"),
        F.col("user"),
        F.col("client_id"),
    ]
    return (
        *[F.when(is_event, key).alias(name) for name, key in zip(GROUP_KEYS, keys, strict=True)],
        F.when(is_foreign, F.lit(FOREIGN).cast("bigint")).otherwise(F.col("mark")).alias("mark"),
        *[F.when(F.col("mark") == REFUSED, F.col(name)).alias(name) for name in columns],
    )


def _is_of(share: Share) -> Column:
    """`Share.has` of the user."""
    return F.crc32(F.col("user").cast("binary")) % share.of == share.number


def _sums() -> tuple[Column, ...]:
    is_clamped = F.col("event_time_ms") > F.col("appended_at_ms")
    return (
        *[_saturating_sum(F.col(name)).alias(name) for name in SUMS[:4]],
        _saturating_sum(_or_default("request_count")).alias("request_count"),
        F.count(F.lit(1)).alias("event_count"),
        F.count(F.when(is_clamped, 1)).alias("clamped_count"),
        F.max(F.least("event_time_ms", "appended_at_ms")).alias("last_event_ms"),
    )


def _or_default(name: str) -> Column:
    return F.coalesce(F.col(name), F.lit(_DEFAULTS[name]))


def _saturating_sum(value: Column) -> Column:
    total = F.sum(value.cast("double"))
    # Only suspect elements can be below 0. Nobody reads their sum, but a cast that overflows would end the stream.
    return F.when(total > LARGEST_SUM, LARGEST_SUM).when(total < 0, 0).otherwise(total).cast("bigint")
