"""Periods of a sync on brokers in memory and real tables: what is stored, what it reads, and what a failure leaves."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from prometheus_client import CollectorRegistry

from pipeline.brokers.native import Look
from pipeline.brokers.running import SyncMetrics, _run_periods
from pipeline.brokers.sync import BrokerQuotaSync, Sources, UsageFollower
from pipeline.errors import ClusterUnreachable, Conflict, PipelineError
from pipeline.tables.broker_quotas import NAME, BrokerQuotasTable
from pipeline.tables.layout import TABLES, create_missing
from pipeline.tables.port import table_uri
from pipeline.tables.queries import StoredTable
from pipeline.tables.quotas.edit import QuotaChange
from pipeline.tables.quotas.source import QuotaSource, Scope
from pipeline.tables.quotas.table import QuotaTable, local_audit
from quota.broker_levels.entries import EntryKey, MemberRate
from quota.broker_levels.sync import BrokerSync
from quota.broker_levels.writes import Change
from quota.snapshot import QuotaSnapshot
from quota.tenants import Tenant
from tests.fakes.clock import ManualClock
from tests.pipeline.cli.running import kquota
from tests.pipeline.replay.kept import KeptJob
from tests.pipeline.tables.factories import job_writer, write_rates
from tests.pipeline.tables.factories import usage as usage_of
from tests.quota.factories import usage_row


class FakeQuotas:
    """Holds values, and fails on demand.

    Attributes:
        refused: Keys that they refuse, with the reason.
        takes: How many changes of the next call are made before the connection is lost; None = all, and it is not lost.
        altered: Every change that was made, in order.
    """

    def __init__(self) -> None:
        self.values: dict[EntryKey, float] = {}
        self.broker_ids: tuple[str, ...] = ("1", "2")
        self.refused: dict[EntryKey, str] = {}
        self.takes: int | None = None
        self.altered: list[Change] = []

    def look(self) -> Look:
        return Look(self.broker_ids, dict(self.values))

    def make(self, changes: Sequence[Change]) -> dict[EntryKey, str]:
        takes, self.takes = self.takes, None
        for change in changes[:takes]:
            if change.key in self.refused:
                continue
            self.altered.append(change)
            if change.new is None:
                self.values.pop(change.key, None)
            else:
                self.values[change.key] = change.new
        if takes is not None:
            raise ClusterUnreachable(bootstrap_servers="b:1", cause="the connection was lost", fix="try again")
        return {change.key: self.refused[change.key] for change in changes if change.key in self.refused}


class UsageTable:
    """The table under a root, and its writer."""

    def __init__(self, root: Path | str) -> None:
        self._writer = job_writer(root, "usage")
        self.uri = self._writer.uri
        self._batch_id = -1

    def append(self, at_ms: int, *rows: Mapping[str, Any], time_epoch: int = 0) -> None:
        """A batch that is evaluated at an instant. Columns that a row does not have are those of an idle client u/c."""
        self._batch_id += 1
        used = (usage_row(at_ms, **{"broker_id": "1", **row}) for row in rows)
        about: dict[str, Any] = {"cluster": "c1", "batch_id": self._batch_id, "time_epoch": time_epoch}
        self._writer.append(usage_of(*used, evaluated_at_ms=at_ms, **about), {"q": self._batch_id}, {})


ALICE = EntryKey("alice", "", "producer_byte_rate")
BOB = EntryKey("bob", "", "producer_byte_rate")
MB = 1e6
HOUR_MS = 3_600_000


class Setting:
    """Tables, brokers and a clock; `start` begins a sync on them, as a new process does."""

    def __init__(self, root: str, scope: Scope | None = "broker") -> None:
        create_missing(root, [TABLES[name] for name in ("quotas", "tenants", "usage", "rates", "broker_quotas")])
        self.root, self.scope = root, scope
        self.clock, self.brokers = ManualClock(), FakeQuotas()
        self.quotas, self.usage = QuotaTable(root), UsageTable(root)

    def edit(self, **bounds: float | None) -> None:
        changes = [QuotaChange(user, "", {"producer_byte_rate": bound}) for user, bound in bounds.items()]
        self.quotas.alter(changes, local_audit("test"))

    def set_scope(self, scope: Scope) -> None:
        """As SQL does it."""
        quotas = DeltaTable(table_uri(self.root, "quotas"))
        quotas.alter.set_table_properties({"kquota.scope": scope}, raise_if_not_exists=False)

    def use(self, *used_bytes: int, ahead_ms: int = 0, time_epoch: int = 0) -> None:
        """Alice uses so much on each broker, in a second; the steady clock is ahead of the time of the usage."""
        named = zip(("1", "2"), used_bytes, strict=True)
        rows = [{"broker_id": broker_id, "user": "alice", "produced_bytes": used} for broker_id, used in named]
        self.usage.append(self.clock.steady_ms - ahead_ms, *rows, time_epoch=time_epoch)

    def start(self) -> BrokerQuotaSync:
        quotas = QuotaSource(QuotaTable(self.root))
        sources = Sources(quotas, lambda: UsageFollower(self.usage.uri, 15_000), self.scope)
        table = BrokerQuotasTable(self.root, "c1")
        sync = BrokerQuotaSync(BrokerSync(), sources, table, self.brokers, self.clock, 10_000)
        sync.take_over()
        return sync

    def steps(self) -> list[tuple[str, float | None, float | None, str, str]]:
        rows = StoredTable(table_uri(self.root, NAME)).read().to_pylist()
        return [
            (row["user"], row["old"], row["new"], row["cause"], row["result"])
            for row in sorted(rows, key=lambda row: int(row["seq"]))
        ]

    def pass_time(self, sync: BrokerQuotaSync, periods: int = 1) -> None:
        for _ in range(periods):
            self.clock.advance(1_000)
            sync.step()


@pytest.fixture
def setting(tmp_path: Path) -> Setting:
    return Setting(str(tmp_path))


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("taken", [0, 1, 2])
def test_a_lost_answer_is_settled_by_a_look_at_the_brokers(setting: Setting, taken: int, restarted: bool) -> None:
    setting.edit(alice=MB, bob=MB)
    sync = setting.start()
    setting.brokers.takes = taken
    with pytest.raises(ClusterUnreachable):
        sync.step()
    if restarted:
        sync = setting.start()
    setting.pass_time(sync, 2)
    assert setting.brokers.values == {ALICE: MB, BOB: MB}
    assert len(setting.brokers.altered) == 2, "what got there is not written again"
    results = [result for *_, result in setting.steps()]
    assert results[:4] == ["pending"] * 2 + ["applied"] * taken + ["not applied"] * (2 - taken)
    setting.edit(alice=None, bob=None)
    setting.pass_time(sync)
    assert setting.brokers.values == {}, "all of it is owned"


STEPS_MS = [0, -HOUR_MS, HOUR_MS]


@pytest.mark.parametrize("step_ms", STEPS_MS)
def test_what_is_refused_is_tried_again_later_whatever_the_clock_says(setting: Setting, step_ms: int) -> None:
    setting.edit(alice=MB, bob=MB)
    setting.brokers.refused = {BOB: "no such thing"}
    sync = setting.start()
    setting.pass_time(sync)
    setting.clock.set_wall(setting.clock.wall_ms + step_ms)
    for bound in range(2, 5):
        setting.edit(alice=bound * MB)
        setting.pass_time(sync)
        assert setting.brokers.values == {ALICE: bound * MB}
    assert [step[-1] for step in setting.steps() if step[0] == "bob"] == ["pending", "refused: no such thing"]
    setting.brokers.refused = {}
    setting.clock.advance(600_000)
    setting.pass_time(sync)
    assert setting.brokers.values[BOB] == MB


def test_another_scope_of_the_table_holds_from_the_next_period_on(tmp_path: Path) -> None:
    setting = Setting(str(tmp_path), scope=None)
    setting.edit(alice=MB)
    sync = setting.start()
    for _ in range(6):
        setting.use(900_000, 900_000)
        setting.pass_time(sync)
    assert 0.5 * MB <= setting.brokers.values[ALICE] < 0.6 * MB
    setting.set_scope("broker")
    setting.pass_time(sync)
    assert setting.steps()[-1][3:] == ("edited", "applied")
    for _ in range(11):  # a level moves once in ten seconds
        setting.use(900_000, 900_000)
        setting.pass_time(sync)
    assert setting.brokers.values == {ALICE: MB}, "in a mirror every broker has the bound, whatever is used"
    setting.set_scope("cluster")
    setting.pass_time(sync, 2)
    assert 0.5 * MB <= setting.brokers.values[ALICE] < 0.6 * MB, "by the usage of the last seconds"


def test_a_broker_that_is_being_restarted_still_counts(tmp_path: Path) -> None:
    setting = Setting(str(tmp_path), scope="cluster")
    setting.edit(alice=MB)
    sync = setting.start()
    for _ in range(6):
        setting.use(2_000_000, 2_000_000)
        setting.pass_time(sync)
    level = setting.brokers.values[ALICE]
    assert level < MB
    setting.brokers.broker_ids = ("1",)
    setting.clock.set_wall(setting.clock.wall_ms + HOUR_MS)
    setting.pass_time(sync, 40)
    assert setting.brokers.values[ALICE] == level
    setting.pass_time(sync, 40)
    assert setting.brokers.values[ALICE] == MB, "it is gone, and the other one may give all of T"


def seconds_of_changes(setting: Setting, sync: BrokerQuotaSync, seconds: int, **time: int) -> list[int]:
    """When the level of Alice is altered, who uses 2.4 times her bound, and after 20 s less on the second broker."""
    altered_at: list[int] = []
    for second in range(seconds):
        setting.use(1_500_000, 100_000 if second // 20 % 2 else 900_000, **time)
        before = len(setting.brokers.altered)
        setting.pass_time(sync)
        altered_at += [second] * (len(setting.brokers.altered) - before)
    return altered_at


@pytest.mark.parametrize(
    ("ahead_ms", "restarted", "time_epoch"), [(HOUR_MS, False, 0), (HOUR_MS, True, 0), (HOUR_MS, False, 1)]
)
def test_levels_follow_the_use_though_the_host_was_ahead_and_in_a_new_time_epoch(
    tmp_path: Path, ahead_ms: int, restarted: bool, time_epoch: int
) -> None:
    setting = Setting(str(tmp_path), scope="cluster")
    setting.edit(alice=MB)
    setting.clock.set_wall(setting.clock.wall_ms + ahead_ms)
    setting.clock.steady_ms += ahead_ms
    sync = setting.start()
    assert seconds_of_changes(setting, sync, 15, ahead_ms=0 if time_epoch else ahead_ms) == [0, 4]
    setting.clock.set_wall(setting.clock.wall_ms - ahead_ms)
    if restarted:
        setting.clock.steady_ms -= ahead_ms
        sync, ahead_ms = setting.start(), 0
    assert seconds_of_changes(setting, sync, 40, ahead_ms=ahead_ms, time_epoch=time_epoch) == [36]


def test_shadow_mode_gives_back_all_and_a_superseded_sync_stops_at_its_next_look(setting: Setting) -> None:
    setting.edit(alice=MB, bob=MB)
    first = setting.start()
    first.step()
    for mode, held in (("shadow", {}), ("enforce", {ALICE: MB, BOB: MB})):
        setting.quotas.set_mode(mode, local_audit("test"))
        setting.pass_time(first)
        assert setting.brokers.values == held
    setting.start().step()
    setting.clock.advance(10_000)
    with pytest.raises(Conflict):
        first.step()


AWAY = ClusterUnreachable(bootstrap_servers="b:1", cause="it is away", fix="start it")
GONE = PipelineError("a table is gone", "make it")


def rests_of(failures: Sequence[PipelineError | None], periods: int) -> list[float]:
    """How many seconds a sync rests after each of its periods, of which the first ones fail so."""
    left, rests = iter(failures), list[float]()

    def step() -> None:
        if (failure := next(left, None)) is not None:
            raise failure

    def wait(seconds: float) -> bool:
        rests.append(seconds)
        return len(rests) == periods

    _run_periods(step, SyncMetrics(CollectorRegistry(), ManualClock()), 9.0, wait)
    return rests


def test_a_sync_that_fails_rests_longer_and_longer_until_it_works() -> None:
    assert rests_of([AWAY, AWAY, None, GONE, GONE], 6) == pytest.approx([1, 2, 9, 1, 2, 9], abs=0.5)
    assert rests_of([AWAY] * 7, 8) == pytest.approx([1, 2, 4, 8, 16, 30, 30, 9], abs=0.5)
    for final in ([GONE], [None, Conflict("superseded", "stop it")]):
        with pytest.raises(PipelineError, match=r"gone|superseded"):
            rests_of(final, 3)


def test_the_story_of_a_throttle_has_what_the_brokers_themselves_enforce_now(setting: Setting) -> None:
    job = KeptJob(setting.root, QuotaChange("alice", "", {"producer_byte_rate": 1_000.0}))
    for _ in range(3):
        job.clock.advance(500)
        job.batch([usage_row(job.clock.wall_ms, user="alice", client_id="etl", produced_bytes=50_000)])
    job.flush()
    setting.start().step()
    for command in ("throttles explain", "quotas effective"):
        shown = kquota(*command.split(), "alice", "etl", "--tables", setting.root, "-o", "json")
        (document,) = json.loads(shown.stdout)
        on_brokers = [(one["user"], one["client_id"], one["value"], one["cause"]) for one in document["on_brokers"]]
        assert on_brokers == [("alice", "", 1_000.0, "added")]


ENTITIES = [("alice", ""), ("alice", "etl"), ("bob", ""), ("<default>", ""), ("", "dashboard")]


@pytest.mark.parametrize(
    ("users", "chosen"),
    [
        ((), ENTITIES),
        (("alice",), [("alice", ""), ("alice", "etl")]),
        (("bob", "<default>"), [("bob", ""), ("<default>", "")]),
        (("",), [("", "dashboard")]),
        (("carol",), []),
    ],
)
def test_the_rows_of_the_chosen_users_are_seen_and_no_others(
    users: tuple[str, ...], chosen: list[tuple[str, str]], tmp_path: Path
) -> None:
    create_missing(str(tmp_path), [TABLES["quotas"]])
    table = QuotaTable(str(tmp_path))
    quotas = Sources(QuotaSource(table), lambda: UsageFollower("", 0), "broker", users)
    assert quotas.pin().quotas == ()
    table.alter([QuotaChange(*entity, {"producer_byte_rate": 1.0}) for entity in ENTITIES], local_audit("test"))
    seen = quotas.poll()
    assert seen is not None
    assert {(one.user, one.client_id) for one in seen.quotas} == set(chosen)
    assert seen == quotas.pin()
    assert quotas.poll() is None


T_MS = 1_700_000_000_000


class OfTenants:
    """Quotas, of which the newest version has a tenant, or none."""

    scope = "cluster"

    def __init__(self, *tenants: Tenant, rows: Sequence[Mapping[str, Any]] = ()) -> None:
        self._snapshot = replace(QuotaSnapshot.from_rows(rows, 1), tenants=tenants)

    def pin(self) -> QuotaSnapshot:
        return self._snapshot


TEAM = Tenant("team-a", ("a*",), (), (4 * MB, None, None), (MB, None, None), lend=True)
LENT = MemberRate(3 * MB, MB, 0.9 * MB)


def rates_of_members(root: str) -> None:
    """Rates at `T_MS`, of members and others: only alice is a member that has a quota of her own, and is enforced."""
    row = {"broker_id": "", "quota_type": ALICE.quota_type, "mode": "enforce", "clients": 1, "window_ms": 11_000}
    alice = {"tenant": "team-a", "sensor_user": "alice", "sensor_client_id": "", "level": 3}
    rows = [
        alice,
        {**alice, "mode": "shadow", "bound": 5 * MB},
        {**alice, "clients": None, "own_rate": 1.0, "bound": 6 * MB},
        {**alice, "sensor_user": "ann", "level": 9},
        {**alice, "sensor_user": "bob", "tenant": None},
    ]
    numbers = {"bound": LENT.bound, "own_bound": LENT.own_bound, "observed": LENT.observed}
    write_rates(root, T_MS, [{**numbers, **row, **one} for one in rows], "c1")


def test_members_of_tenants_are_read_from_rates_that_are_ten_seconds_old_at_most(tmp_path: Path) -> None:
    root = str(tmp_path)
    rates_of_members(root)
    sources = Sources(OfTenants(TEAM), lambda: UsageFollower("", 0), root=root)  # type: ignore[arg-type]
    assert sources.members(T_MS + 10_000) == {ALICE: LENT}
    assert sources.members(T_MS + 10_001) == {}
    for without in (OfTenants(), OfTenants(TEAM)):
        scope: Scope = "cluster" if without.pin().tenants == () else "broker"
        assert Sources(without, lambda: UsageFollower("", 0), scope, root=root).members(T_MS) == {}  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("users", "named", "found"),
    [
        (["alice"], "alice", [ALICE]),
        (["bob"], "alice", []),
        (["<default>"], "alice", []),
        (["<default>"], "bob", [ALICE]),
    ],
)
def test_only_members_of_the_chosen_users_are_followed(
    users: list[str], named: str, found: list[EntryKey], tmp_path: Path
) -> None:
    root = str(tmp_path)
    rates_of_members(root)
    quotas = OfTenants(TEAM, rows=[{"user": named, "client_id": "", "producer_byte_rate": MB}])
    sources = Sources(quotas, lambda: UsageFollower("", 0), users=users, root=root)  # type: ignore[arg-type]
    assert [*sources.members(T_MS)] == found


def test_rates_that_cannot_be_read_count_until_they_are_too_old(tmp_path: Path) -> None:
    root = str(tmp_path / "tables")
    rates_of_members(root)
    sources = Sources(OfTenants(TEAM), lambda: UsageFollower("", 0), root=root)  # type: ignore[arg-type]
    sources.members(T_MS)
    (tmp_path / "tables").rename(tmp_path / "away")
    assert (sources.members(T_MS + 10_000), sources.members(T_MS + 10_001)) == ({ALICE: LENT}, {})


def test_a_period_gives_the_brokers_what_a_member_may_use(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    setting.scope = "cluster"
    setting.edit(alice=MB)
    sync = setting.start()
    lent: dict[EntryKey, MemberRate] = {}
    monkeypatch.setattr(Sources, "members", lambda _self, _now_ms: lent)
    setting.pass_time(sync)
    lent[ALICE] = LENT
    setting.pass_time(sync, 6)
    assert setting.brokers.values == {ALICE: 3 * MB}
    lent.clear()
    setting.pass_time(sync)
    assert [step[1:] for step in setting.steps()[-1:]] == [(3 * MB, MB, "member", "applied")]


@pytest.fixture
def usage(tmp_path: Path) -> UsageTable:
    return UsageTable(tmp_path)


def users(follower: UsageFollower) -> list[str]:
    rows = follower.new_rows()
    return [] if rows is None else sorted(rows["user"].to_pylist())


def test_it_begins_with_the_last_seconds_and_goes_on_with_what_is_new(usage: UsageTable) -> None:
    empty = UsageFollower(usage.uri, first_ms=15_000)
    assert (empty.new_rows(), empty.known_until_ms) == (None, 0)
    usage.append(T_MS, {"user": "old"})
    usage.append(T_MS + 20_000, {"user": "recent"})
    usage.append(T_MS + 30_000, {"user": "newest"})
    follower = UsageFollower(usage.uri, first_ms=15_000)
    assert (users(follower), follower.known_until_ms) == (["newest", "recent"], T_MS + 30_000)
    assert users(empty) == ["newest", "recent"]
    assert follower.new_rows() is None
    usage.append(T_MS + 31_000, {"user": "a"}, {"user": "b"})
    assert (users(follower), follower.known_until_ms) == (["a", "b"], T_MS + 31_000)


def test_batches_that_are_evaluated_at_the_same_instant_are_told_apart(usage: UsageTable) -> None:
    usage.append(T_MS, {"user": "a"})
    follower = UsageFollower(usage.uri, first_ms=15_000)
    assert users(follower) == ["a"]
    usage.append(T_MS, {"user": "b"})
    assert users(follower) == ["b"]
    usage.append(T_MS, {"user": "c"})
    usage.append(T_MS + 1, {"user": "d"})
    assert users(follower) == ["c", "d"]
    assert users(follower) == []


@pytest.mark.parametrize("back_ms", [3_600_000, 20_000, 0, -20_000])
def test_a_new_time_epoch_is_begun_with_its_newest_rows(usage: UsageTable, back_ms: int) -> None:
    usage.append(T_MS, {"user": "a"})
    follower = UsageFollower(usage.uri, first_ms=15_000)
    assert (users(follower), follower.has_begun_anew) == (["a"], True)
    usage.append(T_MS + 1_000, {"user": "b"})
    assert (users(follower), follower.has_begun_anew) == (["b"], False)
    usage.append(T_MS + 2_000, {"user": "not of the epoch"})
    usage.append(T_MS - back_ms - 15_001, {"user": "too old"}, time_epoch=1)
    usage.append(T_MS - back_ms, {"user": "c"}, time_epoch=1)
    assert (users(follower), follower.has_begun_anew, follower.known_until_ms) == (["c"], True, T_MS - back_ms)
    usage.append(T_MS - back_ms + 1_000, {"user": "d"}, time_epoch=1)
    assert (users(follower), follower.has_begun_anew) == (["d"], False)
    assert users(UsageFollower(usage.uri, first_ms=15_000)) == ["c", "d"]


def test_compaction_vacuum_a_new_property_and_a_shortened_log_change_nothing(usage: UsageTable) -> None:
    usage.append(T_MS, {"user": "a"})
    follower = UsageFollower(usage.uri, first_ms=15_000)
    assert users(follower) == ["a"]
    usage.append(T_MS + 1, {"user": "b"})
    table = DeltaTable(usage.uri)
    table.optimize.compact()
    assert users(follower) == ["b"], "the new row is in a file with an old one"
    table.alter.set_table_properties({"kquota.test": "1"}, raise_if_not_exists=False)
    table.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
    assert users(follower) == []
    usage.append(T_MS + 2, {"user": "c"})
    log = Path(usage.uri, "_delta_log")
    newest = DeltaTable(usage.uri)
    newest.create_checkpoint()
    for entry in sorted(log.glob("0*.json"))[:-1]:
        entry.unlink()
    usage.append(T_MS + 3, {"user": "d"})
    assert users(follower) == ["c", "d"]
