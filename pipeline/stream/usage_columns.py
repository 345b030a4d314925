"""Usage in columns: the fields of an event with their rules, rows of usage made of them, and their sums.

No field, type, range or cause is written twice: `usage_reader` and `packed` take them from here, and they come from
the model `UsageEvent`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pydantic.fields import FieldInfo

from pipeline.stream.dead_letters import DEAD_LETTER_SCHEMA, DeadLetter, letter_rows, merge_letters
from quota.snapshot import ALL_USERS, Share
from schemas.columns import columns
from schemas.usage import UsageEvent

if TYPE_CHECKING:
    from pipeline.settings.model import Settings  # executors do not need it

LARGEST_BIGINT: Final = 2**63 - 1
SMALLEST_BIGINT: Final = -(2**63)
LARGEST_SUM: Final = 2**53
"""The largest sum, 9 PB or 104 days in one sample window; larger ones are cut to it. Doubles are exact up to here."""

GROUP_KEYS: Final = ("sample_start_ms", "broker_id", "user", "client_id")
SUMS: Final = (
    "produced_bytes",
    "fetched_bytes",
    "io_time_ns",
    "network_time_ns",
    "exempt_time_ns",
    "request_count",
    "event_count",
    "clamped_count",
)
USAGE_SCHEMA: Final = pa.schema(
    [
        pa.field("sample_start_ms", pa.int64()),
        *[pa.field(name, pa.string()) for name in GROUP_KEYS[1:]],
        *[pa.field(name, pa.int64()) for name in (*SUMS, "last_event_ms")],
    ]
)
_REQUEST_TIMES: Final = ("io_time_ns", "network_time_ns")
_TYPES: Final = {"STRING": pa.string(), "BIGINT": pa.int64(), "BOOLEAN": pa.bool_()}

Times = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ReadingRules:
    """The settings that reading usage messages needs. They are constants of a job.

    Attributes:
        sample_window_ms: Span of a sample window, > 0; windows start at multiples of it since the epoch.
        max_event_age_ms: An event may be dated this long before its record's append time; an older one is refused.
        share: Whose usage counts. Of other users only the number of events and the newest event time are kept.
        letters_per_message: Most rows of `dead_letters` for one message, > 0; the last one counts what is left out.
    """

    sample_window_ms: int
    max_event_age_ms: int
    share: Share = ALL_USERS
    letters_per_message: int = 100

    @classmethod
    def from_settings(cls, settings: "Settings") -> Self:
        """The rules of a job."""
        stream = settings.stream
        return cls(
            settings.engine.sample_window_ms, stream.max_event_age_ms, settings.share, stream.dead_letters_per_message
        )


@dataclass(frozen=True, slots=True)
class FieldRule:
    """The rule for one field of a usage event, and the cause of each way to break it.

    Attributes:
        required: True if null or missing is refused.
        default: the value of a null or missing optional field; None for a measure: no request of that type.
        at_least: smallest value, inclusive; None for no bound above BIGINT's own.
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

    @property
    def missing(self) -> str:
        """The cause of a required field that is missing or null."""
        return f"'{self.name}' must be present"

    @property
    def ill_typed(self) -> str:
        """The cause of a value of another JSON type."""
        wanted = {"BIGINT": "a JSON integer", "BOOLEAN": "true or false", "STRING": "a JSON string"}[self.spark_type]
        return f"'{self.name}' must be {wanted}"

    @property
    def no_text(self) -> str:
        """The cause of a text with half a character: a lone surrogate."""
        return f"'{self.name}' must be Unicode text, without lone surrogates"

    @property
    def empty(self) -> str:
        """The cause of an empty text."""
        return f"'{self.name}' must not be empty"

    @property
    def too_long(self) -> str:
        """The cause of a text of too many bytes."""
        return f"'{self.name}' must be at most {self.max_utf8_bytes} bytes of UTF-8"

    @property
    def too_small(self) -> str:
        """The cause of a number that is too small."""
        return f"'{self.name}' must be at least {'-2^63' if self.at_least is None else self.at_least}"

    @property
    def too_large(self) -> str:
        """The cause of a number that is too large."""
        return f"'{self.name}' must be at most {LARGEST_BIGINT if self.at_most is None else self.at_most}"


def _field_rule(name: str, spark_type: str, info: FieldInfo) -> FieldRule:
    def constraint(key: str) -> int | None:
        return next((value for part in info.metadata if (value := getattr(part, key, None)) is not None), None)

    below = constraint("lt")
    at_most = constraint("le") if below is None else below - 1
    return FieldRule(
        name=name,
        spark_type=spark_type,
        required=info.is_required(),
        default=None if info.is_required() else info.default,
        at_least=constraint("ge"),
        at_most=None if at_most == LARGEST_BIGINT else at_most,
        may_be_empty=not constraint("min_length"),
        max_utf8_bytes=constraint("max_utf8_bytes"),
    )


FIELD_RULES: Final = tuple(
    _field_rule(column.name, column.type.spark, UsageEvent.model_fields[column.name]) for column in columns(UsageEvent)
)
EVENT_SCHEMA: Final = pa.schema([(rule.name, _TYPES[rule.spark_type]) for rule in FIELD_RULES])
"""The fields of `UsageEvent` as columns."""
_NOT_SUMMED: Final = frozenset({"event_time_ms", "broker_throttle_ms", "schema_version"})
COUNTED: Final = tuple(name for name in EVENT_SCHEMA.names if name not in _NOT_SUMMED)
"""The fields that are summed, or say how."""
_DEFAULTS: Final = {rule.name: rule.default for rule in FIELD_RULES}


def too_old(max_event_age_ms: int) -> str:
    """The cause of an event that was old when its record was appended."""
    return f"'event_time_ms' must be at most {max_event_age_ms} ms before the append time of its record"


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectedBatch:
    """What was read of the messages of a micro-batch, or of some of them.

    Every element of every message is in exactly one of the counts good, others and dead. Every message without
    elements is in exactly one of the counts ignored and dead.

    Attributes:
        usage: `USAGE_SCHEMA`, one row per sample window, broker, user and client-id; in no particular order.
        dead_letters: `DEAD_LETTER_SCHEMA`, ordered by partition, offset and element; at most
            `ReadingRules.letters_per_message` rows for one message.
        clamped_count: usage events whose time was set back; after collection, to their record's append time.
        ignored_count: messages with a null value or without elements.
        newest_event_ms: largest event time of all users, clamped; None without events.
        newest_append_ms: largest append time of all messages, None without messages.
    """

    usage: pa.Table = field(default_factory=USAGE_SCHEMA.empty_table)
    dead_letters: pa.Table = field(default_factory=DEAD_LETTER_SCHEMA.empty_table)
    good_count: int = 0
    clamped_count: int = 0
    ignored_count: int = 0
    dead_count: int = 0
    newest_event_ms: int | None = None
    newest_append_ms: int | None = None
    packed_event_count: int = 0
    others_count: int = 0
    size_bytes: int = 0

    def for_share(self, share: Share) -> Self:
        """What the job of a share keeps: all shards read the same faults, the first one writes them."""
        if not share.number:
            return self
        return replace(self, dead_letters=self.dead_letters.slice(0, 0), dead_count=0, ignored_count=0)


def merge_batches(batches: Iterable[CollectedBatch]) -> CollectedBatch:
    """Several parts of a batch as one."""
    parts = list(batches)

    def total(name: str) -> int:
        return sum(getattr(part, name) for part in parts)

    return CollectedBatch(
        usage=merge_usage([part.usage for part in parts]),
        dead_letters=merge_letters([part.dead_letters for part in parts]),
        good_count=total("good_count"),
        clamped_count=total("clamped_count"),
        ignored_count=total("ignored_count"),
        dead_count=total("dead_count"),
        newest_event_ms=_newest(part.newest_event_ms for part in parts),
        newest_append_ms=_newest(part.newest_append_ms for part in parts),
        packed_event_count=total("packed_event_count"),
        others_count=total("others_count"),
        size_bytes=total("size_bytes"),
    )


def merge_usage(tables: Sequence[pa.Table]) -> pa.Table:
    """Sum rows of the same group.

    Args:
        tables: each of `USAGE_SCHEMA`; a group may have many rows in each.

    Returns:
        `USAGE_SCHEMA`, one row per group. A sum is null only if it is null in every row: no event of the group had a
        value, so there was no request of that type. A sum above `LARGEST_SUM` is cut to it.
    """
    usage = pa.concat_tables([USAGE_SCHEMA.empty_table(), *tables])
    if not usage.num_rows:
        return USAGE_SCHEMA.empty_table()
    # As doubles: they are exact up to the largest sum, and do not overflow above it.
    doubles = usage.cast(pa.schema([one.with_type(pa.float64()) if one.name in SUMS else one for one in USAGE_SCHEMA]))
    aggregations = [*[(name, "sum") for name in SUMS], ("last_event_ms", "max")]
    grouped = doubles.group_by(list(GROUP_KEYS)).aggregate(aggregations)
    merged = [grouped[name] for name in GROUP_KEYS]
    merged += [_cut_off(grouped[f"{name}_sum"]) for name in SUMS]
    return pa.table([*merged, grouped["last_event_ms_max"]], schema=USAGE_SCHEMA)


def _cut_off(sums: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.min_element_wise(sums, float(LARGEST_SUM), skip_nulls=False).cast(pa.int64())


def _newest(times_ms: Iterable[int | None]) -> int | None:
    """The largest; None if there is none."""
    return max((time_ms for time_ms in times_ms if time_ms is not None), default=None)


@dataclass(frozen=True, slots=True)
class EventTimes:
    """When events were sent, and when their records were appended.

    Attributes:
        sent_ms: The event time of each, as its sender gave it.
        appended_at_ms: Of the record of each.
    """

    sent_ms: Times
    appended_at_ms: Times

    def counted_ms(self) -> Times:
        """As of when the events count: never later than their records. See docs/design.md, "Event time"."""
        return np.minimum(self.sent_ms, self.appended_at_ms)

    def are_too_old(self, max_event_age_ms: int) -> npt.NDArray[np.bool_]:
        """Which of them are refused for their age."""
        return self.sent_ms < self.appended_at_ms - max_event_age_ms

    def where(self, mask: npt.NDArray[np.bool_]) -> Self:
        """Those of some of the events."""
        return type(self)(self.sent_ms[mask], self.appended_at_ms[mask])


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundEvents:
    """What some messages of one kind hold.

    Attributes:
        columns: Of good events, the columns `COUNTED` of `EVENT_SCHEMA`, null where absent.
        ignored_count: Messages without events.
    """

    columns: Mapping[str, pa.Array]
    times: EventTimes
    letters: Sequence[DeadLetter]
    dead_count: int
    ignored_count: int
    packed_count: int = 0

    def batch(self, messages: pa.Table, rules: ReadingRules) -> CollectedBatch:
        """The same as part of a batch, not summed: a row of usage for each event of the share's own users.

        All shards read the same messages. The newest event of a batch dates its evaluation, whoever sent it: so a
        shard decides at the same instant as one job for all users would.
        """
        columns, times = self.columns, self.times
        if rules.share.of > 1:
            is_own = _are_of(rules.share, columns["user"])
            columns = {name: columns[name].filter(pa.array(is_own)) for name in COUNTED}
            times = times.where(is_own)
        event_count, own_count = len(self.times.sent_ms), len(times.sent_ms)
        return CollectedBatch(
            usage=_usage_rows(columns, times, rules.sample_window_ms) if own_count else USAGE_SCHEMA.empty_table(),
            dead_letters=letter_rows(messages, self.letters),
            good_count=own_count,
            clamped_count=int((times.sent_ms > times.appended_at_ms).sum()),
            ignored_count=self.ignored_count,
            dead_count=self.dead_count,
            newest_event_ms=int(self.times.counted_ms().max()) if event_count else None,
            newest_append_ms=pc.max(messages["appended_at_ms"]).as_py(),
            packed_event_count=self.packed_count,
            others_count=event_count - own_count,
            size_bytes=pc.sum(pc.binary_length(messages["value"])).as_py() or 0,
        )


def _are_of(share: Share, users: Any) -> npt.NDArray[np.bool_]:
    encoded = users.dictionary_encode()
    is_own = np.fromiter(map(share.has, encoded.dictionary.to_pylist()), np.bool_, len(encoded.dictionary))
    places: npt.NDArray[np.int32] = encoded.indices.to_numpy()
    return is_own[places]


def _usage_rows(events: Mapping[str, pa.Array], times: EventTimes, sample_window_ms: int) -> pa.Table:
    times_ms = times.counted_ms()
    filled = {name: _filled(events[name], _DEFAULTS[name]) for name in COUNTED}
    filled |= {
        "sample_start_ms": pa.array(times_ms - times_ms % sample_window_ms),
        "last_event_ms": pa.array(times_ms),
        "event_count": pa.array(np.ones(len(times_ms), np.int64)),
        "clamped_count": pa.array((times.sent_ms > times.appended_at_ms).astype(np.int64)),
        "exempt_time_ns": pa.nulls(len(times_ms), pa.int64()),
    }
    if pc.any(filled["throttle_exempt"]).as_py():
        filled |= _exempt_apart(filled)
    return pa.table([filled[name] for name in USAGE_SCHEMA.names], schema=USAGE_SCHEMA)


def _filled(column: pa.Array, default: Any) -> pa.Array:
    return column if default is None or not column.null_count else column.fill_null(default)


def _exempt_apart(events: Mapping[str, pa.Array]) -> dict[str, pa.Array]:
    """The request times, those of exempt events in a column of their own. It is null only if both of them are."""
    is_exempt, (first, second) = events["throttle_exempt"], (events[name] for name in _REQUEST_TIMES)
    nothing = pa.scalar(None, pa.int64())
    total = pc.coalesce(pc.add(first, second), first, second)
    charged = {name: pc.if_else(is_exempt, nothing, events[name]) for name in _REQUEST_TIMES}
    return {**charged, "exempt_time_ns": pc.if_else(is_exempt, total, nothing)}
