"""The roll-up of `throttle_events` to minutes: how long each client or user was held, and how often.

A throttle holds its target from the instant at which its record was stored until its end, or until the next record of
the target was stored, whichever comes first:

    stored        throttle ├──────────────────────┤ end
    stored             renewed      ├──────────────────────────┤ end
    stored                               release    ┼
    held                   ├────────┼───────────────┤

A user that is held for several quota types is as many targets.

So the time of a throttle is known when the record after it is known, and it is counted with that record: its renewal,
its extension or its release, with the default caps at most 11 s later. A step takes all records past the last step's,
by `publish_seq`, which has no gaps and never goes back. So each record is counted once, whatever the pieces are in
which the records come, and the sum over all rows of a minute is the sum of the minute.

If the wall clock is set back between two records, the first one counts as not held. The clock then shows the same
minutes twice, and a client may have been held for more than 60 s of one of them.

A commit records the last `publish_seq` that it took as its version. So if it is appended again the append is skipped,
and the next step, in this process or another one, continues after it.
"""

import logging
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.tables.port import TableWriter
from pipeline.tables.reading import DeltaRsReader, last_throttles
from pipeline.tables.upkeep import log_failures
from pipeline.tables.usage_roll_ups import MINUTE_MS
from quota.arrays import Flags, Ints
from quota.entity import Owners
from schemas.arrow import arrow_schema, conform
from schemas.names import ClientKey
from schemas.throttle_record import ThrottleByMinuteRow, ThrottleEventRow, written_ms

log = logging.getLogger(__name__)
CLIENT: Final = ("cluster", *ClientKey._fields)
_TEXTS: Final = (*CLIENT, "quota_type", "action", "cause", "decision_id")
HELD_COLUMNS: Final = (*_TEXTS, "publish_seq", "throttle_time_ms", "throttled_until_ms", "quota_version")
"""The columns of `throttle_events` that are needed."""

_ADDED: Final = ("held_ms", "throttle_count", "renewal_count")
_GROUPS: Final = ("minute_start_ms", *CLIENT, "quota_type", "owner")


class Records:
    """Records of the throttle table, each target's together and in the order in which they were published.

    Args:
        before: The last record of each target so far, where that is a throttle; of `HELD_COLUMNS`, as `new`.
        owners: A column for `before` and `new`, one after the other.
    """

    def __init__(self, before: pa.Table, new: pa.Table, owners: "pa.Array[Any]") -> None:
        both = pa.concat_tables([before.select(HELD_COLUMNS), new.select(HELD_COLUMNS)])
        both = both.unify_dictionaries().combine_chunks().append_column("owner", owners)
        is_new = np.arange(both.num_rows) >= before.num_rows
        clients = _numbers(both)
        order = np.lexsort((both["publish_seq"].to_numpy(), clients))
        self._rows = both.take(pa.array(order))
        self._is_new: Flags = is_new[order]
        self._clients = clients[order]
        self._is_throttle: Flags = _equals(self._rows, "action", "throttle")
        self._until_ms: Ints = self._rows["throttled_until_ms"].to_numpy()
        self._stored_ms: Ints = self._until_ms - self._rows["throttle_time_ms"].to_numpy()

    def minutes(self) -> pa.Table:
        """What the new records add to each minute: `_GROUPS` and `_ADDED`, in no order. No row adds nothing."""
        held, begun, renewed = self._held(), *self._known_ends()
        parts = [held, self._counted(begun, "throttle_count"), self._counted(renewed, "renewal_count")]
        added = pa.concat_tables(parts).unify_dictionaries()
        sums = [(name, "sum") for name in _ADDED]
        # In one thread, to leave the other cores to the micro-batch.
        grouped = added.group_by(list(_GROUPS), use_threads=False).aggregate(sums)
        return grouped.rename_columns([*_GROUPS, *_ADDED])

    def running(self) -> pa.Table:
        """The last record of each target, where that is a throttle; of `HELD_COLUMNS`."""
        is_last = np.append(self._clients[1:] != self._clients[:-1], True)[: len(self._clients)]
        return self._rows.filter(pa.array(is_last & self._is_throttle)).select(HELD_COLUMNS)

    def _follows(self) -> Flags:
        follows = np.zeros(len(self._clients), np.bool_)
        follows[1:] = (self._clients[1:] == self._clients[:-1]) & self._is_throttle[:-1]
        return follows

    def _known_ends(self) -> tuple[Ints, Ints]:
        """The places of the new throttles that began one, and of those that gave a running one another end."""
        decisions = _codes(self._rows["decision_id"])
        goes_on = self._follows()
        goes_on[1:] &= decisions[1:] == decisions[:-1]
        begins = _equals(self._rows, "cause", "violation") & ~goes_on
        new = self._is_new & self._is_throttle
        return np.flatnonzero(new & begins), np.flatnonzero(new & ~begins)

    def _held(self) -> pa.Table:
        after = np.flatnonzero(self._follows())
        throttles = after - 1
        from_ms = self._stored_ms[throttles]
        to_ms = np.minimum(self._until_ms[throttles], self._stored_ms[after])
        some = to_ms > from_ms  # also not if the clock was set back
        throttles, from_ms, to_ms = throttles[some], from_ms[some], to_ms[some]
        first, last = from_ms // MINUTE_MS, (to_ms - 1) // MINUTE_MS
        lengths = last - first + 1
        places = np.repeat(np.arange(len(throttles)), lengths)
        begins = np.cumsum(lengths) - lengths
        minutes_ms = (first[places] + np.arange(len(places)) - begins[places]) * MINUTE_MS
        held_ms = np.minimum(to_ms[places], minutes_ms + MINUTE_MS) - np.maximum(from_ms[places], minutes_ms)
        return self._added(throttles[places], minutes_ms, held_ms=held_ms)

    def _counted(self, places: Ints, name: str) -> pa.Table:
        minutes_ms = self._stored_ms[places] // MINUTE_MS * MINUTE_MS
        return self._added(places, minutes_ms, **{name: np.ones(len(places), np.int64)})

    def _added(self, places: Ints, minutes_ms: Ints, **figures: Ints) -> pa.Table:
        rows = self._rows.select(_GROUPS[1:]).take(pa.array(places))
        nothing = np.zeros(len(places), np.int64)
        columns = {"minute_start_ms": minutes_ms} | {name: figures.get(name, nothing) for name in _ADDED}
        for name, values in columns.items():
            rows = rows.append_column(name, pa.array(values, pa.int64()))
        return rows


def _numbers(rows: pa.Table) -> Ints:
    """A number for each row; equal exactly for rows of the same target."""
    numbers = np.zeros(rows.num_rows, np.int64)
    of_user = np.asarray(pc.is_null(rows["client_id"]).to_numpy())
    columns = [_codes(rows[name]) for name in CLIENT]
    for codes in (*columns, np.where(of_user, _codes(rows["quota_type"]) + 1, 0)):
        # Renumbered after each column, so that the product never becomes too large.
        _, numbers = np.unique(numbers * (int(codes.max(initial=0)) + 1) + codes, return_inverse=True)
    return numbers.astype(np.int64)


def _codes(column: "pa.ChunkedArray[Any]") -> Ints:
    """A number from 0 for each value of a text column, null too; equal exactly for equal values."""
    whole = column.combine_chunks()
    encoded: Any = whole if pa.types.is_dictionary(whole.type) else whole.dictionary_encode()
    codes: Ints = pc.fill_null(encoded.indices, len(encoded.dictionary)).to_numpy().astype(np.int64)
    return codes


def _equals(rows: pa.Table, name: str, text: str) -> Flags:
    found: Flags = np.asarray(rows[name].to_numpy(zero_copy_only=False) == text, np.bool_)
    return found


RECORDS_PER_APPEND: Final = 200_000

# After a long time without roll-ups, the other ones need not wait until all records are taken.
_APPENDS_PER_STEP: Final = 10
_ORDER: Final = "publish_seq"
# As in the outbox: while a job runs, it looks at each throttle when it ends, and writes a record.
_LONG_OVER_MS: Final = 86_400_000
_HELD: Final = pa.schema([arrow_schema(ThrottleEventRow).field(name) for name in HELD_COLUMNS])


class ThrottleByMinute:
    """Writes `throttle_by_minute`, one step at a time, from one thread.

    The rows are guarded by the version of the app id `<job>:throttle-minute`.
    """

    def __init__(
        self, events: DeltaRsReader, minutes: TableWriter, job: str, owners_at: Callable[[int], Owners]
    ) -> None:
        self._events = events
        self._minutes = minutes
        self._app_id = f"{job}:throttle-minute"
        self._owners_at = owners_at
        # What the table records, the last record taken since, and the throttles that run then; None = to be read.
        self._place: tuple[int | None, int, pa.Table] | None = None

    def step(self) -> None:
        """Write the records that are stored. Raises nothing: throttling must go on if the roll-up fails."""
        with log_failures(log, "the roll-up of throttles by minute"):
            self._roll_up()

    def _roll_up(self) -> None:
        newest = self._events.newest_value(_ORDER)
        if newest is None:
            return
        # Read each time, because an append that failed may have written its rows or not.
        recorded = self._minutes.recorded_version(self._app_id)
        if self._place is None or self._place[0] != recorded:
            self._place = recorded, *self._stored_place(recorded)
        _, done, running = self._place
        if done >= newest:
            return
        events = self._events.slices(_ORDER, _TEXTS)
        newest = min(newest, done + _APPENDS_PER_STEP * RECORDS_PER_APPEND)
        while done < newest:
            last = min(done + RECORDS_PER_APPEND, newest)
            records = self._records(running, events.read(HELD_COLUMNS, done + 1, last + 1))
            minutes = conform(records.minutes(), ThrottleByMinuteRow)
            if minutes.num_rows:
                self._minutes.append(minutes, {self._app_id: last}, {})
                recorded = last
            done, running = last, records.running()
        self._place = recorded, done, running

    def _stored_place(self, recorded: int | None) -> tuple[int, pa.Table]:
        if recorded is None:
            return (self._events.oldest_value(_ORDER) or 0) - 1, _HELD.empty_table()
        last = self._events.read(["throttled_until_ms", "throttle_time_ms"], [(_ORDER, "=", recorded)]).to_pylist()
        stored_ms = max(map(written_ms, last), default=0)
        running = last_throttles(self._events, stored_ms - _LONG_OVER_MS, [(_ORDER, "<=", recorded)])
        return recorded, running.select(HELD_COLUMNS)

    def _records(self, running: pa.Table, new: pa.Table) -> Records:
        before = running.cast(new.schema) if running.num_rows else new.slice(0, 0)
        columns = (
            [*before[name].to_pylist(), *new[name].to_pylist()] for name in ("quota_version", "user", "client_id")
        )
        owners = [self._owners_at(version).of(user, client) for version, user, client in zip(*columns, strict=True)]
        return Records(before, new, pa.array(owners, pa.string()))
