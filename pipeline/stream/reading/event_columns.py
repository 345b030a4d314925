"""Makes rows of usage of the events that the driver has read; summed, they are what `aggregate` gives in Spark."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from operator import attrgetter
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.stream.reading.aggregate import SUMS
from pipeline.stream.reading.collected_batch import USAGE_SCHEMA
from pipeline.stream.reading.field_rules import FIELD_RULES
from pipeline.stream.reading.others_usage import NO_OTHERS, OthersUsage, are_of
from pipeline.stream.reading.read_part import ReadPart
from pipeline.stream.reading.reading_rules import ReadingRules
from quota.shares import Share

_TYPES: Final = {"STRING": pa.string(), "BIGINT": pa.int64(), "BOOLEAN": pa.bool_()}
EVENT_SCHEMA: Final = pa.schema([(rule.name, _TYPES[rule.spark_type]) for rule in FIELD_RULES])
"""The fields of `UsageEvent` as columns."""
_SUMMED: Final = ("user", "client_id", "broker_id", "throttle_exempt", *SUMS[:5])
_DEFAULTS: Final = {rule.name: rule.default for rule in FIELD_RULES}
_REQUEST_TIMES: Final = ("io_time_ns", "network_time_ns")

Times = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class EventTimes:
    """When events were sent, and when their records were appended.

    Attributes:
        sent_ms: The event time of each, as its sender gave it.
        appended_at_ms: Of the record of each.
    """

    sent_ms: Times
    appended_at_ms: Times

    @classmethod
    def of(cls, events: Sequence[Any], appended_at_ms: Times) -> Self:
        """Of events with the attribute `event_time_ms`."""
        return cls(np.fromiter(map(attrgetter("event_time_ms"), events), np.int64, len(events)), appended_at_ms)

    def counted_ms(self) -> Times:
        """As of when the events count: never later than their records."""
        return np.minimum(self.sent_ms, self.appended_at_ms)

    def where(self, mask: npt.NDArray[np.bool_]) -> Self:
        """Those of some of the events."""
        return type(self)(self.sent_ms[mask], self.appended_at_ms[mask])


def usage_of(events: Sequence[Any], times: EventTimes, rules: ReadingRules) -> ReadPart:
    """The usage of events, one row per event; see `aggregate`.

    Args:
        events: Good ones, each with the fields of `UsageEvent` as attributes, None where absent.
        times: Theirs.
        rules: Of the job.
    """
    others = NO_OTHERS
    if rules.share.of > 1:
        is_own, times, others = _apart(_column(events, "user"), times, rules.share)
        events = list(compress(events, is_own))
    columns = {name: _column(events, name) for name in _SUMMED}
    return ReadPart(usage=_rows(columns, times, rules.sample_window_ms), others=others, is_summed=False)


def usage_of_columns(events: pa.RecordBatch, appended_at_ms: Times, rules: ReadingRules) -> ReadPart:
    """Do what `usage_of` does with rows of `EVENT_SCHEMA`, null where absent."""
    times, others = EventTimes(events["event_time_ms"].to_numpy(), appended_at_ms), NO_OTHERS
    if rules.share.of > 1:
        is_own, times, others = _apart(events["user"], times, rules.share)
        events = events.filter(pa.array(is_own))
    columns = {name: events[name] for name in _SUMMED}
    return ReadPart(usage=_rows(columns, times, rules.sample_window_ms), others=others, is_summed=False)


def _apart(users: pa.Array, times: EventTimes, share: Share) -> tuple[npt.NDArray[np.bool_], EventTimes, OthersUsage]:
    """Which events are of a share's own users, the times of these, and what is kept of the others."""
    is_own = are_of(share, users)
    return is_own, times.where(is_own), OthersUsage.of(times.where(~is_own).counted_ms())


def _column(events: Sequence[Any], name: str) -> pa.Array:
    arrow_type, values = EVENT_SCHEMA.field(name).type, map(attrgetter(name), events)
    if arrow_type == pa.int64():
        try:
            return pa.array(np.fromiter(values, np.int64, len(events)))  # takes two thirds of the time
        except TypeError:  # None is among them
            values = map(attrgetter(name), events)
    return pa.array(list(values), arrow_type)


def _rows(events: Mapping[str, pa.Array], times: EventTimes, sample_window_ms: int) -> pa.Table:
    if not len(times.sent_ms):
        return USAGE_SCHEMA.empty_table()
    columns = {name: _filled(column, _DEFAULTS[name]) for name, column in events.items()}
    times_ms = times.counted_ms()
    columns |= {
        "sample_start_ms": pa.array(times_ms - times_ms % sample_window_ms),
        "last_event_ms": pa.array(times_ms),
        "event_count": pa.array(np.ones(len(times_ms), np.int64)),
        "clamped_count": pa.array((times.sent_ms > times.appended_at_ms).astype(np.int64)),
        "exempt_time_ns": pa.nulls(len(times_ms), pa.int64()),
    }
    if pc.any(columns["throttle_exempt"]).as_py():
        columns |= _exempt_apart(columns)
    return pa.table([columns[name] for name in USAGE_SCHEMA.names], schema=USAGE_SCHEMA)


def _filled(column: pa.Array, default: Any) -> pa.Array:
    return column if default is None or not column.null_count else column.fill_null(default)


def _exempt_apart(columns: dict[str, pa.Array]) -> dict[str, pa.Array]:
    """The request times, those of exempt events in a column of their own. It is null only if both of them are."""
    is_exempt, (first, second) = columns["throttle_exempt"], (columns[name] for name in _REQUEST_TIMES)
    nothing = pa.scalar(None, pa.int64())
    total = pc.coalesce(pc.add(first, second), first, second)
    charged = {name: pc.if_else(is_exempt, nothing, columns[name]) for name in _REQUEST_TIMES}
    return {**charged, "exempt_time_ns": pc.if_else(is_exempt, total, nothing)}
