"""The roll-up of `throttle_events` to minutes: how long each client was held, and how often it was throttled.

A step takes all records past the last step's, by `publish_seq`, which has no gaps and never goes back. What they add
to the minutes is appended (`held_minutes`). So each record is taken by exactly one step, whatever its times are, and
the sum over all rows of a minute is the sum of the minute. The time of a throttle is added when the record after it is
stored: its renewal, its extension or its release. With the default caps that is at most 11 s later.

A commit records the last `publish_seq` that it took as its version. So if it is appended again the append is skipped,
and the next step, in this process or another one, continues after it.
"""

import logging
from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa

from pipeline.tables.port import RolledTable, TableWriter
from pipeline.tables.rollups.held_minutes import COLUMNS, Records
from pipeline.tables.throttles.last import last_throttles
from pipeline.tables.tried_again import tried_again
from quota.owners import Owners
from schemas.arrow import arrow_schema, conform
from schemas.throttle_record import ThrottleByMinuteRow, ThrottleEventRow, written_ms

log = logging.getLogger(__name__)

RECORDS_PER_APPEND: Final = 200_000

_APPENDS_PER_STEP: Final = 10
"""After a long time without roll-ups, the other ones need not wait until all records are taken."""
_ORDER: Final = "publish_seq"
_REPEATED: Final = ("cluster", "broker_id", "user", "client_id", "quota_type", "action", "cause", "decision_id")
# As in the outbox: while a job runs, it looks at each throttle when it ends, and writes a record.
_LONG_OVER_MS: Final = 86_400_000
_NONE: Final = pa.Table.from_batches([], pa.schema([arrow_schema(ThrottleEventRow).field(name) for name in COLUMNS]))


class ThrottleByMinute:
    """Writes `throttle_by_minute`, one step at a time, from one thread.

    Args:
        events: The table `throttle_events`.
        minutes: Writer of `throttle_by_minute`.
        job: Name of the job; the rows are guarded by the version of the app id `<job>:throttle-minute`.
        owners_at: The owners of a version of the quota table.
    """

    def __init__(self, events: RolledTable, minutes: TableWriter, job: str, owners_at: Callable[[int], Owners]) -> None:
        self._events = events
        self._minutes = minutes
        self._app_id = f"{job}:throttle-minute"
        self._owners_at = owners_at
        # What the table records, the last record taken since, and the throttles that run then; None = to be read.
        self._place: tuple[int | None, int, pa.Table] | None = None

    def step(self) -> None:
        """Write the records that are stored. Raises nothing: throttling must go on if the roll-up fails."""
        with tried_again(log, "the roll-up of throttles by minute"):
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
        events = self._events.slices(_ORDER, _REPEATED)
        newest = min(newest, done + _APPENDS_PER_STEP * RECORDS_PER_APPEND)
        while done < newest:
            last = min(done + RECORDS_PER_APPEND, newest)
            records = self._records(running, events.read(COLUMNS, done + 1, last + 1))
            minutes = conform(records.minutes(), ThrottleByMinuteRow)
            if minutes.num_rows:
                self._minutes.append(minutes, {self._app_id: last}, {})
                recorded = last
            done, running = last, records.running()
        self._place = recorded, done, running

    def _stored_place(self, recorded: int | None) -> tuple[int, pa.Table]:
        """The last record that the table has taken, and the throttles that ran then."""
        if recorded is None:
            return (self._events.oldest_value(_ORDER) or 0) - 1, _NONE
        last = self._events.read(["throttled_until_ms", "throttle_time_ms"], [(_ORDER, "=", recorded)]).to_pylist()
        stored_ms = max(map(written_ms, last), default=0)
        running = last_throttles(self._events, stored_ms - _LONG_OVER_MS, [(_ORDER, "<=", recorded)])
        return recorded, running.select(COLUMNS)

    def _records(self, running: pa.Table, new: pa.Table) -> Records:
        before = running.cast(new.schema) if running.num_rows else new.slice(0, 0)
        return Records(before, new, self._owners(before, new))

    def _owners(self, *tables: pa.Table) -> "pa.Array[Any]":
        names: list[str | None] = []
        for table in tables:
            columns = (table[name].to_pylist() for name in ("quota_version", "user", "client_id"))
            names += [
                self._owners_at(version).of(user, client_id) for version, user, client_id in zip(*columns, strict=True)
            ]
        return pa.array(names, pa.string())
