"""The rules of `pipeline.throttle` client by client, on objects: what the columns of the job are compared with.

It is how the job itself did it before it went by columns. Nothing here is fast, and nothing is shared with the job but
the engine, the shape of a stored row and a topic record that is made one at a time.
"""

from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from typing import Any, Literal

import pyarrow as pa

from pipeline.clock import Moment
from pipeline.settings.model import Settings
from pipeline.throttle.assembly import new_engine, nominal_slicing
from pipeline.throttle.shapes import Publication, Reason, Written
from quota.entity import QUOTA_TYPES, TIE_ORDER
from quota.replay import Evaluation
from quota.snapshot import QuotaSnapshot
from schemas.arrow import arrow_schema, conform
from schemas.decisions import decision_id
from schemas.names import ClientKey
from schemas.throttle_record import SCHEMA_VERSION, ThrottleEventRow, stored_record
from tests.fakes.outbox import MemoryOutbox
from tests.pipeline.throttle.held_one_by_one import Held, Ledger
from tests.quota import one_throttle

SENSOR = ("sensor_user", "sensor_client_id")
FIGURES = tuple(column.name for column in fields(Reason) if column.name != "level")
FACTS = ("query_id", "batch_id", "time_epoch", "evaluated_at_ms", "quota_version")
TIE_RANK = {QUOTA_TYPES[position]: rank for rank, position in enumerate(TIE_ORDER)}
JOB = "kquota"

Message = tuple[bytes, bytes, list[tuple[str, bytes]]]


class OneByOne:
    """Engine, purgatory and publisher. What it publishes is in `messages`, what it stores in `outbox`."""

    def __init__(self, settings: Settings, scope: Literal["cluster", "broker"], cluster: str) -> None:
        self._settings, self._scope, self._cluster = settings, scope, cluster
        self._slicing = nominal_slicing(settings)
        self.outbox = MemoryOutbox()
        self.messages: list[Message] = []
        self.announced: list[tuple[Written, int]] = []
        self.start(Moment(0, 0), [])

    def start(self, now: Moment, batches: Iterable[tuple[QuotaSnapshot, pa.Table, Evaluation]]) -> None:
        """A new process with a new engine, which has recorded these batches; throttles are those that are stored."""
        self._engine = new_engine(self._settings.engine, self._scope)
        self._in_force: QuotaSnapshot | None = None
        self._last = Evaluation("", -1, 0, -1)
        self._settled_version = -1
        for snapshot, usage, evaluation in batches:
            self._decide(snapshot, usage, evaluation, Moment(0, evaluation.evaluated_at_ms))
        self._ledger = Ledger()
        self._ends: dict[ClientKey, int] = {}
        for row in self.outbox.newest()[1].to_pylist():
            end_ms = now.steady_ms + max(min(row["throttled_until_ms"] - now.wall_ms, row["throttle_time_ms"]), 0)
            due_ms = min(max(end_ms - self._slicing.lead_ms, now.steady_ms), end_ms)
            reason = reason_of(row, {**row, "level": None})
            self._ledger.hold(Held(_key(row), reason, row["decision_id"], end_ms, due_ms))
            self._ends[_key(row)] = end_ms

    def batch(self, snapshot: QuotaSnapshot, usage: pa.Table, evaluation: Evaluation, now: Moment) -> pa.Table:
        """A micro-batch; the decisions."""
        decisions, violations = self._decide(snapshot, usage, evaluation, now)
        if violations and evaluation.quota_version < self._last.quota_version:
            standing = self._standing([(one.key, one.reason) for one in violations])
            violations = [one for one in violations if not _is_touched(one.reason, standing[one.key])]
        news = []
        for one in violations:
            running, reason = self._ledger.held.get(one.key), one.reason
            owed_ms = max(reason.owed_ms, one.throttle_time_ms)
            slice_ms = one_throttle.slice_ms(self._slicing, owed_ms, reason.window_ms, reason.quota_type)
            told = replace(one, throttle_time_ms=max(slice_ms, one.throttle_time_ms))
            left_ms = None if running is None else max(running.end_ms - now.steady_ms, 0)
            ago_ms = now.steady_ms - self._ends.get(one.key, -(1 << 52))
            if one_throttle.is_published(self._slicing, owed_ms, told.throttle_time_ms, left_ms, ago_ms):
                extension = {} if running is None else {"decision_id": running.decision_id, "extends": True}
                news.append(replace(told, **extension))  # type: ignore[arg-type]
        self._publish(news, evaluation, now)
        return decisions

    def running(self) -> list[Held]:
        """Who is held."""
        return list(self._ledger.held.values())

    def pop_due(self, now: Moment) -> int:
        return self._ledger.pop_due(now.steady_ms)

    def tick(self, now: Moment) -> None:
        """Checks and ends."""
        self.pop_due(now)
        due = self._ledger.take_due()
        if not due:
            return
        evaluation, reasons = self._check([throttle for throttle, _ in due], now)
        news = []
        for throttle, at_ms in due:
            reason, is_at_end = reasons[throttle.key], throttle.due_ms >= throttle.end_ms
            late: dict[str, Any] = {"due_ms": throttle.due_ms, "lateness_ms": max(at_ms - throttle.due_ms, 0)}
            left_ms = max(throttle.end_ms - now.steady_ms, 0)
            step = one_throttle.check(self._slicing, reason.owed_ms, left_ms, at_end=is_at_end)
            if step == "hold":
                news.append(self._longer(throttle, "renewed", reason, **late))
            elif step == "release":
                news.append(Publication(throttle.key, "release", "expired", 0, reason, throttle.decision_id, **late))
            else:
                self._ledger.hold(replace(throttle, due_ms=throttle.end_ms))
        self._publish(news, evaluation, now)

    def edit(self, snapshot: QuotaSnapshot, now: Moment) -> None:
        """Another quota version."""
        if self._in_force is not None and snapshot.version <= self._in_force.version:
            if snapshot.version <= self._settled_version:
                return
        else:
            self._in_force = snapshot
            self._engine.load_quotas(snapshot)
            self._last = replace(self._last, quota_version=snapshot.version)
        held = list(self._ledger.held.values())
        standing = self._standing([(throttle.key, throttle.reason) for throttle in held])
        touched = [throttle for throttle in held if _is_touched(throttle.reason, standing[throttle.key])]
        if touched:
            evaluation, reasons = self._check(touched, now)
            self._publish(self._after_edit(touched, reasons, now), evaluation, now)
        self._settled_version = snapshot.version

    def _after_edit(self, touched: list[Held], reasons: Mapping[ClientKey, Reason], now: Moment) -> list[Publication]:
        news = []
        for throttle in touched:
            before, reason = throttle.reason, reasons[throttle.key]
            left_ms = max(throttle.end_ms - now.steady_ms, 0)
            fell = (
                before.quota_type == reason.quota_type
                and before.bound is not None
                and reason.bound is not None
                and reason.bound < before.bound
            )
            step = one_throttle.edit(self._slicing, reason.owed_ms, left_ms, fell=fell)
            if step == "release":
                news.append(Publication(throttle.key, "release", "quota_changed", 0, reason, throttle.decision_id))
            elif step == "hold":
                news.append(self._longer(throttle, "quota_changed", reason))
            else:
                self._ledger.hold(replace(throttle, due_ms=throttle.end_ms))
        return news

    def _decide(
        self, snapshot: QuotaSnapshot, usage: pa.Table, evaluation: Evaluation, now: Moment
    ) -> tuple[pa.Table, list[Publication]]:
        self._engine.load_quotas(snapshot)
        rows = self._engine.record(usage, evaluated_at_ms=evaluation.evaluated_at_ms)
        parts = ("broker_id", "user", "client_id", "quota_type")
        batch: dict[str, Any] = {
            "cluster": self._cluster,
            "query_id": evaluation.query_id,
            "batch_id": evaluation.batch_id,
        }
        ids = [decision_id(**batch, **{name: row[name] for name in parts}) for row in rows.to_pylist()]
        decisions = rows.append_column("decision_id", pa.array(ids, pa.string()))
        violations = []
        for row in decisions.to_pylist():
            if row["applied"]:
                (debt,) = (one for one in self._owed([_key(row)], evaluation) if one["quota_type"] == row["quota_type"])
                reason = reason_of({**row, "tokens": debt["tokens"], "owed_ms": debt["owed_ms"]}, row)
                asked = (row["throttle_time_ms"], reason, row["decision_id"])
                violations.append(Publication(_key(row), "throttle", "violation", *asked))
        if self._in_force is None or snapshot.version >= self._in_force.version:
            self._in_force = snapshot
        else:
            self._engine.load_quotas(self._in_force)
        if evaluation.evaluated_at_ms > self._last.evaluated_at_ms:
            self._steady_at_last_ms = now.steady_ms
        self._last = replace(evaluation, quota_version=self._in_force.version)
        return decisions, violations

    def _owed(self, keys: list[ClientKey], evaluation: Evaluation) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self._engine.evaluate(_table(keys), evaluation.evaluated_at_ms).to_pylist()
        return rows

    def _check(self, throttles: list[Held], now: Moment) -> tuple[Evaluation, dict[ClientKey, Reason]]:
        passed_ms = max(now.steady_ms - self._steady_at_last_ms, 0)
        seen = replace(self._last, evaluated_at_ms=self._last.evaluated_at_ms + passed_ms)
        reasons = {}
        for throttle in throttles:
            known = throttle.reason
            claim = max(
                self._owed([throttle.key], seen),
                key=lambda row: (row["owed_ms"], row["quota_type"] == known.quota_type, -TIE_RANK[row["quota_type"]]),
            )
            sensor: Mapping[str, Any] = {name: getattr(known, name) for name in (*SENSOR, "level")}
            if (claim["quota_type"], claim["bound"]) != (known.quota_type, known.bound) or known.level is None:
                levels = self._engine.resolve(_table([throttle.key])).to_pylist()
                sensor = levels[QUOTA_TYPES.index(claim["quota_type"])]
            reasons[throttle.key] = reason_of(claim, sensor)
        return seen, reasons

    def _standing(self, asked: list[tuple[ClientKey, Reason]]) -> dict[ClientKey, tuple[float | None, int | None]]:
        standing = {}
        for key, reason in asked:
            row = self._engine.resolve(_table([key])).to_pylist()[QUOTA_TYPES.index(reason.quota_type)]
            standing[key] = (row["bound"] if row["mode"] == "enforce" else None, row["level"])
        return standing

    def _longer(self, throttle: Held, cause: Any, reason: Reason, **late: Any) -> Publication:
        slice_ms = one_throttle.slice_ms(self._slicing, reason.owed_ms, reason.window_ms, reason.quota_type)
        return Publication(throttle.key, "throttle", cause, slice_ms, reason, throttle.decision_id, **late)

    def _publish(self, news: list[Publication], evaluation: Evaluation, now: Moment) -> None:
        if not news:
            return
        first = self.outbox.newest()[0] + 1
        written = [Written(one, first + place, now.wall_ms + one.throttle_time_ms) for place, one in enumerate(news)]
        rows = rows_of(written, evaluation, self._cluster)
        self.outbox.append(rows, {"kquota:publish": written[-1].publish_seq}, {})
        for row, one in zip(rows.to_pylist(), written, strict=True):
            record = stored_record(row)
            self.messages.append((record.key(), record.to_value(), record.headers(JOB)))
            self.announced.append((one, evaluation.quota_version))
            if one.publication.action == "release":
                self._ledger.drop(one.publication.key)
                continue
            end_ms = now.steady_ms + one.publication.throttle_time_ms
            self._ends[one.publication.key] = end_ms
            due_ms = max(end_ms - self._slicing.lead_ms, now.steady_ms)
            about = (one.publication.key, one.publication.reason, one.publication.decision_id)
            self._ledger.hold(Held(*about, end_ms, due_ms))


def rows_of(written: list[Written], evaluation: Evaluation, cluster: str) -> pa.Table:
    """The rows of `throttle_events`, made one at a time."""
    rows = [
        {
            "publish_seq": one.publish_seq,
            "throttled_until_ms": one.throttled_until_ms,
            **{name: getattr(one.publication, name) for name in ("action", "cause", "throttle_time_ms")},
            **one.publication.key._asdict(),
            **{name: getattr(one.publication, name) for name in ("decision_id", "due_ms", "lateness_ms")},
            **{name: getattr(one.publication.reason, name) for name in FIGURES},
        }
        for one in written
    ]
    schema = pa.schema([column for column in arrow_schema(ThrottleEventRow) if column.name in rows[0]])
    facts = {name: getattr(evaluation, name) for name in FACTS}
    table = pa.Table.from_pylist(rows, schema=schema)
    return conform(table, ThrottleEventRow, cluster=cluster, schema_version=SCHEMA_VERSION, **facts)


def reason_of(figures: Mapping[str, Any], sensor: Mapping[str, Any]) -> Reason:
    """A reason from the figures of `evaluate` and the sensor of `resolve` (or of a decision, or of a stored row)."""
    values: dict[str, Any] = {name: figures[name] for name in FIGURES if name not in SENSOR}
    values |= {name: sensor[name] or "" for name in SENSOR}
    return Reason(**values, level=sensor["level"])


def _is_touched(reason: Reason, standing: tuple[float | None, int | None]) -> bool:
    bound, level = standing
    return reason.bound != bound or (reason.level is not None and reason.level != level)


def _key(row: Mapping[str, Any]) -> ClientKey:
    return ClientKey(row["broker_id"], row["user"], row["client_id"])


def _table(keys: list[ClientKey]) -> pa.Table:
    return pa.table({name: pa.array([getattr(key, name) for key in keys], pa.string()) for name in ClientKey._fields})
