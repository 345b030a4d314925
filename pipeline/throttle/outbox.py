"""Records on their way to the topic, as rows of `throttle_events`.

A row is written first and published from what was written, so whatever reaches the topic is also in the table,
with the same wall-clock end, however often the publishing has to be tried.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from pipeline.clock import Moment
from pipeline.throttle.held import FIGURES, HeldThrottle, Publication
from pipeline.throttle.reasons import reason_of
from quota.evaluation import Evaluation
from schemas.arrow import arrow_schema, conform
from schemas.client_key import ClientKey
from schemas.throttle_event_row import ThrottleEventRow
from schemas.throttle_record import SCHEMA_VERSION


def publish_app_id(job: str) -> str:
    """The app id whose recorded version is the last `publish_seq` a job has written."""
    return f"{job}:publish"


class Outbox(Protocol):
    """Where the rows are kept: the `throttle_events` table, through a guarded writer."""

    def append(self, rows: pa.Table, versions: Mapping[str, int], metadata: Mapping[str, str]) -> bool:
        """Append rows in one commit; False if a version in `versions` is already recorded (nothing written)."""
        ...

    def rows_from(self, publish_seq: int) -> pa.Table:
        """Stored rows with this `publish_seq` or a higher one, in its order."""
        ...

    def is_fenced(self) -> bool:
        """Whether another driver has taken the table over since this one did."""
        ...

    def newest(self) -> tuple[int, pa.Table]:
        """The highest `publish_seq` ever written (-1: none) and the last row of every client where that is a throttle.

        Its row may be gone: rows are kept for a time only, the number is never given again.
        """
        ...


@dataclass(frozen=True, slots=True)
class Written:
    """One publication as it was written: its position and its wall-clock end."""

    publication: Publication
    publish_seq: int
    throttled_until_ms: int


Announce = Callable[[Written, int], None]
"""Hears a record that was written, and the quota version it was decided under. Must be quick and must not raise."""


def write_down(publications: Sequence[Publication], first_seq: int, now: Moment) -> list[Written]:
    """Give publications their places in the order and their wall-clock ends."""
    return [
        Written(publication, first_seq + place, now.wall_ms + publication.throttle_time_ms)
        for place, publication in enumerate(publications)
    ]


def rows_of(written: Sequence[Written], evaluation: Evaluation, cluster: str) -> pa.Table:
    """The rows of `throttle_events` for these records: schema of `ThrottleEventRow`, one per record, in order."""
    rows = [
        {
            "publish_seq": record.publish_seq,
            "action": record.publication.action,
            "cause": record.publication.cause,
            **record.publication.key._asdict(),
            "throttle_time_ms": record.publication.throttle_time_ms,
            "throttled_until_ms": record.throttled_until_ms,
            "decision_id": record.publication.decision_id,
            "due_ms": record.publication.due_ms,
            "lateness_ms": record.publication.lateness_ms,
            **{name: getattr(record.publication.reason, name) for name in FIGURES},
        }
        for record in written
    ]
    columns = [column for column in arrow_schema(ThrottleEventRow) if not rows or column.name in rows[0]]
    return conform(
        pa.Table.from_pylist(rows, schema=pa.schema(columns)),
        ThrottleEventRow,
        cluster=cluster,
        query_id=evaluation.query_id,
        batch_id=evaluation.batch_id,
        evaluated_at_ms=evaluation.evaluated_at_ms,
        quota_version=evaluation.quota_version,
        schema_version=SCHEMA_VERSION,
    )


def held_from(row: Mapping[str, Any], now: Moment, lead_ms: int) -> HeldThrottle:
    """The running throttle a stored row stands for, after a restart.

    Its end on the steady clock is as far away as its wall-clock end is from the wall clock now; an end that has
    passed, or is nearer than the lead, makes it due at once.
    """
    until_ms: int = row["throttled_until_ms"]
    end_ms = now.steady_ms + max(until_ms - now.wall_ms, 0)
    return HeldThrottle(
        key=ClientKey(row["broker_id"], row["user"], row["client_id"]),
        reason=reason_of(row, {**row, "level": None}),
        decision_id=row["decision_id"],
        throttled_until_ms=until_ms,
        end_ms=end_ms,
        due_ms=min(max(end_ms - lead_ms, now.steady_ms), end_ms),
    )
