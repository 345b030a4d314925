"""Periods of a sync on brokers in memory and real tables: what is stored, what it reads, and what a failure leaves."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from pipeline.brokers.native import Look
from pipeline.brokers.sync import MOST_LINES, BrokerQuotaSync, Sources, UsageFollower
from pipeline.errors import ClusterUnreachable, Conflict
from pipeline.tables.broker_quotas import NAME, BrokerQuotasTable
from pipeline.tables.delta_rs import DeltaRsWriter
from pipeline.tables.layout import TABLES, create_missing
from pipeline.tables.port import table_uri
from pipeline.tables.queries import StoredTable
from pipeline.tables.quotas.edit import QuotaChange
from pipeline.tables.quotas.source import QuotaSource, Scope
from pipeline.tables.quotas.table import QuotaTable, local_audit
from quota.broker_levels.entries import MOST_OWN_PER_USER, EntryKey
from quota.broker_levels.sync import BrokerSync
from quota.broker_levels.writes import Change
from schemas.arrow import conform
from schemas.usage import UsageRow
from tests.fakes.clock import ManualClock

ADDRESS = "nowhere:9092"


class FakeQuotas:
    """Holds values, and fails on demand.

    Attributes:
        values: What the brokers hold.
        broker_ids: Which brokers are up.
        refused: Keys that they refuse, with the reason.
        takes: How many changes of the next call are made before the connection is lost; None = all, and it is not lost.
        altered: Every change that was made, in order.
    """

    def __init__(self, *broker_ids: str) -> None:
        self.values: dict[EntryKey, float] = {}
        self.broker_ids = broker_ids or ("1", "2")
        self.refused: dict[EntryKey, str] = {}
        self.takes: int | None = None
        self.is_away = False
        self.altered: list[Change] = []

    def look(self) -> Look:
        self._answer()
        return Look(self.broker_ids, dict(self.values))

    def make(self, changes: Sequence[Change]) -> dict[EntryKey, str]:
        self._answer()
        for change in changes if self.takes is None else changes[: self.takes]:
            if change.key in self.refused:
                continue
            self.altered.append(change)
            if change.new is None:
                self.values.pop(change.key, None)
            else:
                self.values[change.key] = change.new
        if self.takes is not None:
            self.takes = None
            raise ClusterUnreachable(ADDRESS, cause="the connection was lost", fix="try again")
        return {change.key: self.refused[change.key] for change in changes if change.key in self.refused}

    def _answer(self) -> None:
        if self.is_away:
            raise ClusterUnreachable(ADDRESS, cause="it is away", fix="start it")


class UsageTable:
    """The table under a root, and its writer."""

    def __init__(self, root: Path | str) -> None:
        create_missing(str(root), [TABLES["usage"]])
        self.uri = table_uri(str(root), "usage")
        self._writer = DeltaRsWriter(self.uri, "job")
        self._writer.raise_epoch(1)
        self._batch_id = -1

    def append(self, at_ms: int, *rows: Mapping[str, Any], time_epoch: int = 0) -> None:
        """A batch that is evaluated at an instant. Columns that a row does not have are those of an idle client u/c."""
        self._batch_id += 1
        start_ms = at_ms // 1000 * 1000
        defaults = {
            "broker_id": "1",
            "user": "u",
            "client_id": "c",
            "sample_start_ms": start_ms,
            "last_event_ms": at_ms,
        }
        table = pa.Table.from_pylist([{**defaults, "request_count": 1, **row} for row in rows])
        about: dict[str, Any] = {"cluster": "c1", "query_id": "q", "batch_id": self._batch_id, "quota_version": 0}
        about["time_epoch"] = time_epoch
        self._writer.append(conform(table, UsageRow, evaluated_at_ms=at_ms, **about), {"q": self._batch_id}, {})


ALICE = EntryKey("alice", "", "producer_byte_rate")
BOB = EntryKey("bob", "", "producer_byte_rate")
MB = 1e6


class Setting:
    """Tables, brokers and a clock; `start` begins a sync on them, as a new process does."""

    def __init__(self, root: str, scope: Scope | None = "broker") -> None:
        create_missing(root)
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

    def use(self, each_bytes: int) -> None:
        """Alice uses so much on each of two brokers, in a second."""
        rows = [{"broker_id": name, "user": "alice", "produced_bytes": each_bytes} for name in ("1", "2")]
        self.usage.append(self.clock.wall_ms, *rows)

    def start(self, adopt: bool = False, own_entries_per_user: int = MOST_OWN_PER_USER) -> BrokerQuotaSync:
        quotas = QuotaSource(QuotaTable(self.root))
        sources = Sources(quotas, lambda: UsageFollower(self.usage.uri, 15_000), self.scope)
        table = BrokerQuotasTable(self.root, "c1")
        control = BrokerSync(adopt, own_entries_per_user=own_entries_per_user)
        sync = BrokerQuotaSync(control, sources, table, self.brokers, self.clock, 10_000)
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


def test_an_edit_is_on_the_brokers_after_a_period_and_stored_before_and_after(setting: Setting) -> None:
    setting.edit(alice=MB)
    sync = setting.start()
    assert (sync.step(), setting.brokers.values) == (1, {ALICE: MB})
    setting.edit(alice=3 * MB)
    setting.pass_time(sync)
    assert setting.brokers.values == {ALICE: 3 * MB}
    assert setting.steps() == [
        ("alice", None, MB, "added", "pending"),
        ("alice", None, MB, "added", "applied"),
        ("alice", MB, 3 * MB, "edited", "pending"),
        ("alice", MB, 3 * MB, "edited", "applied"),
    ]
    setting.pass_time(sync, 25)
    assert len(setting.steps()) == 4, "nothing changes, nothing is written"


@pytest.mark.parametrize("taken", [0, 1, 2])
def test_a_lost_answer_is_settled_by_a_look_at_the_brokers(setting: Setting, taken: int) -> None:
    setting.edit(alice=MB, bob=MB)
    sync = setting.start()
    setting.brokers.takes = taken
    with pytest.raises(ClusterUnreachable):
        sync.step()
    setting.pass_time(sync, 2)
    assert setting.brokers.values == {ALICE: MB, BOB: MB}
    assert len(setting.brokers.altered) == 2, "what got there is not written again"
    results = [result for *_, result in setting.steps()]
    assert results[:2] == ["pending"] * 2
    assert results[2:4] == ["applied"] * taken + ["not applied"] * (2 - taken)


@pytest.mark.parametrize("taken", [0, 1, 2])
def test_a_process_that_dies_between_the_two_rows_leaves_all_to_the_next(setting: Setting, taken: int) -> None:
    setting.edit(alice=MB, bob=MB)
    setting.brokers.takes = taken
    with pytest.raises(ClusterUnreachable):
        setting.start().step()
    sync = setting.start()
    sync.step()
    assert setting.brokers.values == {ALICE: MB, BOB: MB}
    assert len(setting.brokers.altered) == 2
    setting.edit(alice=None, bob=None)
    setting.pass_time(sync)
    assert setting.brokers.values == {}, "all of it is owned"


def test_what_others_wrote_is_left_alone_and_told_once_until_it_is_adopted(
    setting: Setting, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "pipeline.sync")
    setting.edit(alice=MB, bob=MB)
    setting.brokers.values = {ALICE: 7 * MB}
    sync = setting.start()
    setting.pass_time(sync, 30)
    assert setting.brokers.values == {ALICE: 7 * MB, BOB: MB}
    setting.brokers.values[BOB] = 9 * MB
    setting.pass_time(sync, 30)
    assert setting.brokers.values == {ALICE: 7 * MB, BOB: 9 * MB}
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 2
    assert "user-principal 'alice' producer_byte_rate is 7.0 MB/s on the brokers: kquota did not write it" in told[0]
    assert "user-principal 'bob' producer_byte_rate is 9.0 MB/s on the brokers: kquota wrote 1.0 MB/s" in told[1]
    adopting = setting.start(adopt=True)
    adopting.step()
    assert setting.brokers.values == {ALICE: MB, BOB: MB}
    setting.edit(alice=None)
    setting.pass_time(adopting)
    assert setting.brokers.values[ALICE] == 7 * MB, "what stood there before is given back"


def test_what_the_brokers_refuse_is_told_once_and_tried_again_ten_minutes_later(
    setting: Setting, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "pipeline.sync")
    setting.edit(alice=MB, bob=MB)
    setting.brokers.refused = {BOB: "no such thing"}
    sync = setting.start()
    setting.pass_time(sync, 25)
    assert setting.brokers.values == {ALICE: MB}
    told = [record.getMessage() for record in caplog.records]
    assert told == ["user-principal 'bob' producer_byte_rate: the brokers refuse no such thing"]
    assert [step[-1] for step in setting.steps() if step[0] == "bob"].count("refused: no such thing") == 1
    setting.brokers.refused = {}
    setting.clock.advance(580_000)
    setting.pass_time(sync)
    assert setting.brokers.values == {ALICE: MB, BOB: MB}


def test_of_many_refused_values_the_log_names_the_first_and_counts_the_others(
    setting: Setting, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "pipeline.sync")
    users = [f"user-{number}" for number in range(MOST_LINES + 3)]
    setting.edit(**dict.fromkeys(users, MB))
    setting.brokers.refused = {EntryKey(name, "", "producer_byte_rate"): "no such thing" for name in users}
    setting.pass_time(setting.start(), 2)
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == MOST_LINES + 1
    assert told[-1] == "and 3 more values cannot be written"


def test_another_scope_of_the_table_holds_from_the_next_period_on(tmp_path: Path) -> None:
    setting = Setting(str(tmp_path), scope=None)
    setting.edit(alice=MB)
    sync = setting.start()
    for _ in range(15):
        setting.use(900_000)
        setting.pass_time(sync)
    assert 0.5 * MB <= setting.brokers.values[ALICE] < 0.6 * MB
    setting.set_scope("broker")
    setting.pass_time(sync)
    assert setting.brokers.values == {ALICE: MB}
    assert setting.steps()[-1][3:] == ("edited", "applied")
    for _ in range(15):
        setting.use(900_000)
        setting.pass_time(sync)
    assert setting.brokers.values == {ALICE: MB}, "in a mirror every broker has the bound, whatever is used"
    setting.set_scope("cluster")
    setting.pass_time(sync, 2)
    assert 0.5 * MB <= setting.brokers.values[ALICE] < 0.6 * MB, "by the usage of the last seconds"


def test_a_broker_that_is_being_restarted_still_counts(tmp_path: Path) -> None:
    setting = Setting(str(tmp_path), scope="cluster")
    setting.edit(alice=MB)
    sync = setting.start()
    sync.step()
    for _ in range(15):
        setting.use(2_000_000)
        setting.pass_time(sync)
    level = setting.brokers.values[ALICE]
    setting.brokers.broker_ids = ("1",)
    setting.pass_time(sync, 40)
    assert setting.brokers.values[ALICE] == level
    setting.pass_time(sync, 40)
    assert setting.brokers.values[ALICE] == MB, "it is gone, and the other one may give all of T"


HOUR_MS = 3_600_000
STEPS_MS = [-HOUR_MS, HOUR_MS]


@pytest.mark.parametrize("step_ms", STEPS_MS)
def test_edits_and_retries_go_on_when_the_clock_of_the_host_steps(setting: Setting, step_ms: int) -> None:
    setting.edit(alice=MB, bob=MB)
    setting.brokers.refused = {BOB: "no such thing"}
    sync = setting.start()
    sync.step()
    setting.clock.set_wall(setting.clock.wall_ms + step_ms)
    for bound in range(2, 10):
        setting.edit(alice=bound * MB)
        setting.pass_time(sync)
        assert setting.brokers.values == {ALICE: bound * MB}
    setting.brokers.refused = {}
    setting.clock.advance(600_000)
    setting.pass_time(sync)
    assert setting.brokers.values[BOB] == MB


@pytest.mark.parametrize("step_ms", STEPS_MS)
def test_a_broker_that_is_gone_for_a_minute_is_gone_whatever_the_clock_says(tmp_path: Path, step_ms: int) -> None:
    setting = Setting(str(tmp_path), scope="cluster")
    setting.edit(alice=MB)
    sync = setting.start()
    run_levels(setting, sync, 15, ahead_ms=0)
    assert setting.brokers.values[ALICE] < MB
    setting.brokers.broker_ids = ("1",)
    setting.clock.set_wall(setting.clock.wall_ms + step_ms)
    setting.pass_time(sync, 80)
    assert setting.brokers.values[ALICE] == MB


def test_a_user_with_clients_that_get_no_entry_is_named_in_the_log_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    setting = Setting(str(tmp_path), scope="cluster")
    every_pair = QuotaChange("<default>", "<default>", {"producer_byte_rate": MB})
    setting.quotas.alter([every_pair], local_audit("test"))
    sync = setting.start(own_entries_per_user=1)
    for second in range(30):
        names = ("etl", "web") if second != 20 else ("etl",)
        used = {"user": "dave", "produced_bytes": 900_000}
        rows = [{**used, "broker_id": one, "client_id": name} for name in names for one in ("1", "2")]
        setting.usage.append(setting.clock.wall_ms, *rows)
        setting.pass_time(sync)
    assert caplog.text.count("need an entry of their own") == 1
    assert "more clients of user 'dave' need an entry of their own than there is room for" in caplog.text


def run_levels(setting: Setting, sync: BrokerQuotaSync, seconds: int, ahead_ms: int, time_epoch: int = 0) -> list[int]:
    """Alice uses 2.4 times her bound, and after 20 s less on the second broker.

    Args:
        ahead_ms: how far the steady clock of the host is ahead of the time of the usage.

    Returns:
        The seconds in which her level was altered.
    """
    altered_at: list[int] = []
    for second in range(seconds):
        on_second = 100_000 if second // 20 % 2 else 900_000
        rows = [
            {"broker_id": broker_id, "user": "alice", "produced_bytes": used}
            for broker_id, used in (("1", 1_500_000), ("2", on_second))
        ]
        setting.usage.append(setting.clock.steady_ms - ahead_ms, *rows, time_epoch=time_epoch)
        before = len(setting.brokers.altered)
        setting.pass_time(sync)
        altered_at += [second] * (len(setting.brokers.altered) - before)
    return altered_at


@pytest.mark.parametrize(("ahead_ms", "restarted"), [(HOUR_MS, False), (HOUR_MS, True), (-HOUR_MS, False)])
def test_levels_follow_the_use_though_the_host_was_ahead(tmp_path: Path, ahead_ms: int, restarted: bool) -> None:
    setting = Setting(str(tmp_path), scope="cluster")
    setting.edit(alice=MB)
    setting.clock.set_wall(setting.clock.wall_ms + ahead_ms)
    setting.clock.steady_ms += ahead_ms
    sync = setting.start()
    assert run_levels(setting, sync, 15, ahead_ms) == [0, 4], "while it is ahead"
    setting.clock.set_wall(setting.clock.wall_ms - ahead_ms)
    if restarted:
        setting.clock.steady_ms -= ahead_ms
        sync, ahead_ms = setting.start(), 0
    assert run_levels(setting, sync, 40, ahead_ms) == [36]


def test_levels_follow_the_use_in_a_new_time_epoch(tmp_path: Path) -> None:
    setting = Setting(str(tmp_path), scope="cluster")
    setting.edit(alice=MB)
    sync = setting.start()
    run_levels(setting, sync, 15, ahead_ms=0)
    assert run_levels(setting, sync, 40, ahead_ms=HOUR_MS, time_epoch=1) == [36]


def test_shadow_mode_gives_back_all_in_one_period_and_a_superseded_sync_stops_at_its_next_look(
    setting: Setting,
) -> None:
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
    create_missing(str(tmp_path))
    table, audit = QuotaTable(str(tmp_path)), local_audit("test")
    source = QuotaSource(table)
    quotas = Sources(source, lambda: UsageFollower("", 0), "broker", users)
    assert quotas.pin().quotas == ()
    table.alter([QuotaChange(*entity, {"producer_byte_rate": 1.0}) for entity in ENTITIES], audit)
    seen = quotas.poll()
    assert seen is not None
    assert {(one.user, one.client_id) for one in seen.quotas} == set(chosen)
    assert seen == quotas.pin()
    assert seen.version == source.pin().version
    assert quotas.poll() is None


T_MS = 1_700_000_000_000


@pytest.fixture
def usage(tmp_path: Path) -> UsageTable:
    return UsageTable(tmp_path)


def users(follower: UsageFollower) -> list[str]:
    rows = follower.new_rows()
    return [] if rows is None else sorted(rows["user"].to_pylist())


def test_it_begins_with_the_last_seconds_and_goes_on_with_what_is_new(usage: UsageTable) -> None:
    usage.append(T_MS, {"user": "old"})
    usage.append(T_MS + 20_000, {"user": "recent"})
    usage.append(T_MS + 30_000, {"user": "newest"})
    follower = UsageFollower(usage.uri, first_ms=15_000)
    assert (users(follower), follower.known_until_ms) == (["newest", "recent"], T_MS + 30_000)
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


def test_an_empty_table_has_nothing_new_until_something_is(usage: UsageTable) -> None:
    follower = UsageFollower(usage.uri, first_ms=15_000)
    assert (follower.new_rows(), follower.known_until_ms) == (None, 0)
    usage.append(T_MS, {"user": "a"})
    assert users(follower) == ["a"]


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
