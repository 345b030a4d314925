"""The one publisher: rows into the outbox, then onto the topic, in the order of `publish_seq`.

Guarantee: every row is on the topic exactly once for a `read_committed` reader, in order, without gaps, whatever
fails in between. What a retry does, step by step:

* append: carries the last `publish_seq` as its version, so appending the same rows again is skipped; after one that
  raised it is unknown whether its numbers are taken, so this publisher writes no more and the next start reads them;
* transaction: built from stored rows only; after a failed or undecided one the marker is read again by a new
  producer, and stored rows past it go first.

Callers hold one lock around every call (`pipeline.throttle.purgatory`).
"""

import logging
from collections import deque
from collections.abc import Sequence
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
from pipeline.throttle.outbox import NO_ROWS, NOTHING_WRITTEN, Outbox, publish_app_id, rows_of, write_down
from quota.replay import Evaluation
from schemas.names import THROTTLE_TOPIC
from schemas.throttle_messages import ThrottleRecords
from schemas.throttle_record import ThrottleRecord

log = logging.getLogger(__name__)

# Of one transaction. After one that failed there are as few as a slow broker takes before its time-out.
_MOST_RECORDS, _FEWEST_RECORDS = 100_000, 5_000
_RETENTION_MS = 3_600_000  # the shortest a throttle topic may have


def _topic_of_another_job(job: str, owner: str) -> Conflict:
    own = f"{THROTTLE_TOPIC}.{job}"
    return Conflict(
        f"the throttle topic has records of job {owner!r}, and each job needs its own; this is job {job!r}",
        f"give this job a topic of its own: set KQUOTA_KAFKA__THROTTLE_TOPIC={own}, and create it: "
        f"{command_text('topics', 'create', '--throttle-topic', own, about='cluster')}",
    )


class TopicEnd(NamedTuple):
    """The end of the topic.

    Attributes:
        publish_seq: The highest among the committed records; -1 if there are none.
        job: The job that published it; "" if there are none, or if it does not say (written by an older version).
    """

    publish_seq: int
    job: str


class ThrottleTopic(Protocol):
    """Port to the throttle topic. Not safe for several threads; the publisher holds its lock."""

    def open(self) -> int | None:
        """Take the topic over: fence an earlier writer of the same job, abort what it left open.

        Returns:
            The marker, or None if none is committed (a new job, or the group's offsets have expired).
        """
        ...

    def publish(self, records: Sequence[ThrottleRecord], marker: int) -> None:
        """Publish records and set the marker, all or nothing.

        * `records`: In the order of their `publish_seq`; may be empty, which only moves the marker.

        Raises:
            MessageTooLarge: one of the records is larger than the topic takes; nothing is published, `open` again.
            TransactionUndecided: the outcome is not known or the transaction failed; `open` again and compare markers.
            TransactionFenced: the topic has been taken over, or this writer's transaction has timed out; `open` again
                only if the tables still belong to this driver.
        """
        ...

    def end(self) -> TopicEnd:
        """What the committed records say of the last writer; reads the end of every partition."""
        ...

    def close(self) -> None:
        """Leave; aborts an open transaction. Harmless when called twice."""
        ...


class Publisher:
    """Writes records down and publishes them."""

    def __init__(self, job: str, cluster: str, outbox: Outbox, topic: ThrottleTopic) -> None:
        self._job = job
        self._publish_app_id = publish_app_id(job)
        self._cluster = cluster
        self._outbox = outbox
        self._topic = topic
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

    def take_over(self, highest_stored_seq: int, now: Moment) -> None:
        """Fence an earlier publisher, and publish what is stored but not on the topic.

        * `highest_stored_seq`: As the outbox says; the next record gets the number after it.

        Raises:
            Conflict: its records are another job's.
        """
        self._next_seq = highest_stored_seq + 1
        self._catch_up(now)

    def write(
        self,
        publications: pa.Table,
        evaluation: Evaluation,
        now: Moment,
        batch_versions: dict[str, int] | None = None,
    ) -> pa.Table:
        """Append records to the outbox; nothing is published yet.

        * `publications`: The records, in the order they shall have; of `PUBLICATIONS`.
        * `batch_versions`: For a batch, its own version, recorded in the same commit: a batch that is run again
          after this commit finds it recorded and writes nothing.

        Returns:
            What was written, of `WRITTEN`; no rows if there was nothing to write or the batch had already written its
            rows.

        Raises:
            PipelineError: an append before this one raised.
        """
        if not publications.num_rows:
            return NOTHING_WRITTEN
        if self._append_undecided:
            message = f"the outcome of an earlier append, from publish_seq {self._next_seq} on, is unknown"
            raise PipelineError(message, "nothing needs doing: the restart reads what is stored and goes on after it")
        written = write_down(publications, self._next_seq, now)
        last_seq = self._next_seq + written.num_rows - 1
        versions = {**(batch_versions or {}), self._publish_app_id: last_seq}
        rows = rows_of(written, evaluation, self._cluster)
        self._append_undecided = True
        if not self._outbox.append(rows, versions, {"publish_seq": f"{self._next_seq}..{last_seq}"}):
            self._append_undecided = False
            return NOTHING_WRITTEN
        failpoint("outbox.appended" if batch_versions else "look.appended")
        self._next_seq = last_seq + 1
        self._append_undecided = False
        if not self._behind:
            self._transact(rows)
        return written

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
        except (ClusterUnreachable, PermissionMissing, TransactionUndecided) as exc:
            self._failures += 1
            delay_ms = min(250 * 2 ** (self._failures - 1), 8_000)
            self._retry_at_ms = now.steady_ms + delay_ms
            log.warning("throttle records wait in the outbox: %s; next try in %.1f s", exc, delay_ms / 1000)
        return not self._behind

    def close(self) -> None:
        """Leave the topic; what is stored and not published goes out at the next start."""
        self._topic.close()

    def _catch_up(self, now: Moment) -> None:
        self._behind = True
        marker = self._topic.open()
        failpoint("start.fenced")
        if self._was_fenced and marker is not None and marker > self._next_seq:
            identity = f"kquota-{self._job}"
            raise TransactionFenced(identity)
        missing = self._missing_from(marker, now)
        if missing.num_rows:
            first_seq = missing["publish_seq"][0].as_py()
            log.info("publishing %d stored records from publish_seq %d on", missing.num_rows, first_seq)
        self._behind = self._was_fenced = False
        self._transact(missing)
        if self._behind:
            detail = "the transaction with the stored records did not commit"
            raise TransactionUndecided(detail)
        self._failures = 0

    def _missing_from(self, marker: int | None, now: Moment) -> pa.Table:
        """Stored rows that are not on the topic."""
        since_ms = 0
        if marker is None:
            end = self._topic.end()
            if end.job not in {"", self._job}:
                raise _topic_of_another_job(self._job, end.job)
            marker = end.publish_seq + 1
            # Nothing on the topic and no marker: a new job, or a week of rest, after which what was published has
            # gone from the topic and the marker with it.
            since_ms = 0 if marker else now.wall_ms - _RETENTION_MS
        if marker > self._next_seq:
            self._go_on_after_the_topic(marker)
        if marker >= self._next_seq:
            return NO_ROWS
        rows = self._outbox.rows_from(marker)
        return rows.filter(pc.greater_equal(rows["throttled_until_ms"], since_ms))

    def _go_on_after_the_topic(self, marker: int) -> None:
        """Consumers ignore numbers they have seen, so numbers that the topic holds are not given again."""
        if self._next_seq == 0:
            log.warning(
                "the topic holds records up to publish_seq %d, the outbox none: going on after them", marker - 1
            )
        else:
            log.error(
                "the outbox ends at publish_seq %d, the topic at %d: rows of throttle_events are lost; going on after "
                "the topic's",
                self._next_seq - 1,
                marker - 1,
            )
        self._next_seq = marker

    def _transact(self, rows: pa.Table) -> None:
        """Publish stored rows; on an undecided outcome the publisher is behind, and `catch_up` settles it."""
        records = ThrottleRecords(rows)
        try:
            while records:
                now, records = records[: self._most_records], records[self._most_records :]
                self._publish(now)
                if len(now) == self._most_records:
                    self._most_records = min(2 * self._most_records, _MOST_RECORDS)
        except TransactionFenced:
            self._most_records = _FEWEST_RECORDS
            # A pause longer than the transaction time-out looks the same as a second driver. A second driver has taken
            # the tables first; if they are still ours, it was a pause.
            if self._outbox.is_fenced():
                raise
            self._behind = self._was_fenced = True
            log.warning("a transaction was open for longer than its time-out, after a pause; opening the topic again")
        except (ClusterUnreachable, TransactionUndecided, PermissionMissing) as exc:
            self._behind = True
            self._most_records = _FEWEST_RECORDS
            log.warning("%s; the records are stored and will be published again", exc)

    def _publish(self, records: ThrottleRecords) -> None:
        """One transaction; more if one of the records is larger than the topic takes: that one is passed over.

        The marker moves past a record that is passed over, so it is settled once: stored, logged and not tried again.
        """
        last = records[-1]
        try:
            self._topic.publish(records, last.publish_seq + 1)
        except MessageTooLarge as exc:
            self._topic.open()
            if len(records) > 1:
                half = len(records) // 2
                self._publish(records[:half])
                self._publish(records[half:])
                return
            log.error(
                "the %s of user %.60r, client-id %.60r (publish_seq %d) is in throttle_events and not on the topic: %s",
                last.action,
                last.user,
                last.client_id,
                last.publish_seq,
                exc.detail,
            )
            self._topic.publish([], last.publish_seq + 1)


# How long before its end a throttle is looked at.
#
# A renewal must reach the client before it wakes. From the instant a debt becomes visible to the instant the client
# knows, there pass: up to one trigger until usage is in the engine, the time to publish, the client's own lag. Hence
#
#     lead = trigger + p99 of the publish lag, as measured + client lag, and never below a floor.

_MEASURED: Final = 512
_EVERY: Final = 16


class RenewLead:
    """Follows the publish lag and gives the lead."""

    def __init__(self, trigger_ms: int, client_lag_ms: int, min_lead_ms: int) -> None:
        self._fixed_ms = trigger_ms + client_lag_ms
        self._min_ms = min_lead_ms
        self._lags_ms: deque[int] = deque(maxlen=_MEASURED)
        self._observed = 0
        self._lead_ms = max(self._fixed_ms, min_lead_ms)

    @property
    def lead_ms(self) -> int:
        """The lead now, in milliseconds."""
        return self._lead_ms

    def observe(self, publish_lag_ms: int) -> None:
        """Take in how long one publishing took; the p99 is of the last 512 and taken again every 16."""
        self._lags_ms.append(publish_lag_ms)
        self._observed += 1
        if self._observed % _EVERY == 0:
            ordered = sorted(self._lags_ms)
            p99_ms = ordered[min(len(ordered) * 99 // 100, len(ordered) - 1)]
            self._lead_ms = max(self._fixed_ms + p99_ms, self._min_ms)
