"""The sync of quotas to brokers, one period after the other: read news, compare the brokers, change what differs."""

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Final, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.brokers.native import Look
from pipeline.clock import Clock
from pipeline.errors import PipelineError
from pipeline.tables.broker_quotas import APPLIED, NOT_APPLIED, PENDING, BrokerQuotasTable
from pipeline.tables.port import Condition, Instant
from pipeline.tables.queries import StoredTable
from pipeline.tables.quotas.source import QuotaSource, Scope
from pipeline.tables.rates import are_fresh, member_rates
from quota.broker_levels.entries import EntryKey, MemberRate
from quota.broker_levels.sync import BrokerSync
from quota.broker_levels.writes import WORDS, Change, Drift, DriftKind, Owned
from quota.entity import DEFAULT, label
from quota.snapshot import QuotaSnapshot
from quota.units import rate_text
from quota.usage import COLUMNS


def change_line(change: Change) -> str:
    """`user-principal 'alice' producer_byte_rate 1.0 MB/s → 350.0 kB/s of T 1.0 MB/s: why`."""
    key = change.key
    of_bound = "" if change.bound in {None, change.new} else f" of T {value_text(key, change.bound)}"
    old, new = value_text(key, change.old), value_text(key, change.new)
    return f"{key_text(key)} {old} → {new}{of_bound}: {WORDS[change.cause]}"


def drift_line(drift: Drift) -> str:
    """What stands on the brokers in place of what kquota wants there."""
    theirs, ours, wanted = (value_text(drift.key, value) for value in (drift.theirs, drift.ours, drift.wanted))
    wrote = "kquota did not write it" if drift.kind is DriftKind.FOREIGN else f"kquota wrote {ours}"
    return f"{key_text(drift.key)} is {theirs} on the brokers: {wrote}, wants {wanted}, and leaves it alone"


def key_text(key: EntryKey) -> str:
    """The entity as Kafka's tools write it, and the quota type."""
    return f"{label(key.user, key.client_id)} {key.quota_type}"


def value_text(key: EntryKey, value: float | None) -> str:
    """A value with its unit; `none` for none."""
    return "none" if value is None else rate_text(key.quota_type, value)


# What the sync writes to its log: one line for each change, and one when something begins to stand in the way.

log = logging.getLogger("pipeline.sync")

MOST_LINES: Final = 200
"""So many changes that were made together get a line each. The lines of 10^4 would take longer than the changes."""


_MORE_ROOM: Final = (
    "give such a user one quota for all its client-ids, or raise own_entries_per_user under [sync] in the settings"
)


class SyncLog:
    """Logs each thing once. What lasts, as a drift, is logged when it begins, and again if it comes back."""

    def __init__(self) -> None:
        self._drifts: frozenset[Drift] = frozenset()
        self._refused: frozenset[tuple[EntryKey, str]] = frozenset()
        self._left_out: set[str] = set()
        self._has_unplaced = False

    def changes(self, taken: Sequence[Change]) -> None:
        """A line for each change that the brokers took."""
        for change in taken[:MOST_LINES]:
            log.info("%s", change_line(change))
        if len(taken) > MOST_LINES:
            log.info("and %d more changes at the same time: see broker_quotas", len(taken) - MOST_LINES)

    def obstacles(self, control: BrokerSync) -> None:
        """A line for each drift, refusal and usage without a broker that was not there before."""
        drifts = frozenset(control.drifts)
        for drift in [drift for drift in control.drifts if drift not in self._drifts][:MOST_LINES]:
            log.warning("%s (--adopt takes it over)", drift_line(drift))
        self._drifts = drifts
        refused = [one for one in control.refused if (one.key, one.reason) not in self._refused]
        for one in refused[:MOST_LINES]:
            whom = "the brokers refuse" if one.by == "broker" else "cannot have an entry of its own:"
            log.warning("%s: %s %s", key_text(one.key), whom, one.reason)
        if len(refused) > MOST_LINES:
            log.warning("and %d more values cannot be written", len(refused) - MOST_LINES)
        self._refused = frozenset((one.key, one.reason) for one in control.refused)
        for user in [user for user in control.left_out if user not in self._left_out][:MOST_LINES]:
            text = "more clients of %s need an entry of their own than there is room for. Fix: %s"
            log.warning(text, f"user '{user}'" if user else "no user", _MORE_ROOM)
            self._left_out.add(user)
        if control.unplaced_bytes and not self._has_unplaced:
            self._has_unplaced = True
            text = (
                "usage that names no broker of the cluster counts on none: %d bytes so far; meters must send broker_id"
            )
            log.warning(text, control.unplaced_bytes)


# Follows the table `usage`: gives each row once, as the job's batches write it.
#
# A batch is one commit, and within a time epoch batches are evaluated in order. So what is new are the batches that
# were evaluated after the last one seen, or at the same instant and not seen. That does not ask which files a row is
# in: compaction may merge them, and old ones may be deleted. When the newest instant goes back, or a new epoch begins,
# the follower begins again, with the newest rows of that epoch.

_BATCH: Final = ("query_id", "batch_id")
_TIME: Final = "evaluated_at_ms"


class UsageFollower:
    """The new rows of the table, each time it is asked; the first begin `first_ms` before the newest evaluation."""

    def __init__(self, uri: str, first_ms: int) -> None:
        self._uri = uri
        self._first_ms = first_ms
        self._read_version: int | None = None
        self._newest: Instant | None = None
        self.has_begun_anew = False
        """Whether the rows of the last call are the first ones, or the first ones since event time went back."""
        self._seen_batches: set[tuple[str, int]] = set()

    @property
    def known_until_ms(self) -> int:
        """When the newest batch that was read was evaluated, in event time; 0 before the first. May go back."""
        return 0 if self._newest is None else self._newest.evaluated_at_ms

    def new_rows(self) -> pa.Table | None:
        """The rows since the last call, with `COLUMNS`, in no order; None if there are none."""
        table = StoredTable(self._uri)
        if table.version == self._read_version:
            return None
        rows = self._rows_after(table)
        self._read_version = table.version
        return rows

    def _rows_after(self, table: StoredTable) -> pa.Table | None:
        newest = table.newest_instant()
        if newest is None:
            return None
        known = self._newest
        begins = known is None or newest.time_epoch != known.time_epoch or newest < known
        since_ms = newest.evaluated_at_ms - self._first_ms if begins or known is None else known.evaluated_at_ms
        day = datetime.fromtimestamp(since_ms / 1000, UTC).date()
        where: list[Condition] = [("date", ">=", day), (_TIME, ">=", since_ms), ("time_epoch", "=", newest.time_epoch)]
        rows = table.read((*COLUMNS, *_BATCH, _TIME), where)
        if not begins:
            rows = rows.filter(pa.array([batch not in self._seen_batches for batch in _batches_of(rows)], pa.bool_()))
        self.has_begun_anew, self._newest = begins, newest
        of_newest = _batches_of(rows.filter(pc.equal(rows[_TIME], newest.evaluated_at_ms)))
        self._seen_batches = {*of_newest, *(self._seen_batches if newest == known else ())}
        return rows.select(COLUMNS) if len(rows) else None


def _batches_of(rows: pa.Table) -> list[tuple[str, int]]:
    return list(zip(rows["query_id"].to_pylist(), rows["batch_id"].to_pylist(), strict=True))


# What a sync follows: the quotas, and the usage as long as levels are computed from it.


def chosen_rows(snapshot: QuotaSnapshot, users: Collection[str]) -> QuotaSnapshot:
    """The quotas that a sync puts on brokers: those of some users, for a beginning in small steps.

    Users are raw names, or `<default>`; "" chooses rows without a user. No user = all rows.
    """
    if not users:
        return snapshot
    return replace(snapshot, quotas=tuple(one for one in snapshot.quotas if one.user in users))


@dataclass(slots=True)
class Sources:
    """The quotas, the usage, and what members of tenants may use.

    Without a scope of the settings that of the quota table holds, also when it changes.
    """

    quotas: QuotaSource
    open_usage: Callable[[], UsageFollower]
    scope: Scope | None = None
    users: Collection[str] = ()
    root: str = ""
    _usage: UsageFollower | None = field(default=None, init=False)
    _members: tuple[int, Mapping[EntryKey, MemberRate]] = field(default=(0, {}), init=False)

    @property
    def mirror(self) -> bool:
        """Whether every broker gets T: scope `broker`."""
        return (self.scope or self.quotas.scope) == "broker"

    def pin(self) -> QuotaSnapshot:
        """The chosen rows of `QuotaSource.pin`."""
        return chosen_rows(self.quotas.pin(), self.users)

    def poll(self) -> QuotaSnapshot | None:
        """The chosen rows of `QuotaSource.poll`."""
        snapshot = self.quotas.poll()
        return None if snapshot is None else chosen_rows(snapshot, self.users)

    def usage(self) -> UsageFollower | None:
        """The usage; None where no level is computed. It is opened again when levels are computed again."""
        if self.mirror:
            self._usage = None
        elif self._usage is None:
            self._usage = self.open_usage()
        return self._usage

    def members(self, now_ms: int) -> Mapping[EntryKey, MemberRate]:
        """What members of tenants may use now; empty if the job's rates are not fresh, and without tenants.

        With chosen users only theirs: `<default>` chooses those who have no row.

        * `now_ms`: by wall clock.
        """
        pinned = self.quotas.pin()
        if self.mirror or not pinned.tenants:
            return {}
        try:
            self._members = member_rates(self.root)
        except PipelineError as exc:
            log.debug("the rates cannot be read: %s", exc)
        as_of_ms, rates = self._members
        if not are_fresh(self.root, as_of_ms, now_ms):
            return {}
        if not self.users:
            return rates
        named = {one.user for one in pinned.quotas}
        chosen = {user for user in {key.user for key in rates} if (user if user in named else DEFAULT) in self.users}
        return {key: rate for key, rate in rates.items() if key.user in chosen}


# Which brokers count as part of the cluster: one that is being restarted does.

GONE_AFTER_MS: Final = 60_000
"""How long a broker must be away before it counts as gone: longer than a restart."""


def present(seen_at_ms: Mapping[str, int], broker_ids: Iterable[str], now_ms: int) -> dict[str, int]:
    """The brokers that count after a look, with those that are away for a moment; when each was seen last.

    No level may be below T ÷ brokers. If a broker that is being restarted counted as gone, a restart of all brokers,
    one by one, would raise every such level at each of them. Without it the others give somewhat less than T, until it
    is back or counts as gone.
    """
    known = {name: at_ms for name, at_ms in seen_at_ms.items() if now_ms - at_ms < GONE_AFTER_MS}
    return {**known, **dict.fromkeys(broker_ids, now_ms)}


class ClusterQuotas(Protocol):
    """The quotas of a cluster's brokers. A call that fails may have changed any part of what it was asked for."""

    def look(self) -> Look:
        """See `Look`."""

    def make(self, changes: Sequence[Change]) -> dict[EntryKey, str]:
        """Make changes; returns the keys that the brokers refuse, with the reason."""


# A broker that is asked may not have heard yet of what the controller has answered. It hears of it within some ms,
# and of 10 000 entities that were changed at once within 2 s.
_HEARD_AFTER_MS: Final = 5_000


class BrokerQuotaSync:
    """Keeps the quotas of one cluster's brokers. One caller at a time.

    A change is stored before the brokers are asked for it and again with their answer. One without an answer, also of
    an earlier process, is undecided: what the brokers hold shows later whether they made it.
    """

    def __init__(
        self,
        control: BrokerSync,
        sources: Sources,
        table: BrokerQuotasTable,
        cluster: ClusterQuotas,
        clock: Clock,
        describe_every_ms: int,
    ) -> None:
        self._control = control
        self._sources = sources
        self._table = table
        self._cluster = cluster
        self._clock = clock
        self._describe_every_ms = describe_every_ms
        self._seen_at_ms: dict[str, int] = {}
        self._log = SyncLog()
        self._known_until_ms = 0
        self._look_due_ms = 0
        self._undecided: Sequence[Change] = ()
        self._taken: dict[EntryKey, tuple[int, float | None]] = {}

    def take_over(self) -> None:
        """Fence an earlier sync, and take over what it owned; `Conflict` if another one starts now."""
        self._table.take_over()
        (owned, undecided), quotas = self._table.state(), self._sources.pin()
        self._undecided = undecided
        self._control.restore_owned(owned, undecided, self._now())
        self._control.load_quotas(quotas, self._sources.mirror)
        counts = (quotas.version, len(quotas.quotas), len(owned), len(undecided))
        log.info("quotas v%d: %d entities; values that are kquota's on the brokers: %d, undecided: %d", *counts)

    def step(self) -> int:
        """One period. Returns how many changes the brokers took.

        Raises:
            Refused: A broker does not enforce what is written to it.
            PipelineError: A table or the cluster cannot be read or written. The next call goes on with what is left.
        """
        snapshot = self._sources.poll()
        if snapshot is not None:
            self._control.load_quotas(snapshot, self._sources.mirror)
            scope = "broker" if self._sources.mirror else "cluster"
            log.info("quotas v%d in force: %d entities, scope %s", snapshot.version, len(snapshot.quotas), scope)
        if self._undecided or self._now() >= self._look_due_ms:
            self._look()
        self._follow_usage()
        self._control.follow_members(self._sources.members(self._clock.now().wall_ms), self._now())
        taken = self._write(self._control.period(self._known_until_ms, self._now()))
        self._log.obstacles(self._control)
        return taken

    def _follow_usage(self) -> None:
        usage = self._sources.usage()
        rows = None if usage is None else usage.new_rows()
        if usage is None or rows is None:
            return
        if usage.has_begun_anew:
            self._control.begin_epoch(usage.known_until_ms)
        self._control.record(rows)
        self._known_until_ms = usage.known_until_ms

    def _look(self) -> None:
        """Compare with what the brokers hold. It is known then what became of changes without an answer."""
        self._look_due_ms = 0  # unless all of it goes well
        found, now_ms = self._cluster.look(), self._now()
        found.refuse_callbacks()
        self._seen_at_ms = present(self._seen_at_ms, found.broker_ids, now_ms)
        self._control.set_brokers(tuple(sorted(self._seen_at_ms)))
        self._control.observe(self._with_taken(found.held), now_ms)
        if self._undecided:
            outcomes = [APPLIED if _is_in_force(one, self._control.owned) else NOT_APPLIED for one in self._undecided]
            self._table.append(zip(self._undecided, outcomes, strict=True), self._clock.now().wall_ms)
            self._undecided = ()
        self._table.refuse_fenced()
        self._look_due_ms = self._now() + self._describe_every_ms

    def _write(self, changes: list[Change]) -> int:
        if not changes:
            return 0
        self._table.append([(change, PENDING) for change in changes], self._clock.now().wall_ms)
        self._undecided = changes
        refused, now = self._cluster.make(changes), self._clock.now()
        results = {key: f"refused: {reason}" for key, reason in refused.items()}
        self._table.append([(change, results.get(change.key, APPLIED)) for change in changes], now.wall_ms)
        self._undecided = ()
        taken = [change for change in changes if change.key not in refused]
        self._taken.update({change.key: (now.steady_ms, change.new) for change in taken})
        self._control.confirm(taken, now.steady_ms)
        for change in changes:
            if change.key in refused:
                self._control.refuse(change, refused[change.key], now.steady_ms)
        self._log.changes(taken)
        return len(taken)

    def _with_taken(self, held: Mapping[EntryKey, float]) -> dict[EntryKey, float]:
        """What the brokers hold, with the newest changes: the broker that was asked may not have heard of these."""
        now_ms = self._now()
        self._taken = {key: one for key, one in self._taken.items() if now_ms - one[0] < _HEARD_AFTER_MS}
        seen: dict[EntryKey, float | None] = {**held, **{key: value for key, (_, value) in self._taken.items()}}
        return {key: value for key, value in seen.items() if value is not None}

    def _now(self) -> int:
        return self._clock.now().steady_ms


def _is_in_force(change: Change, owned: Mapping[EntryKey, Owned]) -> bool:
    found, expected = owned.get(change.key), change.owned(0)
    if found is None or expected is None:
        return found is expected
    return found.value == expected.value
