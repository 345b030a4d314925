"""The one publisher: rows into the outbox `throttle_events`, then onto the topic, in the order of `publish_seq`.

A row is written first and published from what was written, so whatever reaches the topic is also in the table, with
the same wall-clock end. Guarantee: every row is on the topic exactly once for a `read_committed` reader, in order,
without gaps, whatever fails in between. What a retry does, step by step:

* append: carries the last `publish_seq` as its version, so appending the same rows again is skipped; after one that
  raised it is unknown whether its numbers are taken, so this publisher writes no more and the next start reads them;
* transaction: built from stored rows only; after a failed or undecided one the marker is read again by a new
  producer, and stored rows past it go first.

Callers hold one lock around every call (`pipeline.throttle.purgatory`).
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import asdict
from shlex import quote
from typing import Final, NamedTuple, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.clock import Moment
from pipeline.cluster.acls import PermissionMissing
from pipeline.command_line import command_text
from pipeline.errors import (
    ClusterUnreachable,
    Conflict,
    MessageTooLarge,
    PipelineError,
    TransactionFenced,
    TransactionUndecided,
)
from pipeline.failpoints import failpoint
from pipeline.tables.port import TableUnreadable, TableWriter
from pipeline.throttle.shapes import Publications
from quota.arrays import Ints
from quota.decisions import Evaluation
from schemas.arrow import arrow_schema, conform
from schemas.names import THROTTLE_TOPIC
from schemas.throttle_record import SCHEMA_VERSION, ThrottleEventRow, written_ms

log = logging.getLogger(__name__)

# Of one transaction. After one that failed there are as few as a slow broker takes before its time-out.
_MOST_RECORDS, _FEWEST_RECORDS = 100_000, 5_000
_RETENTION_MS = 3_600_000  # the shortest a throttle topic may have
# While a job runs, it checks each throttle when it ends. A throttle that had ended for this long when the last record
# was written is over.
_LONG_OVER_MS: Final = 86_400_000
_NAMED_IN_LOG: Final = ("action", "user", "client_id", "publish_seq")
NO_ROWS: Final = pa.Table.from_batches([], arrow_schema(ThrottleEventRow))


class Outbox:
    """Where the rows are kept: the table `throttle_events`, through its guarded writer."""

    def __init__(self, table: TableWriter, job: str) -> None:
        self._table = table
        self._app_id = publish_app_id(job)

    @property
    def table_id(self) -> str:
        """The id of the table, which no other table has."""
        return self._table.table_id

    def append(self, rows: pa.Table, versions: Mapping[str, int], metadata: Mapping[str, str]) -> bool:
        """Append rows in one commit; False if a version in `versions` is already recorded (nothing written)."""
        return self._table.append(rows, versions, metadata)

    def is_fenced(self) -> bool:
        """Whether another driver has taken the table over since this one did."""
        return self._table.is_fenced()

    def rows_from(self, publish_seq: int) -> pa.Table:
        """Stored rows with this `publish_seq` or a higher one, in its order."""
        return self._table.read(None, [("publish_seq", ">=", publish_seq)]).sort_by("publish_seq")

    def newest(self) -> tuple[int, pa.Table]:
        """The highest `publish_seq` ever written (-1: none) and the last row of every client where that is a throttle.

        Its row may be gone: rows are kept for a time only, the number is never given again. Throttles that ended a day
        before the last record was written are left out: they are over.
        """
        from pipeline.tables.queries import last_throttles  # noqa: PLC0415 - loads delta-rs

        recorded = self._table.recorded_version(self._app_id)
        stored = self._table.newest_value("publish_seq")
        if stored is None:
            return -1 if recorded is None else recorded, last_throttles(self._table, 0)
        times = ["throttled_until_ms", "throttle_time_ms"]
        (last,) = self._table.read(times, [("publish_seq", "=", stored)]).to_pylist()
        highest = stored if recorded is None else max(recorded, stored)
        return highest, last_throttles(self._table, written_ms(last) - _LONG_OVER_MS)


def publish_app_id(job: str) -> str:
    """The app id whose recorded version is the last `publish_seq` a job has written."""
    return f"{job}:publish"


def rows_of(written: pa.Table, evaluation: Evaluation, cluster: str) -> pa.Table:
    """The rows of `throttle_events` for these records, one per record, in order."""
    return conform(written, ThrottleEventRow, cluster=cluster, schema_version=SCHEMA_VERSION, **asdict(evaluation))


class TopicEnd(NamedTuple):
    """The end of the topic.

    Attributes:
        publish_seq: The highest among the committed records; -1 if there are none.
        job: The job that published it; "" if there are none, or if it is not known (written by an older version).
    """

    publish_seq: int
    job: str


class Marker(NamedTuple):
    """How far a job has published, and out of which table.

    Attributes:
        next_seq: The `publish_seq` that comes next.
        table_id: The id of `throttle_events`; "" if it is not known (written by an older version).
    """

    next_seq: int
    table_id: str = ""


class ThrottleTopic(Protocol):
    """Port to the throttle topic. Not safe for several threads; the publisher holds its lock."""

    def committed(self) -> Marker | None:
        """The marker, without taking the topic over; that of a transaction which has just ended may be missing."""
        ...

    def open(self) -> Marker | None:
        """Take the topic over: fence an earlier writer of the same job, abort what it left open.

        Returns:
            The marker, or None if none is committed (a new job, or the group's offsets have expired).
        """
        ...

    def publish(self, rows: pa.Table, marker: Marker) -> None:
        """Publish stored rows as records and set the marker, all or nothing.

        * `rows`: Of `throttle_events`, in the order of their `publish_seq`; may be none, which only moves the marker.

        Raises:
            MessageTooLarge: one of the records is larger than the topic takes; nothing is published.
            ClusterUnreachable, PermissionMissing: a new producer was needed and not to be had; nothing is published.
            TransactionUndecided: the outcome is not known or the transaction failed; `open` again and compare markers.
            TransactionFenced: the topic has been taken over, or this writer's transaction has timed out; `open` again
                only if the tables still belong to this driver.
        """
        ...

    def end(self) -> TopicEnd:
        """The last writer by the committed records; reads the end of every partition."""
        ...

    def close(self) -> None:
        """Leave; aborts an open transaction. Harmless when called twice."""
        ...


Announce = Callable[[pa.Table, int], None]
"""Hears the records that were written together, of `WRITTEN`, and the quota version they were decided under. Must be
quick and must not raise.
"""


class Publisher:
    """Writes records down in the outbox, and publishes them on the topic."""

    def __init__(
        self,
        job: str,
        cluster: str,
        outbox: Outbox,
        topic: ThrottleTopic,
        announce: Announce = lambda _records, _quota_version: None,
    ) -> None:
        self._job = job
        self._identity = f"kquota-{job}"
        self._announce = announce
        self._cluster = cluster
        self._outbox = outbox
        self._topic = topic
        self._table_id = outbox.table_id
        self._next_seq = 0
        self._most_records = _MOST_RECORDS
        self._append_undecided = False
        self._behind = True
        self._was_fenced = False
        self._retry_at_ms = 0
        self._failures = 0

    @property
    def next_seq(self) -> int:
        """The `publish_seq` the next record will get."""
        return self._next_seq

    @property
    def is_behind(self) -> bool:
        """Whether stored rows may be missing from the topic."""
        return self._behind

    def newest(self) -> tuple[int, pa.Table]:
        """See `Outbox`."""
        return self._outbox.newest()

    def take_over(
        self, highest_stored_seq: int, now: Moment, takes_topic: bool = False, again: pa.Table = NO_ROWS
    ) -> None:
        """Fence an earlier publisher, and publish what is stored but not on the topic.

        * `highest_stored_seq`: As the outbox has it; the next record gets the number after it.
        * `takes_topic`: Whether to take the topic, too, if a job of the same name with other tables has written it.
        * `again`: Stored rows to publish before those, though they were published before: the topic lacks them.

        Raises:
            Conflict: its records are another job's, or of other tables.
        """
        self._next_seq = highest_stored_seq + 1
        self._catch_up(now, takes_topic, again)

    def write(
        self,
        publications: Publications,
        evaluation: Evaluation,
        wall_ms: int | Ints,
        batch_versions: dict[str, int] | None = None,
    ) -> int:
        """Append records to the outbox, then publish them unless older ones wait.

        * `publications`: The records, in the order they shall have.
        * `wall_ms`: From when on they hold their clients, on the wall clock: all of them, or each.
        * `batch_versions`: For a batch, its own version, recorded in the same commit: a batch that is run again
          after this commit finds it recorded and writes nothing.

        Returns:
            How many were written: 0 if there was nothing to write, or if the batch had already written its rows.

        Raises:
            PipelineError: an append before this one raised.
        """
        if not len(publications):
            return 0
        if self._append_undecided:
            message = f"the outcome of an earlier append, from publish_seq {self._next_seq} on, is unknown"
            raise PipelineError(message, "nothing needs doing: the restart reads what is stored and goes on after it")
        written = publications.written(self._next_seq, wall_ms)
        last_seq = self._next_seq + written.num_rows - 1
        versions = {**(batch_versions or {}), publish_app_id(self._job): last_seq}
        rows = rows_of(written, evaluation, self._cluster)
        self._append_undecided = True
        if not self._outbox.append(rows, versions, {"publish_seq": f"{self._next_seq}..{last_seq}"}):
            self._append_undecided = False
            return 0
        failpoint("outbox.appended" if batch_versions else "check.appended")
        self._next_seq = last_seq + 1
        self._append_undecided = False
        if not self._behind:
            self._transact(rows)
        self._announce(written, evaluation.quota_version)
        return len(publications)

    def catch_up(self, now: Moment) -> bool:
        """Publish stored rows that may be missing on the topic, if a retry is due; True when none is missing.

        A failure is logged once a try, with back-off from 0.25 to 8 seconds; rows stay in the outbox meanwhile.
        """
        if not self._behind:
            return True
        if now.steady_ms < self._retry_at_ms:
            return False
        try:
            self._catch_up(now)
        except (ClusterUnreachable, PermissionMissing, TransactionUndecided, TableUnreadable) as exc:
            self._failures += 1
            delay_ms = min(250 * 2 ** (self._failures - 1), 8_000)
            self._retry_at_ms = now.steady_ms + delay_ms
            log.warning("throttle records wait in the outbox: %s; next try in %.1f s", exc, delay_ms / 1000)
        return not self._behind

    def close(self) -> None:
        """Leave the topic; what is stored and not published goes out at the next start."""
        self._topic.close()

    def _catch_up(self, now: Moment, takes_topic: bool = False, again: pa.Table = NO_ROWS) -> None:
        self._behind = True
        if not takes_topic:
            refuse_other_tables(self._job, self._topic.committed(), self._table_id)  # before their job is fenced
        self._refuse_newer_driver()
        marker = self._topic.open()
        failpoint("start.fenced")
        self._refuse_newer_driver()  # one that has begun since is fenced by us, and has to find all that we published
        if not takes_topic:
            refuse_other_tables(self._job, marker, self._table_id)
        if self._was_fenced:
            if marker is not None and marker.next_seq > self._next_seq:
                raise TransactionFenced(self._identity)
            log.warning("no other writer has moved the marker: a transaction was open for too long, after a pause")
        missing = self._missing_from(marker, now)
        first_seq = missing["publish_seq"][0].as_py() if missing.num_rows else self._next_seq
        if missing.num_rows:
            log.info("publishing %d stored records from publish_seq %d on", missing.num_rows, first_seq)
        self._behind = self._was_fenced = False
        self._transact(again.filter(pc.less(again["publish_seq"], first_seq)), next_seq=first_seq)
        if not self._behind:
            self._transact(missing, claims=marker is None or marker.table_id != self._table_id)
        if self._behind:
            detail = "the transaction with the stored records did not commit"
            raise TransactionUndecided(detail)
        self._failures = 0

    def _refuse_newer_driver(self) -> None:
        if self._outbox.is_fenced():
            raise TransactionFenced(self._identity)

    def _missing_from(self, marker: Marker | None, now: Moment) -> pa.Table:
        since_ms = 0
        if marker is None:
            end = self._topic.end()
            if end.job not in {"", self._job}:
                raise _topic_of_another_job(self._job, end.job)
            marker = Marker(end.publish_seq + 1)
            # Nothing on the topic and no marker: a new job, or a week of rest, after which what was published has
            # gone from the topic and the marker with it.
            since_ms = 0 if marker.next_seq else now.wall_ms - _RETENTION_MS
        if _is_of_other_tables(marker, self._table_id):
            log.warning(
                "the throttle topic is taken over from other tables, with id %s; records of these tables before "
                "publish_seq %d that are not published stay in throttle_events",
                *(marker.table_id, marker.next_seq),
            )
        elif marker.next_seq > self._next_seq:
            _log_lost_rows(self._next_seq, marker.next_seq)
        # Consumers ignore numbers they have seen, so numbers that the topic holds are not given again.
        self._next_seq = max(self._next_seq, marker.next_seq)
        if marker.next_seq >= self._next_seq:
            return NO_ROWS
        rows = self._outbox.rows_from(marker.next_seq)
        return rows.filter(pc.greater_equal(rows["throttled_until_ms"], since_ms))

    def _transact(self, rows: pa.Table, claims: bool = False, next_seq: int | None = None) -> None:
        """Publish stored rows; on an undecided outcome the publisher is behind, and `catch_up` settles it.

        * `next_seq`: Where the marker stays; None: it moves past the rows.
        * `claims`: Whether the marker is moved also without rows, to have the id of our table in it.
        """
        try:
            if claims and not rows.num_rows:
                self._topic.publish(NO_ROWS, Marker(self._next_seq, self._table_id))
            while rows.num_rows:
                now, rows = rows.slice(0, self._most_records), rows.slice(self._most_records)
                self._publish(now, next_seq)
                if now.num_rows == self._most_records:
                    self._most_records = min(2 * self._most_records, _MOST_RECORDS)
        except TransactionFenced as exc:
            self._most_records = _FEWEST_RECORDS
            # A pause longer than the transaction time-out looks the same as a second driver. A second driver has taken
            # our tables first; one with other tables has moved the marker, which shows when the topic is opened again.
            self._refuse_newer_driver()
            self._behind = self._was_fenced = True
            log.warning("%s; opening the topic again", exc.message)
        except (ClusterUnreachable, TransactionUndecided, PermissionMissing) as exc:
            self._behind = True
            self._most_records = _FEWEST_RECORDS
            log.warning("%s; the records are stored and will be published again", exc)

    def _publish(self, rows: pa.Table, next_seq: int | None = None) -> None:
        """One transaction; more if one of the records is larger than the topic takes: that one is passed over.

        The marker moves past a record that is passed over, so it is settled once: stored, logged and not tried again.
        """
        (last,) = rows.select(_NAMED_IN_LOG).slice(rows.num_rows - 1).to_pylist()
        marker = Marker(last["publish_seq"] + 1 if next_seq is None else next_seq, self._table_id)
        try:
            self._topic.publish(rows, marker)
        except MessageTooLarge as exc:
            if half := rows.num_rows // 2:
                self._publish(rows.slice(0, half), next_seq)
                self._publish(rows.slice(half), next_seq)
                return
            log.error(
                "the %s of user %.60r, client-id %.60r (publish_seq %d) is in throttle_events and not on the topic: %s",
                *(*(last[name] for name in _NAMED_IN_LOG), exc.detail),
            )
            self._topic.publish(NO_ROWS, marker)


Hear = Callable[[Publications, Ints], None]
"""Hears records that are published together, and of each the instant."""


class HeardPublisher:
    """Has the place of a `Publisher` without tables and readers: the records are only heard."""

    is_behind = False

    def __init__(self, hear: Hear = lambda _publications, _at_ms: None) -> None:
        self._hear = hear
        self.running = NO_ROWS
        """The throttles that run when the purgatory takes over."""

    def newest(self) -> tuple[int, pa.Table]:
        """No number was given so far."""
        return -1, self.running

    def take_over(self, highest_stored_seq: int, now: Moment, takes_topic: bool, again: pa.Table) -> None:
        """Nothing is stored."""

    def write(
        self,
        publications: Publications,
        evaluation: Evaluation,
        wall_ms: Ints,
        batch_versions: dict[str, int] | None = None,
    ) -> int:
        """Let the records be heard."""
        self._hear(publications, wall_ms)
        return len(publications)

    def catch_up(self, now: Moment) -> bool:
        """Nothing is missing anywhere."""
        return True

    def close(self) -> None:
        """Nothing to close."""


def _topic_of_another_job(job: str, owner: str) -> Conflict:
    own = f"{THROTTLE_TOPIC}.{job}"
    return Conflict(
        f"the throttle topic has records of job {owner!r}, and each job needs its own; this is job {job!r}",
        "give this job a topic of its own, and start it in the same shell: "
        f"export KQUOTA_KAFKA__THROTTLE_TOPIC={quote(own)} && {command_text('topics', 'create', about='cluster')}",
    )


def refuse_other_tables(job: str, marker: Marker | None, own_id: str) -> None:
    """Raise `Conflict` if a job of this name has published out of other tables than those with our id."""
    if marker is not None and _is_of_other_tables(marker, own_id):
        message = (
            f"a job of the same name, {job!r}, publishes out of other tables: the marker has the id {marker.table_id} "
            f"of their throttle_events, ours is {own_id}"
        )
        fix = (
            "give this job a name with --job and a throttle topic of its own; or, if its tables take the place of the "
            "others, stop that job and start this one once with --take-topic"
        )
        raise Conflict(message, fix)


def _is_of_other_tables(marker: Marker, own_id: str) -> bool:
    return marker.table_id not in {"", own_id}


def _log_lost_rows(next_seq: int, marker: int) -> None:
    if not next_seq:
        log.warning("the topic holds records up to publish_seq %d, the outbox none: going on after them", marker - 1)
        return
    log.error(
        "the outbox ends at publish_seq %d, the topic at %d: rows of throttle_events are lost; going on after the "
        "topic's",
        *(next_seq - 1, marker - 1),
    )
