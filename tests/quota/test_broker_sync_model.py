"""The sync among operators, clients, crashes and other people's tools, compared with what can be said without it."""

from collections.abc import Sequence
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from quota.broker_levels.entries import EntryKey, broker_entries
from quota.broker_levels.sync import BrokerSync
from quota.broker_levels.writes import Change
from quota.entity import QUOTA_TYPES
from quota.snapshot import QuotaSnapshot
from tests.quota.factories import table, usage_row
from tests.quota.synced import levels_of
from tests.quota.write_ledger import Fate, WriteLedger

PRODUCER = QUOTA_TYPES[0]
USERS = ("alice", "bob", "<default>")
CLIENTS = ("alice", "bob", "carol")
BOUNDS = (60.0, 120.0)
THEIRS = (7001.0, 7002.0)
MOVES = ("together_above", "room_left", "quiet", "quiet_offender")
STRANGER = EntryKey("mallory", "", PRODUCER)


def key_of(user: str) -> EntryKey:
    return EntryKey(user, "", PRODUCER)


class BrokersAndTable(RuleBasedStateMachine):
    """One cluster. What is written is judged at once, by rules that know nothing of how the sync works."""

    @initialize()
    def start(self) -> None:
        self.now_ms = 1_700_000_000_000
        self.rows: dict[str, dict[str, Any]] = {}
        self.mirror = False
        self.brokers = ["1", "2"]
        self.ledger = WriteLedger(held={STRANGER: 5.0})
        self.ours: dict[EntryKey, float | None] = {}
        """What is ours, with what stood there before."""
        self.moved_at_ms: dict[EntryKey, int] = {}
        self.disturbed: set[EntryKey] = set()
        self.new_sync()

    def new_sync(self) -> None:
        self.sync = BrokerSync()
        self.ledger.restart(self.sync, self.now_ms)
        self.load()
        self.describe()

    def load(self) -> None:
        self.sync.load_quotas(self.snapshot, self.mirror)

    def describe(self) -> None:
        self.sync.set_brokers(self.brokers)
        self.sync.observe(self.ledger.held, self.now_ms)

    @property
    def snapshot(self) -> QuotaSnapshot:
        return QuotaSnapshot.from_rows(self.rows.values(), 1)

    @property
    def bounds(self) -> dict[EntryKey, float]:
        return {entry.key: entry.bound for entry in broker_entries(self.snapshot, self.mirror)}

    @rule(
        user=st.sampled_from(USERS),
        bound=st.sampled_from(BOUNDS),
        mode=st.sampled_from(["enforce", "shadow", "exempt"]),
    )
    def set_quota(self, user: str, bound: float, mode: str) -> None:
        bounds = {} if mode == "exempt" else {PRODUCER: bound}
        self.rows[user] = {"user": user, "client_id": "", "mode": mode, **bounds}
        self.load()

    @rule(user=st.sampled_from(USERS))
    def remove_quota(self, user: str) -> None:
        self.rows.pop(user, None)
        self.load()

    @rule(mirror=st.booleans())
    def set_scope(self, mirror: bool) -> None:
        self.mirror = mirror
        self.load()

    @rule(brokers=st.integers(1, 3))
    def other_brokers(self, brokers: int) -> None:
        self.brokers = [str(broker) for broker in range(1, brokers + 1)]
        self.describe()

    @rule(user=st.sampled_from(USERS), value=st.sampled_from([None, *THEIRS]))
    def somebody_else_writes(self, user: str, value: float | None) -> None:
        key = key_of(user)
        if value is None:
            self.ledger.held.pop(key, None)
        else:
            self.ledger.held[key] = value
        self.disturbed.add(key)
        self.describe()

    @rule(
        loads=st.lists(st.dictionaries(st.sampled_from(CLIENTS), st.tuples(*[st.integers(0, 200)] * 3)), max_size=4),
        seconds=st.integers(1, 12),
        fate=st.sampled_from(Fate),
    )
    def use(self, loads: list[dict[str, tuple[int, ...]]], seconds: int, fate: Fate) -> None:
        """Some seconds of usage. What happens to the writes of the last of them is drawn."""
        for second in range(seconds):
            load = loads[second % len(loads)] if loads else {}
            used = [
                usage_row(self.now_ms + 900, broker_id=broker, user=user, produced_bytes=amounts[int(broker) - 1])
                for user, amounts in load.items()
                for broker in self.brokers
            ]
            self.sync.record(table(used))
            self.now_ms += 1000
            self.period(fate if second == seconds - 1 else Fate.DONE)

    def period(self, fate: Fate = Fate.DONE) -> Sequence[Change]:
        changes = self.sync.period(self.now_ms - 1, self.now_ms)
        before = dict(self.ledger.held)
        assert len({change.key for change in changes}) == len(changes)
        for change in self.ledger.write(self.sync, changes, self.now_ms, fate):
            self.judge(change, before)
        if fate.is_killed:
            self.new_sync()
        elif fate is not Fate.DONE:
            self.describe()
        return changes

    def judge(self, change: Change, before: dict[EntryKey, float]) -> None:
        """A write that got to the brokers."""
        key, bounds = change.key, self.bounds
        assert change.old == before.get(key)
        if key not in self.ours:
            assert key not in before, "a value of others is never overwritten"
            assert change.before is None
        else:
            assert key not in self.disturbed or before.get(key) not in THEIRS
        if change.kind is None:
            assert key not in bounds or key in self.own_of_default(key)
            assert change.new is None, "nothing stood there before"
            self.ours.pop(key, None)
        else:
            bound = bounds.get(key, bounds.get(key_of("<default>")))
            assert bound is not None
            assert change.new is not None
            lowest = bound / len(self.brokers) if str(change.kind) in {"level", "own"} else bound
            assert lowest * (1 - 1e-9) <= change.new <= bound
            self.ours.setdefault(key, before.get(key))
        if change.cause in MOVES and key in self.moved_at_ms:
            assert self.now_ms - self.moved_at_ms[key] >= 10_000
        if change.is_move:
            self.moved_at_ms[key] = self.now_ms
        self.disturbed.discard(key)

    def own_of_default(self, key: EntryKey) -> set[EntryKey]:
        return {key} if key.user not in self.rows else set()

    @invariant()
    def nothing_of_others_is_touched(self) -> None:
        assert self.ledger.held[STRANGER] == 5.0
        assert {key.user for key in self.ledger.held} <= {*USERS, *CLIENTS, STRANGER.user}

    @rule(restarts=st.booleans())
    def becomes_quiet(self, restarts: bool) -> None:
        """Whatever happened: when all is quiet, every broker has what the table says, and nothing is written."""
        if restarts:
            self.new_sync()
        else:
            self.describe()
        for pause_ms in (1_000, 70_000, 3_000, 10_000, 610_000, 3_000, 10_000, 3_000):
            self.now_ms += pause_ms
            self.period()
        assert self.period() == []
        drifts = {drift.key: drift.theirs for drift in self.sync.drifts}
        for key, bound in self.bounds.items():
            held = self.ledger.held.get(key)
            if key in drifts:
                assert key in self.disturbed, "what is reported was written by others"
                assert held == drifts[key] != bound
            else:
                assert held == bound
        for key in self.ledger.held.keys() - self.bounds.keys() - {STRANGER}:
            assert key in self.disturbed, "what kquota does not want any more is gone"
        assert set(levels_of(self.sync)) <= self.bounds.keys() | drifts.keys()


BrokersAndTable.TestCase.settings = settings(max_examples=40, stateful_step_count=25)
TestBrokersAndTable = BrokersAndTable.TestCase
