"""Sums usage events that the driver has read, as `aggregate` does in Spark."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from operator import attrgetter
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.stream.reading.collected_batch import USAGE_SCHEMA, summed
from pipeline.stream.reading.field_rules import FIELD_RULES
from pipeline.stream.reading.others_usage import NO_OTHERS, OthersUsage, are_of
from pipeline.stream.reading.reading_rules import ReadingRules

_TYPES: Final = {"STRING": pa.string(), "BIGINT": pa.int64(), "BOOLEAN": pa.bool_()}
EVENT_SCHEMA: Final = pa.schema([(rule.name, _TYPES[rule.spark_type]) for rule in FIELD_RULES])
"""The fields of `UsageEvent` as columns."""
_REQUEST_TIMES: Final = ("io_time_ns", "network_time_ns")


@dataclass(frozen=True, slots=True)
class Summed:
    """What was read, summed.

    Attributes:
        usage: `USAGE_SCHEMA`, one row per group, of the share's own users.
        others: What is kept of others.
    """

    usage: pa.Table
    others: OthersUsage


def usage_of(events: Sequence[Any], appended_at_ms: npt.NDArray[np.int64], rules: ReadingRules) -> Summed:
    """Sum events per sample window, broker, user and client-id; see `aggregate`.

    Args:
        events: Good ones, each with the fields of `UsageEvent` as attributes, None where absent.
        appended_at_ms: Of the record of each.
        rules: Of the job.
    """
    others = NO_OTHERS
    if rules.share.of > 1:
        is_own = are_of(rules.share, _column(events, "user"))
        times_ms = np.minimum(_column(events, "event_time_ms").to_numpy(), appended_at_ms)
        others = OthersUsage.of(times_ms[~is_own])
        events, appended_at_ms = list(compress(events, is_own)), appended_at_ms[is_own]
    columns = {name: _column(events, name) for name in EVENT_SCHEMA.names}
    return Summed(_usage(columns, appended_at_ms, rules.sample_window_ms), others)


def usage_of_columns(events: pa.RecordBatch, appended_at_ms: npt.NDArray[np.int64], rules: ReadingRules) -> Summed:
    """Do what `usage_of` does with rows of `EVENT_SCHEMA`, null where absent."""
    others = NO_OTHERS
    if rules.share.of > 1:
        is_own = are_of(rules.share, events["user"])
        times_ms = np.minimum(events["event_time_ms"].to_numpy(), appended_at_ms)
        others = OthersUsage.of(times_ms[~is_own])
        events, appended_at_ms = events.filter(pa.array(is_own)), appended_at_ms[is_own]
    columns = dict(zip(EVENT_SCHEMA.names, events.columns, strict=True))
    return Summed(_usage(columns, appended_at_ms, rules.sample_window_ms), others)


def _column(events: Sequence[Any], name: str) -> pa.Array:
    return pa.array(map(attrgetter(name), events), EVENT_SCHEMA.field(name).type)


def _usage(events: Mapping[str, pa.Array], appended_at_ms: npt.NDArray[np.int64], sample_window_ms: int) -> pa.Table:
    if not len(appended_at_ms):
        return USAGE_SCHEMA.empty_table()
    columns = {rule.name: _filled(events[rule.name], rule.default) for rule in FIELD_RULES}
    sent_ms = columns["event_time_ms"].to_numpy()
    times_ms = np.minimum(sent_ms, appended_at_ms)
    columns |= {
        "sample_start_ms": pa.array(times_ms - times_ms % sample_window_ms),
        "last_event_ms": pa.array(times_ms),
        "event_count": pa.array(np.ones(len(times_ms), np.int64)),
        "clamped_count": pa.array((sent_ms > appended_at_ms).astype(np.int64)),
        "exempt_time_ns": pa.nulls(len(times_ms), pa.int64()),
    }
    if pc.any(columns["throttle_exempt"]).as_py():
        columns |= _exempt_apart(columns)
    return summed(pa.table([columns[name] for name in USAGE_SCHEMA.names], schema=USAGE_SCHEMA))


def _filled(column: pa.Array, default: Any) -> pa.Array:
    return column if default is None or not column.null_count else column.fill_null(default)


def _exempt_apart(columns: dict[str, pa.Array]) -> dict[str, pa.Array]:
    """The request times, those of exempt events in a column of their own. It is null only if both of them are."""
    is_exempt, (first, second) = columns["throttle_exempt"], (columns[name] for name in _REQUEST_TIMES)
    nothing = pa.scalar(None, pa.int64())
    total = pc.coalesce(pc.add(first, second), first, second)
    charged = {name: pc.if_else(is_exempt, nothing, columns[name]) for name in _REQUEST_TIMES}
    return {**charged, "exempt_time_ns": pc.if_else(is_exempt, total, nothing)}
