"""Properties of a life that the verifier does not have, each computed from what is stored or published."""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from math import isclose
from typing import Final, Self

from pipeline.settings.model import EngineSettings
from schemas.throttle_record import BATCH_CAUSES, Target, ThrottleRecord
from tests.faults.evidence import Batch, Evidence, Row, Version, cut, version_of
from tests.faults.hand_job import HandJob
from tests.faults.verdict import Verdict
from tests.faults.verifier import by_batch

_MEASURES: Final = {
    "producer_byte_rate": ("produced_bytes",),
    "consumer_byte_rate": ("fetched_bytes",),
    "request_percentage": ("io_time_ns", "network_time_ns"),
}
_MOST_BURSTS: Final = 10


def check_holds(records: Iterable[ThrottleRecord], calm: Collection[str]) -> list[str]:
    """On the topic each target has at most one hold at a time; and who never used much is never held."""
    found: list[str] = []
    running: dict[Target, ThrottleRecord] = {}
    for record in records:
        before = running.pop(record.target, None)
        if record.action == "throttle":
            running[record.target] = record
            begins = record.cause in {"violation", "debt"}
            if (before is not None) and begins:
                found.append(f"holds: publish_seq {record.publish_seq} begins a hold of {record.target}, which is held")
            if record.user in calm:
                found.append(f"holds: {record.user} is held by publish_seq {record.publish_seq} and never used much")
        elif before is None:
            found.append(f"holds: publish_seq {record.publish_seq} releases {record.target}, which is not held")
    return found


def check_ledger(job: HandJob) -> list[str]:
    """After a trigger, whom the driver holds is whom the topic holds, if all records are on the topic.

    No client is held twice for one quota type: on its own and with its user.
    """
    if len(job.broker.records) != job.rows("throttle_events", ["publish_seq"]).num_rows:
        return []
    last = {record.target: record for record in job.broker.records}
    on_topic = {target for target, record in last.items() if record.action == "throttle"}
    held = {Target.of(row) for row in job.purgatory.held().to_pylist()}
    found = [f"ledger: it holds {held - on_topic}, the topic {on_topic - held}"] if held != on_topic else []
    for target in on_topic:
        user = last.get(Target(target.broker_id, target.user, None, last[target].quota_type))
        is_twice = target.client_id is not None and user is not None and user.action == "throttle"
        if is_twice and user is not None and target.client_id not in (user.except_client_ids or ()):
            found.append(f"holds: {target} is held twice for {user.quota_type}")
    return found


@dataclass
class Account:
    """What one user owes for one quota type, along the batches: the integral of what it used above its bound.

    tokens = a full bucket − used above the bound + what rules forget; None before the first usage.

    Attributes:
        forgot: Counts how often each rule forgot something.
    """

    evidence: Evidence
    num_samples: int
    window_ms: int
    user: str
    quota_type: str
    forgot: Counter[str]
    compared: int = 0
    found: list[str] = field(default_factory=list)
    _begun_with: float | None = None
    _excess: float = 0.0
    _forgotten: float = 0.0
    _refilled_at_ms: int = 0

    @property
    def _tokens(self) -> float | None:
        return None if self._begun_with is None else self._begun_with - self._excess + self._forgotten

    def _close(self) -> None:
        """The next usage finds a full bucket."""
        self._begun_with, self._excess, self._forgotten = None, 0.0, 0.0

    def _quota(self, version: Version) -> Row:
        rows = self.evidence.quotas[version].rows
        return next(row for row in rows if (row["user"], row["client_id"]) == (self.user, ""))

    def _bound(self, version: Version) -> float:
        return float(self._quota(version)[self.quota_type])

    def _burst(self, bound: float) -> float:
        return self.num_samples * self.window_ms / 1_000.0 * bound

    def _use(self, until_ms: int, amount: float, bound: float, is_heard: bool) -> None:
        """Usage of one sample window: up to its end the bound is earned; then this much is used."""
        burst, rule = self._burst(bound), "10 bursts" if is_heard else "a gap"
        if self._begun_with is None:
            self._begun_with, self._refilled_at_ms = burst, until_ms
        self._forget("10 bursts", -_MOST_BURSTS * burst)
        self._excess -= bound * max(until_ms - self._refilled_at_ms, 0) / 1_000.0
        self._refilled_at_ms = max(until_ms, self._refilled_at_ms)
        assert self._tokens is not None
        self._forgotten -= max(self._tokens - burst, 0.0)  # no more than a burst is kept
        least = min(self._tokens, -burst * (_MOST_BURSTS if is_heard else 1))
        self._excess += amount
        self._forget(rule, least)

    def _forget(self, rule: str, least: float) -> None:
        """What is owed below this is forgotten."""
        assert self._tokens is not None
        if self._tokens < least:
            self.forgot[f"debt forgotten: {rule}"] += 1
            self._forgotten += least - self._tokens

    def _tokens_at(self, at_ms: int, version: Version) -> float:
        bound = self._bound(version)
        burst = self._burst(bound)
        if self._tokens is None:
            return burst
        since_seconds = max(at_ms - self._refilled_at_ms, 0) / 1_000.0
        return min(max(self._tokens, -_MOST_BURSTS * burst) + bound * since_seconds, burst)

    def follow(self) -> Self:
        """Go through all batches, with the records and the snapshot after each."""
        tables = {name: by_batch(rows) for name, rows in self.evidence.tables.items()}
        before_ms, epoch, forgiven_ms = 0, 0, 0
        for batch in cut(self.evidence.tables["batches"], self.evidence.messages, "usage", Verdict()):
            now_ms, until_ms = batch.evaluated_at_ms, self._quota(batch.version)["forgiven_until_ms"] or 0
            if batch.time_epoch > epoch:
                self._refilled_at_ms += now_ms - before_ms
            if before_ms and until_ms > forgiven_ms:
                self.forgot["debt forgotten: forgiven"] += self._begun_with is not None
                self._close()
            before_ms, epoch, forgiven_ms = now_ms, batch.time_epoch, until_ms
            self._record(tables["usage"][batch.key], batch)
            records = [row for row in tables["throttle_events"][batch.key] if self._is_own(row)]
            before_snapshot = [self._at(row) for row in records]
            self._see_snapshot(tables["sensor_state"].get(batch.key), batch)
            for row, wanted in zip(records, before_snapshot, strict=True):
                self._expect(f"publish_seq {row['publish_seq']}", row["tokens"], {*wanted, *self._at(row)})
        return self

    def _is_own(self, row: Row) -> bool:
        own = self.user, "", self.quota_type
        return (row["sensor_user"], row["sensor_client_id"], row["quota_type"]) == own and row["tokens"] is not None

    def _record(self, rows: Iterable[Row], batch: Batch) -> None:
        used: dict[tuple[int, bool], float] = {}
        for row in rows:
            amounts = [row[name] for name in _MEASURES[self.quota_type] if row[name] is not None]
            if row["user"] == self.user and amounts:
                place = row["sample_start_ms"], not row["in_gap"]
                used[place] = used.get(place, 0.0) + sum(amounts)
        unit = 1e-7 if self.quota_type == "request_percentage" else 1.0
        for (start_ms, is_heard), amount in sorted(used.items()):
            until_ms = min(start_ms + self.window_ms, batch.evaluated_at_ms)
            self._use(until_ms, amount * unit, self._bound(batch.version), is_heard)

    def _at(self, row: Row) -> set[float]:
        """At the instant of a record; or when the usage was charged, for a debt that usage from before has shown."""
        instants = {row["evaluated_at_ms"]} | ({self._refilled_at_ms} if row["cause"] in BATCH_CAUSES else set())
        return {self._tokens_at(at_ms, version_of(row)) for at_ms in instants}

    def _see_snapshot(self, rows: Sequence[Row] | None, batch: Batch) -> None:
        """A snapshot has the bucket, or it was full at the end of the oldest window: then it is new from now on."""
        if rows is None or self._tokens is None:
            return
        where, stored = f"the snapshot after {batch.key}", [row for row in rows if self._is_own(row)]
        if stored:
            self._expect(where, stored[0]["tokens"], {self._tokens})
            return
        full_at_ms = max((batch.evaluated_at_ms // self.window_ms - self.num_samples + 1) * self.window_ms, 0)
        later = [version for version in self.evidence.quotas if version >= batch.version]
        missing = max(self._tokens_at(full_at_ms, one) / self._burst(self._bound(one)) for one in later) < 1.0 - 1e-9
        self.found += [f"debts: {where} lacks the bucket of {self.user}"] * missing
        self._close()

    def _expect(self, where: str, stored: float, wanted: Collection[float]) -> None:
        self.compared += 1
        if not any(isclose(stored, one, rel_tol=1e-6, abs_tol=1e-3) for one in wanted):
            of = f"{where}: {self.user} {self.quota_type}"
            self.found.append(f"debts: {of} has {stored} tokens; by the integral {sorted(wanted)}")


def accounts(evidence: Evidence, engine: EngineSettings, users: Iterable[str], forgot: Counter[str]) -> list[Account]:
    """The accounts of users with quotas of their own, in no tenant."""
    size = engine.num_samples, engine.sample_window_ms
    return [Account(evidence, *size, user, name, forgot).follow() for user in users for name in _MEASURES]
