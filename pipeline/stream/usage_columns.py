"""Usage in columns: the fields of an event, its time, rows of usage and their sums, and what is refused.

No field, type or range is written twice: they come from the model `UsageEvent`.

Event times are limited twice; see docs/design.md, "Event time". An event is never later than its record, nor later
than the driver's clock when its batch is collected. The evaluation follows the newest event time, and never goes back:
without a limit, one message of a host whose clock is five minutes ahead would make all other usage late for five
minutes. The driver's limit changes with every batch. As a literal in the query it would make Spark generate and compile
code for every batch, so it is applied to the sums that were collected.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from quota.entity import DEFAULT, OTHER
from quota.snapshot import QuotaSnapshot
from quota.tenants import Patterns
from quota.usage import EntityNames, KeyIndex, Seeds, some_of
from schemas.arrow import arrow_schema
from schemas.usage import UsageEvent

if TYPE_CHECKING:
    from pipeline.settings.model import Settings  # executors do not need it

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
    "broker_throttle_ms",
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

_WARNING_INTERVAL_MS: Final = 60_000
_LONGEST_NAME: Final = 64

Times = npt.NDArray[np.int64]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ReadingRules:
    """The settings that reading usage messages needs. They are constants of a job.

    Attributes:
        sample_window_ms: Span of a sample window, > 0; windows start at multiples of it since the epoch.
        max_event_age_ms: An event may be dated this long before its record's append time; an older one is refused.
        letters_per_message: Most rows of `dead_letters` for one message, > 0; the last one counts what is left out.
    """

    sample_window_ms: int
    max_event_age_ms: int
    letters_per_message: int = 100

    @classmethod
    def from_settings(cls, settings: "Settings") -> Self:
        """The rules of a job."""
        return cls(settings.engine.sample_window_ms, settings.stream.max_event_age_ms)


EVENT_SCHEMA: Final = arrow_schema(UsageEvent)
"""The fields of `UsageEvent` as columns."""
_NOT_SUMMED: Final = frozenset({"event_time_ms", "schema_version"})
COUNTED: Final = tuple(name for name in EVENT_SCHEMA.names if name not in _NOT_SUMMED)
"""The fields that are summed, or that decide how."""
_DEFAULTS: Final = {name: None if one.is_required() else one.default for name, one in UsageEvent.model_fields.items()}


def too_old(max_event_age_ms: int) -> str:
    """The cause of an event that was old when its record was appended."""
    return f"'event_time_ms' must be at most {max_event_age_ms} ms before the append time of its record"


# Dead letters: what is refused of the usage topic, one row each, and few rows for a message that is full of junk.

DEAD_LETTER_SCHEMA: Final = pa.schema(
    {
        "appended_at_ms": pa.int64(),
        "partition": pa.int64(),
        "offset": pa.int64(),
        "element_index": pa.int64(),
        "cause": pa.string(),
        "value": pa.binary(),
    }
)
MORE_REFUSED: Final = "further elements of such messages"
"""Stands for the cause of refused elements that have no row."""

_ORDER: Final = [(name, "ascending") for name in ("partition", "offset", "element_index")]


class DeadLetter(NamedTuple):
    """A message that is refused, by its place among those read, or an element of it.

    Attributes:
        element_index: Its place in an array, from 0; None if the whole message is refused.
        value: The unchanged bytes of the message or element.
    """

    place: int
    element_index: int | None
    cause: str
    value: bytes


class Refused(NamedTuple):
    """An element of an array that is refused: its place, from 0, and the cause."""

    element_index: int
    cause: str


def letters_of_elements(
    place: int, refused: Sequence[Refused], per_message: int, values_of: Callable[[Sequence[int]], Sequence[bytes]]
) -> list[DeadLetter]:
    """The dead letters of a message with refused elements: the first ones, the last of which counts the others.

    A message of one megabyte of junk would become half a million rows. The message itself is on the topic, at the
    partition and offset of its rows.

    * `refused`: In the order of the message; not empty.
    * `per_message`: Largest number of rows, > 0.
    * `values_of`: The bytes of some elements, by their places.
    """
    kept = list(refused[:per_message])
    if more := len(refused) - len(kept):
        index, cause = kept[-1]
        kept[-1] = Refused(index, f"{cause}; {more} more refused elements, up to element {refused[-1].element_index}")
    values = values_of([element.element_index for element in kept])
    return [DeadLetter(place, *element, value) for element, value in zip(kept, values, strict=True)]


def letter_rows(messages: pa.Table, letters: Sequence[DeadLetter]) -> pa.Table:
    """Dead letters as rows of `DEAD_LETTER_SCHEMA`."""
    if not letters:
        return DEAD_LETTER_SCHEMA.empty_table()
    places, elements, causes, values = zip(*letters, strict=True)
    columns = messages.select(DEAD_LETTER_SCHEMA.names[:3]).take(pa.array(places, pa.int64())).columns
    columns += [pa.array(elements, pa.int64()), pa.array(causes), pa.array(values, pa.binary())]
    return pa.table(dict(zip(DEAD_LETTER_SCHEMA.names, columns, strict=True))).cast(DEAD_LETTER_SCHEMA)


def merge_letters(tables: Sequence[pa.Table]) -> pa.Table:
    """Rows of several tables of `DEAD_LETTER_SCHEMA`, ordered by partition, offset and element."""
    rows = pa.concat_tables([DEAD_LETTER_SCHEMA.empty_table(), *tables])
    return rows.sort_by(_ORDER) if rows.num_rows else rows


def causes_of(letters: pa.Table, dead_count: int) -> dict[str, int]:
    """Count the refused elements by cause.

    * `dead_count`: All that were refused; those without a row are under `MORE_REFUSED`.
    """
    found: dict[str, int] = {}
    for pair in pc.value_counts(letters["cause"]).to_pylist():
        cause = pair["values"].partition("; ")[0]
        found[cause] = found.get(cause, 0) + pair["counts"]
    more = dead_count - letters.num_rows
    return found | ({MORE_REFUSED: more} if more else {})


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectedBatch:
    """What was read of the messages of a micro-batch, or of some of them.

    Every element of every message is in exactly one of the counts good and dead. Every message without elements is in
    exactly one of the counts ignored and dead.

    Attributes:
        usage: `USAGE_SCHEMA`, one row per sample window, broker, user and client-id; in no particular order.
        dead_letters: `DEAD_LETTER_SCHEMA`, ordered by partition, offset and element; at most
            `ReadingRules.letters_per_message` rows for one message.
        clamped_count: usage events whose time was set back; after collection, to their record's append time.
        ignored_count: messages with a null value or without elements.
        newest_event_ms: largest event time of all users, clamped; None without events.
        append_times_ms: largest append time of each partition that has messages.
        folded_count: usage events of client-ids beyond the limit of new ones; see `fold_clients`.
    """

    usage: pa.Table = field(default_factory=USAGE_SCHEMA.empty_table)
    dead_letters: pa.Table = field(default_factory=DEAD_LETTER_SCHEMA.empty_table)
    good_count: int = 0
    clamped_count: int = 0
    ignored_count: int = 0
    dead_count: int = 0
    newest_event_ms: int | None = None
    append_times_ms: Mapping[int, int] = field(default_factory=dict)
    size_bytes: int = 0
    folded_count: int = 0

    @property
    def newest_append_ms(self) -> int | None:
        """Largest append time of all messages; None without messages."""
        return max(self.append_times_ms.values(), default=None)


_COUNTS: Final = tuple(one.name for one in fields(CollectedBatch) if one.type is int)


def merge_batches(batches: Iterable[CollectedBatch]) -> CollectedBatch:
    """Several parts of a batch as one."""
    parts = list(batches)
    return CollectedBatch(
        usage=merge_usage([part.usage for part in parts]),
        dead_letters=merge_letters([part.dead_letters for part in parts]),
        newest_event_ms=_newest(part.newest_event_ms for part in parts),
        append_times_ms=_newest_of_partitions(part.append_times_ms for part in parts),
        **{name: sum(getattr(part, name) for part in parts) for name in _COUNTS},
    )


def merge_usage(tables: Sequence[pa.Table]) -> pa.Table:
    """Sum rows of `USAGE_SCHEMA` of the same group.

    A sum is null only if it is null in every row: no event of the group had a value, so there was no request of that
    type. A sum above `LARGEST_SUM` is cut to it.
    """
    usage = pa.concat_tables([USAGE_SCHEMA.empty_table(), *tables])
    if not usage.num_rows:
        return USAGE_SCHEMA.empty_table()
    # As doubles: they are exact up to the largest sum, and do not overflow above it.
    doubles = usage.cast(pa.schema([one.with_type(pa.float64()) if one.name in SUMS else one for one in USAGE_SCHEMA]))
    aggregations = [*[(name, "sum") for name in SUMS], ("last_event_ms", "max")]
    grouped = doubles.group_by(list(GROUP_KEYS)).aggregate(aggregations)
    merged = [grouped[name] for name in GROUP_KEYS]
    for name in SUMS:
        cut_off = pc.min_element_wise(grouped[f"{name}_sum"], float(LARGEST_SUM), skip_nulls=False)
        merged.append(cut_off.cast(pa.int64()))
    return pa.table([*merged, grouped["last_event_ms_max"]], schema=USAGE_SCHEMA)


def append_times(messages: pa.Table) -> dict[int, int]:
    """The largest append time of each partition."""
    newest = messages.group_by("partition", use_threads=False).aggregate([("appended_at_ms", "max")])
    return dict(zip(newest["partition"].to_pylist(), newest["appended_at_ms_max"].to_pylist(), strict=True))


def _newest_of_partitions(parts: Iterable[Mapping[int, int]]) -> dict[int, int]:
    newest: dict[int, int] = {}
    for part in parts:
        newest |= {partition: max(ms, newest.get(partition, ms)) for partition, ms in part.items()}
    return newest


def _newest(times_ms: Iterable[int | None]) -> int | None:
    return max((time_ms for time_ms in times_ms if time_ms is not None), default=None)


@dataclass(frozen=True, slots=True)
class EventTimes:
    """When events were sent, as their senders gave it, and when their records were appended."""

    sent_ms: Times
    appended_at_ms: Times

    def counted_ms(self) -> Times:
        """As of when the events count: never later than their records."""
        return np.minimum(self.sent_ms, self.appended_at_ms)

    def are_too_old(self, max_event_age_ms: int) -> npt.NDArray[np.bool_]:
        """Which of them are refused for their age."""
        return self.sent_ms < self.appended_at_ms - max_event_age_ms


def part_of_batch(
    messages: pa.Table,
    rules: ReadingRules,
    events: tuple[Mapping[str, pa.Array], EventTimes],
    refused: tuple[Sequence[DeadLetter], int],
    ignored_count: int,
) -> CollectedBatch:
    """What some messages hold, not summed: a row of usage for each event.

    Args:
        messages: Of `usage_reader.MESSAGE_SCHEMA`.
        events: The columns `COUNTED` of good events, null where absent, and their times.
        refused: The dead letters, and how many elements and messages were refused.
        ignored_count: Messages without events.
    """
    (columns, times), (letters, dead_count) = events, refused
    count = len(times.sent_ms)
    return CollectedBatch(
        usage=_usage_rows(columns, times, rules.sample_window_ms) if count else USAGE_SCHEMA.empty_table(),
        dead_letters=letter_rows(messages, letters),
        good_count=count,
        clamped_count=int((times.sent_ms > times.appended_at_ms).sum()),
        ignored_count=ignored_count,
        dead_count=dead_count,
        newest_event_ms=int(times.counted_ms().max()) if count else None,
        append_times_ms=append_times(messages),
        size_bytes=pc.sum(pc.binary_length(messages["value"])).as_py() or 0,
    )


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


@dataclass(frozen=True, slots=True)
class EventsAhead:
    """Usage of one micro-batch that was dated after the limit, and whose the newest of it is.

    Attributes:
        event_count: how many events were set back to the limit; of a sample window that holds the limit, at least one.
        ahead_ms: how far the newest event was after the limit.
    """

    event_count: int
    ahead_ms: int
    broker_id: str
    user: str
    client_id: str


def limit_event_times(
    batch: CollectedBatch, limit_ms: int, sample_window_ms: int
) -> tuple[CollectedBatch, EventsAhead | None]:
    """Set every event time after a limit back to the limit. An event at exactly the limit is not after it.

    Returns:
        The batch as if the events had been dated so, and what was set back; None if nothing was. Rows that fall into
        the same sample window are summed. `clamped_count` counts all events of a row whose window begins after the
        limit. Of a row whose window holds the limit it counts at least one, because the single events are not known.
    """
    newest_ms = batch.newest_event_ms
    if newest_ms is None or newest_ms <= limit_ms:
        return batch, None
    is_ahead = pc.greater(batch.usage["last_event_ms"], limit_ms)
    ahead = batch.usage.filter(is_ahead)
    newest_ms = pc.max(ahead["last_event_ms"]).as_py()
    limited = _set_back(ahead, limit_ms, sample_window_ms)
    event_count = pc.sum(limited["clamped_count"]).as_py() - pc.sum(ahead["clamped_count"]).as_py()
    newest = ahead.slice(pc.index(ahead["last_event_ms"], newest_ms).as_py(), 1).to_pylist()[0]
    names = {name: newest[name] for name in ("broker_id", "user", "client_id")}
    return (
        replace(
            batch,
            usage=merge_usage([batch.usage.filter(pc.invert(is_ahead)), limited]),
            clamped_count=batch.clamped_count + event_count,
            newest_event_ms=limit_ms,
        ),
        EventsAhead(pc.sum(limited["clamped_count"]).as_py(), newest_ms - limit_ms, **names),
    )


# Client-ids that a user makes up. Every client-id takes memory, rows and sensors, and a client chooses its own. So the
# new ones of a user beyond `MOST_NEW_NAMES` in an hour count as one client, `OTHER`. Their usage is not lost: in a
# sensor of the user it is charged as before; at a level that gives each client-id its own sensor, they share one.

MOST_NEW_NAMES: Final = 1_000
"""The most client-ids of a user that are new within an hour."""
_HOUR_MS: Final = 3_600_000


class NewNames:
    """The clients that were seen in this hour and the one before, and how many of each user were new. For one thread.

    A new process knows no names: then each user has `MOST_NEW_NAMES` again, beyond those that use the cluster on.
    """

    def __init__(self) -> None:
        self._seeds = Seeds.draw()
        self._seen, self._seen_before = KeyIndex(), KeyIndex()
        self._begun_ms: int | None = None
        self._new_of: dict[str, int] = {}
        self._quotas: QuotaSnapshot | None = None
        self._with_row: frozenset[tuple[str, str]] = frozenset()

    def too_many(self, clients: pa.Table, quotas: QuotaSnapshot, now_ms: int) -> npt.NDArray[np.bool_]:
        """Which clients are beyond the limit, in the order of the rows, bool[n].

        Args:
            clients: columns user and client_id; a client may be there more than once.
            quotas: a client with a row of its own is never beyond it, whether the row names its user, the default user,
                or none; nor is one that a tenant names by its client-id.
            now_ms: of a clock that is never set back.
        """
        if self._begun_ms is None or now_ms - self._begun_ms >= _HOUR_MS:
            self._seen, self._seen_before, self._begun_ms, self._new_of = KeyIndex(), self._seen, now_ms, {}
        keys = EntityNames(clients, has_brokers=False).hashed(self._seeds).entity_keys()
        found: npt.NDArray[np.bool_] = self._seen.find(keys) < 0
        rows = np.flatnonzero(found)
        if not len(rows):
            return found
        again = rows[self._seen_before.find(some_of(keys, rows)) >= 0]
        self._seen.add(some_of(keys, again))
        rows = np.setdiff1d(rows, again)
        _, first = np.unique(keys[0][rows], return_index=True)
        rows = rows[np.sort(first)]
        names = clients.select(["user", "client_id"]).take(pa.array(rows)).to_pylist()
        taken = [row for row, one in zip(rows, names, strict=True) if self._takes(**one, quotas=quotas)]
        self._seen.add(some_of(keys, np.array(taken, np.int64)))
        return np.asarray(self._seen.find(keys) < 0, np.bool_)

    def _takes(self, user: str, client_id: str, quotas: QuotaSnapshot) -> bool:
        if self._quotas is not quotas:
            self._quotas = quotas
            of_tenants = (("", client_id) for one in quotas.tenants for client_id in one.client_ids)
            of_rows = ((one.user, one.client_id) for one in quotas.quotas if one.client_id)
            self._with_row = frozenset((*of_rows, *of_tenants))
        if any((part, client_id) in self._with_row for part in (user, DEFAULT, "")):
            return True
        self._new_of[user] = self._new_of.get(user, 0) + 1
        return self._new_of[user] <= MOST_NEW_NAMES


def fold_clients(batch: CollectedBatch, is_folded: npt.NDArray[np.bool_], quotas: QuotaSnapshot) -> CollectedBatch:
    """Count the usage of some rows as that of the client-id `OTHER` of their user; rows of one window are summed.

    A client-id that a tenant has by the beginning of its name keeps that beginning: it stays in its tenant.
    """
    if not is_folded.any():
        return batch
    usage, folded = batch.usage, pa.array(is_folded)
    others = pa.repeat(OTHER, usage.num_rows)
    if quotas.tenants:
        names = usage["client_id"].combine_chunks().cast(pa.string())
        beginnings = Patterns(quotas.tenants, "client_ids").beginnings(pc.fill_null(names, ""))
        others = pc.binary_join_element_wise(beginnings, OTHER, "")
    client_id = pc.if_else(folded, others, usage["client_id"])
    usage = usage.set_column(USAGE_SCHEMA.get_field_index("client_id"), USAGE_SCHEMA.field("client_id"), client_id)
    count = pc.sum(batch.usage["event_count"].filter(folded)).as_py()
    return replace(batch, usage=merge_usage([usage]), folded_count=count)


def _set_back(ahead: pa.Table, limit_ms: int, sample_window_ms: int) -> pa.Table:
    limit_start_ms = limit_ms - limit_ms % sample_window_ms
    is_whole = pc.greater(ahead["sample_start_ms"], limit_start_ms)
    columns = {
        "sample_start_ms": pc.min_element_wise(ahead["sample_start_ms"], limit_start_ms),
        "clamped_count": pc.if_else(is_whole, ahead["event_count"], pc.max_element_wise(ahead["clamped_count"], 1)),
        "last_event_ms": pa.repeat(limit_ms, ahead.num_rows),
    }
    for name, values in columns.items():
        ahead = ahead.set_column(ahead.schema.get_field_index(name), ahead.schema.field(name), values)
    return ahead


class ClockWarning:
    """Logs events that are ahead of the driver's clock: once per batch, but at most once a minute.

    A line counts the events since the line before.
    """

    def __init__(self) -> None:
        self._events = 0
        self._logged_at_ms: int | None = None

    def take(self, ahead: EventsAhead | None, tolerance_ms: int, steady_ms: int) -> None:
        """Take note of what was set back of a batch; `tolerance_ms` ahead of the driver's clock is no fault."""
        if ahead is None:
            return
        self._events += ahead.event_count
        if self._logged_at_ms is not None and steady_ms - self._logged_at_ms < _WARNING_INTERVAL_MS:
            return
        log.warning(
            "%d events are ahead of this machine's clock by more than %d ms, one by %.1f s more: of user %s, client-id "
            "%s, broker %s. They count as of now. Fix: set the clocks of brokers, meters and this machine",
            self._events,
            tolerance_ms,
            ahead.ahead_ms / 1000,
            *(_shortened(name) for name in (ahead.user, ahead.client_id, ahead.broker_id)),
        )
        self._events, self._logged_at_ms = 0, steady_ms


def _shortened(name: str) -> str:
    return ascii(name if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]}…")
