"""Defects of the job, seeded one at a time: what an independent judge must find.

Each replaces one function or method of the job, at a place where a real mistake could be. The job is driven by
`HandJob`, everything else of it is as it is.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from pipeline.stream import job_tables, micro_batch
from pipeline.stream.job_tables import SensorStateTable
from pipeline.stream.micro_batch import MicroBatch
from pipeline.throttle import purgatory
from pipeline.throttle.decider import Decider
from pipeline.throttle.lifecycle import Throttles
from pipeline.throttle.publisher import Outbox
from pipeline.throttle.purgatory import RenewLead, ThrottlePurgatory
from pipeline.throttle.shapes import Publications
from quota import decisions, engine
from quota.decisions import Asked
from quota.engine import QuotaEngine
from quota.rates import MAX_DEBT_BURSTS, SampleWindows, TokenBuckets
from quota.throttle_time import Slicing
from schemas.rows import DecisionRow
from tests.fakes.topic import MemoryTopic

Change = Callable[..., Any]
"""The new function; its first argument is the one it replaces."""


@dataclass(frozen=True, slots=True)
class Mutation:
    """One defect.

    Attributes:
        owner: The class or module that has the function.
        name: Of the function.
        change: What it does instead.
        told: How a line of the verdict begins that names it.
    """

    owner: Any
    name: str
    change: Change
    told: str

    def seed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Put the defect in, until the test ends."""
        original, change = getattr(self.owner, self.name), self.change
        if isinstance(original, property):
            monkeypatch.setattr(self.owner, self.name, property(lambda this: change(original.fget, this)))
        else:
            bound = getattr(original, "__func__", original)
            put = classmethod if bound is not original else lambda function: function
            changed = put(lambda *arguments, **named: change(bound, *arguments, **named))
            monkeypatch.setattr(self.owner, self.name, changed)


def _without_deepest(buckets: pa.Table) -> pa.Table:
    if not buckets.num_rows:
        return buckets
    return buckets.filter(pc.not_equal(buckets["tokens"], pc.min(buckets["tokens"])))


def _emptied(newest: Change, *arguments: Any) -> Any:
    snapshot = newest(*arguments)
    return None if snapshot is None else (snapshot[0], snapshot[1].slice(0, 0))


def _with(table: pa.Table, name: str, values: Any) -> pa.Table:
    at = table.schema.get_field_index(name)
    return table.set_column(at, table.schema.field(at), pa.array(values, table.schema.field(at).type))


def _released_at_end(check: Change, due: Any, claims: Any, *others: Any) -> Any:
    return check(due, replace(claims, owed_ms=np.where(due.is_at_end, 0, claims.owed_ms)), *others)


def _with_cause(cause: Any) -> Change:
    def change(
        check: Change, this: Any, judged: Any, throttles: Any, at_ms: Any, now: Any, causes: Any, late: Any
    ) -> Any:
        return check(this, judged, throttles, at_ms, now, causes if late else (cause, cause), late)

    return change


def _numbered_twice(written_down: Change, *arguments: Any) -> Any:
    """The second of at least three records gets the number of the first: the newest number is still given once."""
    written = written_down(*arguments)
    if written.num_rows > 2:
        numbers = written["publish_seq"].to_pylist()
        return _with(written, "publish_seq", [numbers[0], numbers[0], *numbers[2:]])
    return written


def _input(change: Callable[[Any, Any], Any]) -> Change:
    return lambda append, this, batch, facts: append(this, change(batch, facts), facts)


def _without_late_rows(batch: Any, facts: Any) -> Any:
    in_time = pc.greater(batch.usage["last_event_ms"], facts.evaluation.evaluated_at_ms - 2_000)
    return replace(batch, usage=batch.usage.filter(in_time))


def _with_a_row_twice(batch: Any, _facts: Any) -> Any:
    return replace(batch, usage=pa.concat_tables([batch.usage, batch.usage.slice(0, 1)]))


def _with_next_version(conform: Change, table: pa.Table, model: Any, **columns: Any) -> Any:
    if model is DecisionRow:
        columns["quota_version"] += 1
    return conform(table, model, **columns)


def _uncounted(limit: Change, batch: Any, *others: Any) -> Any:
    limited, ahead = limit(batch, *others)
    return replace(limited, clamped_count=batch.clamped_count), ahead


def _every_violation(publish: Change, violations: Any, running: Any, now_ms: int, slicing: Any) -> Any:
    return publish(violations, replace(running, end_ms=running.end_ms * 0), now_ms, slicing)


def _by_x_alone(publish: Change, violations: Any, *others: Any) -> Any:
    return publish(replace(violations, claims=replace(violations.claims, owed_ms=violations.throttle_time_ms)), *others)


def _as_with(min_hold_ms: int) -> Change:
    return lambda rule, this, *arguments: rule(replace(this, min_hold_ms=min_hold_ms), *arguments)


def _later(check: Change, this: Any, throttles: Any, keys: Any, names: Any, at_ms: Any) -> Any:
    return check(this, throttles, keys, names, at_ms + 700)


def _with_client_ids(targets: Change, this: Any) -> Any:
    return _with(targets(this), "client_id", [one or "" for one in targets(this)["client_id"].to_pylist()])


def _without_clients(stored: Change, this: Any) -> Any:
    rows = stored(this)
    return rows.filter(pc.or_kleene(pc.is_null(rows["client_id"]), rows["asks_hold"]))


def _until_wall_clock(left_ms: Change, rows: pa.Table, *others: Any) -> Any:
    return left_ms(_with(rows, "throttle_time_ms", [10**9] * rows.num_rows), *others)


MUTATIONS: Final = {
    "debts are forgiven at a restart": Mutation(SensorStateTable, "newest", _emptied, "buckets"),
    "the deepest debt is missing from the snapshots": Mutation(
        Decider, "buckets", lambda buckets, this: _without_deepest(buckets(this)), "buckets: lost"
    ),
    "full buckets are in the snapshots": Mutation(
        TokenBuckets,
        "below_burst",
        lambda _, this, sensors, *__: np.ones(len(sensors), np.bool_),
        "buckets: duplicated",
    ),
    "no snapshot is taken": Mutation(SensorStateTable, "write_if_due", lambda *_: False, "snapshots: lost"),
    "whoever comes to its end is released": Mutation(purgatory, "check", _released_at_end, "releases: different"),
    "a throttle counts as ended at its check": Mutation(
        Throttles, "is_at_end", lambda _, throttles: np.ones(len(throttles), np.bool_), "releases"
    ),
    "checks ahead of the end are skipped": Mutation(
        ThrottlePurgatory,
        "_times",
        lambda _, this, end_ms, *others: (end_ms, end_ms),
        "checks: different",
    ),
    "checks come too early": Mutation(RenewLead, "lead_ms", lambda *_: 2_000, "checks: different"),
    "checks are evaluated at a wrong instant": Mutation(Decider, "check", _later, "renewals: different"),
    "numbers are given twice": Mutation(Publications, "written", _numbered_twice, "publish_seq: duplicated"),
    "a stored record is lost": Mutation(
        Outbox, "append", lambda append, this, rows, *others: append(this, rows.slice(1), *others), "publish_seq"
    ),
    "a published record is lost": Mutation(
        MemoryTopic, "publish", lambda publish, this, rows, marker: publish(this, rows.slice(1), marker), "topic: lost"
    ),
    "late usage is not charged": Mutation(
        engine,
        "record_piece",
        lambda record, sensors, piece, *given: None if piece.is_late else record(sensors, piece, *given),
        "buckets: different",
    ),
    "late rows are lost": Mutation(MicroBatch, "_append_input", _input(_without_late_rows), "usage: lost"),
    "a row of usage is stored twice": Mutation(
        MicroBatch, "_append_input", _input(_with_a_row_twice), "usage: duplicated"
    ),
    "a dead letter is lost": Mutation(
        MicroBatch,
        "_append_input",
        _input(lambda batch, _: replace(batch, dead_letters=batch.dead_letters.slice(1))),
        "dead_letters: lost",
    ),
    "clamped events are not counted": Mutation(micro_batch, "limit_event_times", _uncounted, "batches: different"),
    "event times are not limited": Mutation(
        micro_batch, "limit_event_times", lambda _, batch, *__: (batch, None), "batches: different"
    ),
    "decisions name a wrong quota version": Mutation(job_tables, "conform", _with_next_version, "decisions: different"),
    "the wrong decision asks for a hold": Mutation(
        decisions, "_asking", lambda asking, *arguments: np.roll(asking(*arguments), 1), "decisions: different"
    ),
    "the throttle of a user holds its client without a client-id": Mutation(
        Asked, "targets", _with_client_ids, "begins: different"
    ),
    "a hold of a user has no exceptions": Mutation(
        QuotaEngine,
        "except_client_ids",
        lambda excepted, this, user, quota_type: excepted(this, user, quota_type) and (),
        "edits: lost",
    ),
    "the clients of a sensor are not recorded": Mutation(
        decisions.Decisions, "stored", _without_clients, "decisions: lost"
    ),
    "a hold that is asked for is not published": Mutation(
        purgatory,
        "violations_to_publish",
        lambda publish, *arguments: tuple(one[1:] for one in publish(*arguments)),
        "holds: lost",
    ),
    "every violation is published": Mutation(
        purgatory, "violations_to_publish", _every_violation, "extensions: different"
    ),
    "batches of any age are published": Mutation(MicroBatch, "_is_old", lambda *_: False, "begins: different"),
    "what was decided before an edit is published": Mutation(
        ThrottlePurgatory, "_still_valid", lambda _, __, violations, *___: violations, "begins: different"
    ),
    "event time waits for a clock that was ahead": Mutation(
        micro_batch, "begins_time_epoch", lambda *_: False, "batches: different"
    ),
    "sample windows outlive their time epoch": Mutation(
        SampleWindows, "restart", lambda _, this, newest: setattr(this, "_newest", newest), "decisions: "
    ),
    "debts do not move with the clocks": Mutation(TokenBuckets, "move_clock", lambda *_: None, "buckets: different"),
    "usage of a gap is charged in full": Mutation(
        TokenBuckets,
        "charge",
        lambda charge, *arguments: charge(*arguments[:-1], MAX_DEBT_BURSTS),
        "buckets: different",
    ),
    "no usage is of a gap": Mutation(micro_batch, "gap_of", lambda *_: None, "batches: different"),
    "late usage throttles no client": Mutation(
        QuotaEngine, "_owing", lambda owing, this, key, _, others: owing(this, key, [], others), "decisions: lost"
    ),
    "a throttle is taken up until its wall-clock end": Mutation(purgatory, "left_ms", _until_wall_clock, "holds: lost"),
    "edits let nobody go": Mutation(ThrottlePurgatory, "_check_after_edit", lambda *_: 0, "edits: lost"),
    "an edit's release is told as an end": Mutation(
        ThrottlePurgatory, "_check", _with_cause("expired"), "releases: different"
    ),
    "a renewal is shorter than what is owed": Mutation(
        Slicing, "slices_ms", lambda slices_ms, *arguments: slices_ms(*arguments) // 2 + 1, "renewals: different"
    ),
    "throttles begin that are too short": Mutation(Slicing, "is_published", _as_with(1), "begins: different"),
    "throttles are missing that are long enough": Mutation(Slicing, "is_published", _as_with(2_000), "holds: lost"),
    "a throttle is as long as X and not as what is owed": Mutation(
        purgatory, "violations_to_publish", _by_x_alone, "begins: different"
    ),
    "renewals are published that are too short": Mutation(Slicing, "at_check", _as_with(1), "renewals: different"),
    "who owes much is released": Mutation(Slicing, "at_check", _as_with(2_000), "releases: different"),
    "what an edit leaves of a throttle is too short": Mutation(Slicing, "at_edit", _as_with(1), "edits: different"),
}
"""By what goes wrong."""
