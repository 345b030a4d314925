"""The roll-ups: `usage` by second and by minute, and `throttle_events` by minute. They run next to the decisions.

Each is a SQL statement, which delta-rs' engine answers on one core, and whose answer is appended with a version: how
far it has read. A commit that is made again is skipped, and the next step, in this process or another one, goes on
after it.
"""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.resources import files
from typing import Final

import pyarrow as pa
from pydantic import BaseModel

from pipeline.tables.port import Instant, TableWriter
from pipeline.tables.queries import StoredTable
from pipeline.tables.upkeep import log_failures
from quota.entity import Owners
from schemas.arrow import conform
from schemas.throttle_record import ThrottleByMinuteRow, written_ms
from schemas.usage import UsageByMinuteRow, UsageBySecondRow, UsageSums

log = logging.getLogger(__name__)

MINUTE_MS: Final = 60_000


def _statement(file: str) -> str:
    return files("pipeline.tables").joinpath(file).read_text(encoding="utf-8")


# The roll-ups of `usage`.
#
# When a clock that was ahead is set back a new time epoch begins, whose rows have smaller times than those of the one
# before. A roll-up takes each epoch by itself, so nothing of the new one is late and nothing of the old one is lost;
# when a newer epoch has begun, all that is left of the older one is written at once. A second or minute that the clock
# showed twice has rows of both epochs. The version that a commit records is the end of its span, for each epoch under
# an app id of its own.

_USAGE_SQL: Final = _statement("usage_roll_up.sql")
_SUMS: Final = [name for name in UsageSums.model_fields if name not in {"broker_id", "user", "client_id"}]
# A sum of nulls alone is null. One above 2^62 is cut to it, and never wraps around to a negative one.
_SUM: Final = (
    "CAST(CASE WHEN sum(CAST({0} AS DECIMAL(38, 0))) > 4611686018427387904 THEN 4611686018427387904 "
    "ELSE sum(CAST({0} AS DECIMAL(38, 0))) END AS BIGINT) AS {0}"
)
_EVER_MS: Final = 2**52


@dataclass(frozen=True, slots=True)
class UsageRollUp:
    """One of the roll-ups of `usage`.

    Attributes:
        name: `second` or `minute`: the first column is `<name>_start_ms`.
        row: The model of its rows.
        span_ms: Length of its spans, which begin at multiples of it since the epoch.
        lateness_ms: A span is written when stored usage is so far past its end.
        step_ms: The longest time of which one commit takes the usage. At 20 000 events a second 20 s are 200 000 rows
            by second, and 70 to 100 MB while they are written.
        due: By SQL, when a row of `usage` is due: a commit takes the rows that are due in its time.
        taken: The rows that are due in [{from_ms}, {until_ms}), as a condition by which whole files are passed over.
    """

    name: str
    row: type[BaseModel]
    span_ms: int
    lateness_ms: int
    step_ms: int
    due: str
    taken: str


BY_SECOND: Final = UsageRollUp(
    *("second", UsageBySecondRow, 1_000, 60_000, 20_000),
    due="sample_start_ms",
    taken="sample_start_ms >= {from_ms} AND sample_start_ms < {until_ms}",
)
"""Usage that comes when its second is written already is in `usage`, and counts in the rate or the bucket; not here."""

BY_MINUTE: Final = UsageRollUp(
    *("minute", UsageByMinuteRow, MINUTE_MS, 10_000, MINUTE_MS),
    due="greatest(sample_start_ms, evaluated_at_ms - 10000)",
    taken="(sample_start_ms >= {from_ms} OR evaluated_at_ms >= {from_ms} + 10000) "
    "AND sample_start_ms < {until_ms} AND evaluated_at_ms < {until_ms} + 10000",
)
"""It loses nothing: what comes late is due in the minute in which it was evaluated, and makes further rows of its own.

So each row of `usage` is taken by exactly one commit, and the sum over all rows of a minute is the sum of the minute.
Only stored times decide, and `evaluated_at_ms` never goes back from one batch to the next within a time epoch.
"""


class UsageRoller:
    """Writes a roll-up of the table `usage` at an address, one step at a time, from one thread."""

    def __init__(self, by: UsageRollUp, usage_uri: str, writer: TableWriter, job: str) -> None:
        self._by = by
        self._usage_uri = usage_uri
        self._writer = writer
        self._app_id = f"{job}:{by.name}"  # that of epoch 0; the other ones have their number behind it
        self._done_ms: dict[int, int] = {}
        self._first_epoch = 0

    @property
    def written_until_ms(self) -> int:
        """All usage evaluated before this instant is rolled up, or came too late for that. 0 before the first step."""
        return min(self._done_ms.values(), default=0)

    def step(self) -> None:
        """Write all spans that are complete. Raises nothing, because throttling must go on if the roll-up fails."""
        with log_failures(log, f"the roll-up by {self._by.name}"):
            usage = StoredTable(self._usage_uri)
            newest = usage.newest_instant()
            if newest is None:
                return
            oldest = usage.oldest_value("time_epoch") or 0
            epochs = range(max(self._first_epoch, oldest), newest.time_epoch + 1)
            # All are known before any is written: nothing is rolled up of an epoch that a failure keeps from its turn.
            begins_ms = {epoch: self._begin_ms(usage, epoch) for epoch in epochs}
            self._done_ms = dict(begins_ms)
            for epoch, begin_ms in begins_ms.items():
                self._roll_up(usage, epoch, begin_ms, newest)
                if epoch < newest.time_epoch:  # it is not asked for again
                    self._first_epoch = epoch + 1
                    del self._done_ms[epoch]

    def _begin_ms(self, usage: StoredTable, epoch: int) -> int:
        """Where an epoch goes on. Read each time, because an append that failed may have written its rows or not."""
        recorded_ms = self._writer.recorded_version(self._app_id_of(epoch))
        if recorded_ms is None:
            return self._floor(usage.smallest("sample_start_ms", [("time_epoch", "=", epoch)]) or 0)
        return recorded_ms

    def _roll_up(self, usage: StoredTable, epoch: int, begin_ms: int, newest: Instant) -> None:
        is_over = epoch < newest.time_epoch
        until_ms = _EVER_MS if is_over else self._floor(newest.evaluated_at_ms - self._by.lateness_ms)
        sums = ", ".join(_SUM.format(name) for name in _SUMS)
        of_all = {"name": self._by.name, "span_ms": self._by.span_ms, "sums": sums, "time_epoch": epoch}
        # From one row to the next one, so time without usage costs nothing, however long it is.
        for from_ms, end_ms in self._steps(usage, epoch, begin_ms, until_ms):
            taken = self._by.taken.format(from_ms=from_ms, until_ms=end_ms)
            found = usage.answer(_USAGE_SQL.format(**of_all, taken=taken))
            rows = conform(found.append_column("time_epoch", pa.repeat(epoch, found.num_rows)), self._by.row)
            self._writer.append(rows, {self._app_id_of(epoch): end_ms}, {})
            self._done_ms[epoch] = end_ms
        if not is_over:
            self._done_ms[epoch] = max(self._done_ms[epoch], until_ms)

    def _steps(self, usage: StoredTable, epoch: int, done_ms: int, until_ms: int) -> Iterator[tuple[int, int]]:
        """The times in which rows are due up to an instant: start inclusive, end exclusive."""
        while done_ms < until_ms:
            taken = self._by.taken.format(from_ms=done_ms, until_ms=until_ms)
            found = usage.answer(f"SELECT min({self._by.due}) AS ms FROM source WHERE time_epoch = {epoch} AND {taken}")  # noqa: S608 - ours
            first_ms = found["ms"][0].as_py()
            if first_ms is None:
                return
            from_ms = self._floor(first_ms)
            done_ms = min(from_ms + self._by.step_ms, until_ms)
            yield from_ms, done_ms

    def _app_id_of(self, epoch: int) -> str:
        return f"{self._app_id}:{epoch}" if epoch else self._app_id

    def _floor(self, at_ms: int) -> int:
        return at_ms // self._by.span_ms * self._by.span_ms


# The roll-up of `throttle_events` to minutes: how long each client or user was held, and how often.
#
# A throttle holds its target from the instant at which its record was stored until its end, or until the next record of
# the target was stored, whichever comes first:
#
#     stored        throttle ├──────────────────────┤ end
#     stored             renewed      ├──────────────────────────┤ end
#     stored                               release    ┼
#     held                   ├────────┼───────────────┤
#
# So the time of a throttle is known when the record after it is known, and it is counted with that record: its renewal,
# its extension or its release, with the default caps at most 11 s later. A step takes all records past the last step's,
# by `publish_seq`, which has no gaps and never goes back. So each record is counted once, whatever the pieces are in
# which the records come, and the sum over all rows of a minute is the sum of the minute. The version that a commit
# records is the last `publish_seq` that it took.
#
# If the wall clock is set back between two records, the first one counts as not held. The clock then shows the same
# minutes twice, and a client may have been held for more than 60 s of one of them.

_THROTTLE_SQL: Final = _statement("throttle_by_minute.sql")
RECORDS_PER_APPEND: Final = 200_000
_ORDER: Final = "publish_seq"
# While a job runs it looks at each throttle when it ends, and writes a record. One that ended so long before the last
# record that was taken is over.
_LONG_OVER_MS: Final = 3_600_000


class ThrottleByMinute:
    """Writes `throttle_by_minute` of the table `throttle_events` at an address, one step at a time, from one thread.

    * `owners_at`: The owners in a version of the quotas: a row has the one of its record's version.
    """

    def __init__(self, events_uri: str, minutes: TableWriter, job: str, owners_at: Callable[[int], Owners]) -> None:
        self._events_uri = events_uri
        self._minutes = minutes
        self._app_id = f"{job}:throttle-minute"
        self._owners_at = owners_at

    def step(self) -> None:
        """Write the records that are stored. Raises nothing: throttling must go on if the roll-up fails."""
        with log_failures(log, "the roll-up of throttles by minute"):
            events = StoredTable(self._events_uri)
            newest = events.newest_value(_ORDER)
            # Read each time, because an append that failed may have written its rows or not.
            done = self._minutes.recorded_version(self._app_id)
            if done is None:
                done = (events.oldest_value(_ORDER) or 0) - 1
            while newest is not None and done < newest:
                last = min(done + RECORDS_PER_APPEND, newest)
                found = events.answer(_THROTTLE_SQL.format(done=done, last=last, since_ms=_ran_since_ms(events, done)))
                rows = conform(self._with_owners(found), ThrottleByMinuteRow)
                self._minutes.append(rows, {self._app_id: last}, {})
                done = last

    def _with_owners(self, found: pa.Table) -> pa.Table:
        records = found.select(["quota_version", "user", "client_id"]).to_pylist()
        owners = [self._owners_at(row["quota_version"]).of(row["user"], row["client_id"]) for row in records]
        return found.append_column("owner", pa.array(owners, pa.string()))


def _ran_since_ms(events: StoredTable, done: int) -> int:
    """What ended before this instant was over when the record that was taken last was stored."""
    last = events.rows(["throttled_until_ms", "throttle_time_ms"], [(_ORDER, "=", done)])
    return max(map(written_ms, last), default=0) - _LONG_OVER_MS
