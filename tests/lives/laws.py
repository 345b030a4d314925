"""Properties of a life that the verifier does not have, each computed from what is stored or published."""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from math import isclose
from typing import Final

from pipeline.settings.model import EngineSettings
from schemas.throttle_record import BATCH_CAUSES, Target, ThrottleRecord
from tests.faults.evidence import Batch, Evidence, Row, Version, cut, version_of
from tests.faults.hand_job import HandJob
from tests.faults.verdict import Verdict

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
    """What one sensor of a user has used, earned, and been let off, in the units of its bound.

    tokens = one burst + earned − used − unused + forgotten. `tokens` is None before the first usage, and after the
    account was closed because it was full: then it begins again.

    Attributes:
        unused: What was earned and not kept, because one burst is the most that is kept.
        forgotten: By rule.
    """

    size_seconds: float
    used: float = 0.0
    earned: float = 0.0
    unused: float = 0.0
    begun_with: float | None = None
    refilled_at_ms: int = 0
    forgotten: dict[str, float] = field(default_factory=dict)

    @property
    def tokens(self) -> float | None:
        if self.begun_with is None:
            return None
        return self.begun_with + self.earned - self.used - self.unused + sum(self.forgotten.values())

    def close(self) -> None:
        """Begin again."""
        self.begun_with = None
        self.used = self.earned = self.unused = 0.0
        self.forgotten.clear()

    def let_off(self, rule: str, least: float) -> None:
        """A rule forgets what is owed below this."""
        assert self.tokens is not None
        if self.tokens < least:
            self.forgotten[rule] = self.forgotten.get(rule, 0.0) + least - self.tokens

    def refill(self, until_ms: int, bound: float) -> None:
        burst = self.size_seconds * bound
        if self.begun_with is None:
            self.begun_with, self.refilled_at_ms = burst, until_ms
        self.let_off("10 bursts", -_MOST_BURSTS * burst)
        self.earned += bound * max(until_ms - self.refilled_at_ms, 0) / 1_000.0
        self.refilled_at_ms = max(until_ms, self.refilled_at_ms)
        assert self.tokens is not None
        self.unused += max(self.tokens - burst, 0.0)

    def use(self, amount: float, bound: float, is_heard: bool) -> None:
        """Use so much; of a gap, in which no client was asked to wait, not more than one burst is owed."""
        burst = self.size_seconds * bound
        assert self.tokens is not None
        least = min(self.tokens, -burst * (_MOST_BURSTS if is_heard else 1))
        self.used += amount
        self.let_off("10 bursts" if is_heard else "a gap", least)

    def tokens_at(self, at_ms: int, bound: float) -> float:
        burst = self.size_seconds * bound
        if self.tokens is None:
            return burst
        since_seconds = max(at_ms - self.refilled_at_ms, 0) / 1_000.0
        return min(max(self.tokens, -_MOST_BURSTS * burst) + bound * since_seconds, burst)


@dataclass
class Debts:
    compared: int = 0
    found: list[str] = field(default_factory=list)


def check_debts(evidence: Evidence, engine: EngineSettings, users: Sequence[str], forgot: Counter[str]) -> Debts:
    """The stored tokens of users with quotas of their own are the integral of their stored usage.

    That is what was used above the bound, without what a rule forgets; `forgot` counts how often each did.
    """
    debts = Debts()
    batches = cut(evidence.tables["batches"], evidence.messages, evidence.usage_topic, Verdict())
    for user in users:
        for quota_type in _MEASURES:
            _Ledger(evidence, engine, user, quota_type, debts, forgot).check(batches)
    return debts


class _Ledger:
    """The account of one sensor along the batches."""

    def __init__(
        self, evidence: Evidence, engine: EngineSettings, user: str, quota_type: str, debts: Debts, forgot: Counter[str]
    ) -> None:
        self._evidence, self._user, self._quota_type = evidence, user, quota_type
        self._debts, self._forgot = debts, forgot
        self._n, self._w = engine.num_samples, engine.sample_window_ms
        self._account = Account(self._n * self._w / 1_000.0)
        self._rows = {name: _by_batch(evidence.tables[name], self._is_own) for name in ("usage", "throttle_events")}
        self._snapshots = _by_batch(evidence.tables["sensor_state"], lambda _row: True)

    def _is_own(self, row: Row) -> bool:
        if "sensor_user" in row:
            return (row["sensor_user"], row["sensor_client_id"], row["quota_type"]) == (
                self._user,
                "",
                self._quota_type,
            )
        return bool(row["user"] == self._user)

    def _quota(self, version: Version) -> Row:
        return next(
            row for row in self._evidence.quotas[version].rows if (row["user"], row["client_id"]) == (self._user, "")
        )

    def _bound(self, version: Version) -> float:
        return float(self._quota(version)[self._quota_type])

    def check(self, batches: Sequence[Batch]) -> None:
        account, before, until_ms = self._account, None, 0
        for batch in batches:
            if before is not None and batch.time_epoch > before.time_epoch:
                account.refilled_at_ms += batch.evaluated_at_ms - before.evaluated_at_ms
            forgiven_ms = self._quota(batch.version)["forgiven_until_ms"] or 0
            if before is not None and forgiven_ms > until_ms:
                self._forgot["debt forgotten: forgiven"] += account.tokens is not None
                account.close()
            before, until_ms = batch, forgiven_ms
            self._record(batch)
            records = list(self._rows["throttle_events"][batch.key])
            before_snapshot = [self._at(row) for row in records]
            self._snapshot(batch)
            for row, wanted in zip(records, before_snapshot, strict=True):
                self._expect(f"publish_seq {row['publish_seq']}", row["tokens"], {*wanted, *self._at(row)})

    def _at(self, row: Row) -> set[float]:
        """At the instant of a record; or when the usage was charged, for a debt that usage from before has shown."""
        instants = {row["evaluated_at_ms"]}
        if row["cause"] in BATCH_CAUSES:
            instants.add(self._account.refilled_at_ms)
        return {self._account.tokens_at(at_ms, self._bound(version_of(row))) for at_ms in instants}

    def _record(self, batch: Batch) -> None:
        account, bound, now_ms = self._account, self._bound(batch.version), batch.evaluated_at_ms
        used: dict[tuple[int, bool], float] = {}
        for row in self._rows["usage"][batch.key]:
            amounts = [row[name] for name in _MEASURES[self._quota_type] if row[name] is not None]
            if amounts:
                place = row["sample_start_ms"], not row["in_gap"]
                used[place] = used.get(place, 0.0) + sum(amounts)
        unit = 1e-7 if self._quota_type == "request_percentage" else 1.0
        known = dict(account.forgotten)
        for (start_ms, is_heard), amount in sorted(used.items()):
            account.refill(min(start_ms + self._w, now_ms), bound)
            account.use(amount * unit, bound, is_heard)
        for rule, amount in account.forgotten.items():
            self._forgot[f"debt forgotten: {rule}"] += amount > known.get(rule, 0.0)

    def _snapshot(self, batch: Batch) -> None:
        rows = self._snapshots.get(batch.key)
        if rows is None or self._account.tokens is None:
            return
        stored = [row for row in rows if self._is_own(row) and row["tokens"] is not None]
        if stored:
            self._expect(f"snapshot after {batch.key}", stored[0]["tokens"], {self._account.tokens})
            return
        full_at_ms = max((batch.evaluated_at_ms // self._w - self._n + 1) * self._w, 0)
        bounds = {self._bound(version) for version in self._evidence.quotas if version >= batch.version}
        shares = (self._account.tokens_at(full_at_ms, bound) / (self._account.size_seconds * bound) for bound in bounds)
        if not max(shares) > 1.0 - 1e-9:
            self._debts.found.append(f"debts: the snapshot after {batch.key} lacks the bucket of {self._user}")
        self._account.close()

    def _expect(self, where: str, stored: float, wanted: Collection[float]) -> None:
        self._debts.compared += 1
        scale = self._account.size_seconds
        if not any(isclose(stored, one, rel_tol=1e-6, abs_tol=1e-3 * scale) for one in wanted):
            text = (
                f"debts: {where}: {self._user} {self._quota_type} has {stored} tokens; by the integral {sorted(wanted)}"
            )
            self._debts.found.append(text)


def _by_batch(rows: Iterable[Row], is_own: Callable[[Row], bool]) -> dict[tuple[str, int], list[Row]]:
    found: dict[tuple[str, int], list[Row]] = defaultdict(list)
    for row in rows:
        if is_own(row):
            found[row["query_id"], row["batch_id"]].append(row)
    return found
