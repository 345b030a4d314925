"""Periods of a sync on brokers in memory and real tables: what is stored, and what a failure at any point leaves."""

import logging
from pathlib import Path

import pytest
from deltalake import DeltaTable

from pipeline.brokers.sync import BrokerQuotaSync, Sources, UsageFollower
from pipeline.errors import ClusterUnreachable, Conflict
from pipeline.tables.address import table_uri
from pipeline.tables.broker_quotas import BrokerQuotasTable
from pipeline.tables.enforced import NAME
from pipeline.tables.layout import create_missing
from pipeline.tables.quotas.edit import QuotaChange
from pipeline.tables.quotas.source import QuotaSource, Scope
from pipeline.tables.quotas.table import QuotaTable, local_audit
from pipeline.tables.reading import DeltaRsReader
from quota.broker_levels.entries import EntryKey, OwnLimits
from quota.broker_levels.sync import AlterBudget, BrokerSync
from tests.fakes.clock import ManualClock
from tests.fakes.cluster_quotas import FakeQuotas
from tests.pipeline.sync.usage_table import UsageTable

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

    def start(
        self, adopt: bool = False, alters_per_second: int = 2_000, own_limits: OwnLimits | None = None
    ) -> BrokerQuotaSync:
        quotas = QuotaSource(QuotaTable(self.root))
        sources = Sources(quotas, lambda: UsageFollower(self.usage.uri, 15_000), self.scope)
        table = BrokerQuotasTable(self.root, "c1")
        control = BrokerSync(AlterBudget(alters_per_second), adopt, own_limits=own_limits)
        sync = BrokerQuotaSync(control, sources, table, self.brokers, self.clock, 10_000)
        sync.take_over()
        return sync

    def steps(self) -> list[tuple[str, float | None, float | None, str, str]]:
        rows = DeltaRsReader(table_uri(self.root, NAME)).read().to_pylist()
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


def test_shadow_mode_gives_back_all_in_one_period_and_enforcing_again_writes_it_anew(setting: Setting) -> None:
    setting.edit(alice=MB, bob=MB)
    sync = setting.start()
    sync.step()
    setting.quotas.set_mode("shadow", local_audit("test"))
    setting.pass_time(sync)
    assert setting.brokers.values == {}
    setting.quotas.set_mode("enforce", local_audit("test"))
    setting.pass_time(sync)
    assert setting.brokers.values == {ALICE: MB, BOB: MB}


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


def test_what_the_brokers_refuse_is_told_once_and_tried_again_with_back_off(
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
    assert [step[-1] for step in setting.steps() if step[0] == "bob"].count("refused: no such thing") == 2
    setting.brokers.refused = {}
    setting.pass_time(sync, 30)
    assert setting.brokers.values == {ALICE: MB, BOB: MB}


def test_a_sync_that_was_superseded_stops_at_its_next_look(setting: Setting) -> None:
    setting.edit(alice=MB)
    first = setting.start()
    first.step()
    setting.start().step()
    setting.clock.advance(10_000)
    with pytest.raises(Conflict):
        first.step()


def test_levels_follow_the_usage_and_restore_puts_the_bound_back(tmp_path: Path) -> None:
    setting = Setting(str(tmp_path), scope="cluster")
    setting.edit(alice=MB)
    sync = setting.start()
    sync.step()
    assert setting.brokers.values == {ALICE: MB}
    for _ in range(15):
        setting.use(900_000)
        setting.pass_time(sync)
    assert 0.5 * MB <= setting.brokers.values[ALICE] < 0.6 * MB
    row = setting.steps()[-1]
    assert row[3:] == ("together_above", "applied")
    assert sync.restore() == 1
    assert setting.brokers.values == {ALICE: MB}


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


def test_the_scope_of_the_settings_wins_over_that_of_the_table(setting: Setting) -> None:
    setting.edit(alice=MB)
    sync = setting.start()
    setting.set_scope("cluster")
    for _ in range(15):
        setting.use(900_000)
        setting.pass_time(sync)
    assert setting.brokers.values == {ALICE: MB}


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
STEPS_MS = [-HOUR_MS, -20_000, 20_000, HOUR_MS]


@pytest.mark.parametrize("step_ms", STEPS_MS)
def test_edits_and_retries_go_on_when_the_clock_of_the_host_steps(setting: Setting, step_ms: int) -> None:
    setting.edit(alice=MB, bob=MB)
    setting.brokers.refused = {BOB: "no such thing"}
    sync = setting.start(alters_per_second=2)
    sync.step()
    setting.clock.set_wall(setting.clock.wall_ms + step_ms)
    for bound in range(2, 10):
        setting.edit(alice=bound * MB)
        setting.pass_time(sync)
        assert setting.brokers.values == {ALICE: bound * MB}
    setting.brokers.refused = {}
    setting.pass_time(sync, 10)
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


def test_usage_from_before_the_start_counts_on_its_broker(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    setting = Setting(str(tmp_path), scope="cluster")
    setting.edit(alice=MB)
    setting.use(1_000_000)
    setting.start().step()
    assert "names no broker" not in caplog.text


def test_a_user_with_clients_that_get_no_entry_is_named_in_the_log_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    setting = Setting(str(tmp_path), scope="cluster")
    setting.edit(**{"<default>": MB})
    sync = setting.start(own_limits=OwnLimits(in_all=1))
    for second in range(30):
        users = ("carol", "dave") if second != 20 else ("carol",)
        rows = [{"broker_id": one, "user": user, "produced_bytes": 900_000} for user in users for one in ("1", "2")]
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


@pytest.mark.parametrize(
    ("ahead_ms", "restarted"), [(0, True), (HOUR_MS, False), (HOUR_MS, True), (-HOUR_MS, False), (20_000, True)]
)
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
