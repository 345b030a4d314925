"""The sync of the brokers' quotas: what is written at the boundaries of every rule."""

from typing import Any

import pytest

from quota.broker_levels.entries import UNREACHED, EntryKey
from quota.broker_levels.sync import AlterBudget, BrokerSync
from quota.snapshot import QuotaSnapshot
from tests.quota.factories import quota_row, table, usage_row
from tests.quota.synced import CONSUMER, PRODUCER, REQUEST, START_MS, D, Synced, Told, key_of, levels_of

ALICE, DEFAULT = key_of("alice"), key_of(D)
ROW = quota_row("alice", producer_byte_rate=100.0)
OF_DEFAULT = quota_row(D, producer_byte_rate=100.0)
EDITED_ROW = quota_row("alice", producer_byte_rate=80.0)
SHADOW_ROW = quota_row("alice", producer_byte_rate=100.0, mode="shadow")
EXEMPT_ROW = quota_row("alice", mode="exempt")


@pytest.mark.parametrize(
    ("before", "after", "written"),
    [
        pytest.param([], [ROW], [("alice", None, 100.0, "added")], id="added"),
        pytest.param([ROW], [ROW], [], id="nothing changed"),
        pytest.param([ROW], [EDITED_ROW], [("alice", 100.0, 80.0, "edited")], id="cut"),
        pytest.param([EDITED_ROW], [ROW], [("alice", 80.0, 100.0, "edited")], id="raised"),
        pytest.param([ROW], [], [("alice", 100.0, None, "removed")], id="removed"),
        pytest.param([ROW], [SHADOW_ROW], [("alice", 100.0, None, "removed")], id="shadow"),
        pytest.param([SHADOW_ROW], [ROW], [("alice", None, 100.0, "added")], id="out of the shadow"),
        pytest.param([ROW], [EXEMPT_ROW], [("alice", 100.0, None, "removed")], id="exempt and nothing less specific"),
        pytest.param([ROW, OF_DEFAULT], [EXEMPT_ROW, OF_DEFAULT], [("alice", 100.0, UNREACHED, "edited")], id="exempt"),
        pytest.param([EXEMPT_ROW, OF_DEFAULT], [OF_DEFAULT], [("alice", UNREACHED, None, "removed")], id="was exempt"),
        pytest.param([OF_DEFAULT], [quota_row(D, producer_byte_rate=9.0)], [(D, 100.0, 9.0, "edited")], id="a default"),
        pytest.param(
            [quota_row("alice", producer_byte_rate=99.5)],
            [quota_row("alice", producer_byte_rate=99.7)],
            [],
            id="a fraction",
        ),
        pytest.param(
            [quota_row("alice", request_percentage=9.5)],
            [quota_row("alice", request_percentage=9.7)],
            [("alice", 9.5, 9.7, "edited")],
            id="a fraction of a percentage",
        ),
    ],
)
def test_an_edit_of_the_table_is_written_in_the_next_period(
    before: list[dict[str, Any]], after: list[dict[str, Any]], written: list[Told]
) -> None:
    synced = Synced(*before)
    synced.period()
    assert synced.period() == []
    synced.load(*after)
    assert synced.period() == written
    assert synced.period() == []


def test_in_shadow_mode_all_that_was_written_is_given_back() -> None:
    synced = Synced(ROW, OF_DEFAULT, held={DEFAULT: 7.0}, adopt=True)
    synced.period()
    synced.load(ROW, OF_DEFAULT, mode="shadow")
    assert sorted(synced.period()) == [(D, 100.0, 7.0, "given_back"), ("alice", 100.0, None, "removed")]
    assert (synced.ledger.held, synced.sync.owned) == ({DEFAULT: 7.0}, {})


def test_every_type_of_a_row_is_a_write_of_its_own() -> None:
    synced = Synced(quota_row("alice", producer_byte_rate=5.0, consumer_byte_rate=6.0, request_percentage=7.5))
    synced.period()
    expected = {key_of("alice", "", name): value for name, value in ((PRODUCER, 5.0), (CONSUMER, 6.0), (REQUEST, 7.5))}
    assert synced.ledger.held == expected
    assert levels_of(synced.sync) == expected


def test_nothing_is_written_before_the_quotas_and_the_brokers_are_known() -> None:
    sync, counts = BrokerSync(), []
    sync.observe({}, START_MS)
    counts.append(len(sync.period(START_MS, START_MS)))
    sync.load_quotas(QuotaSnapshot.from_rows([ROW], 1), mirror=False)
    counts.append(len(sync.period(START_MS, START_MS)))
    sync.set_brokers(["1"])
    counts.append(len(sync.period(START_MS, START_MS)))
    assert counts == [0, 0, 1]


def test_nothing_is_written_before_it_is_known_what_the_brokers_hold() -> None:
    sync = BrokerSync()
    sync.load_quotas(QuotaSnapshot.from_rows([ROW], 1), mirror=False)
    sync.set_brokers(["1"])
    assert sync.period(START_MS, START_MS) == []


# What others wrote.


def test_edits_come_before_moves_and_no_period_writes_more_than_the_budget() -> None:
    rows = [quota_row(f"user-{number}", producer_byte_rate=100.0) for number in range(5)]
    synced = Synced(ROW, budget=AlterBudget(alters_per_second=2))
    synced.period()
    synced.use(6, {"alice": (90, 90)})
    synced.load(ROW, *rows)
    causes = [[change.cause for change in synced.use(1, {"alice": (90, 90)})] for _ in range(4)]
    assert causes == [["added", "added"], ["added", "added"], ["added", "together_above"], []]


def test_usage_without_a_broker_of_the_cluster_counts_nowhere_and_is_told() -> None:
    synced = Synced(ROW)
    rows = [
        usage_row(START_MS, broker_id=broker, user="alice", produced_bytes=900, fetched_bytes=fetched)
        for broker, fetched in (("", 1), ("9", None), ("1", 5))
    ]
    synced.sync.record(table(rows))
    assert synced.sync.unplaced_bytes == 1801


def test_keys_are_told_in_order() -> None:
    rows = [quota_row(user, producer_byte_rate=9.0) for user in ("bob", "alice")]
    synced = Synced(*rows, held={EntryKey(user, "", PRODUCER): 1.0 for user in ("bob", "alice")})
    synced.period()
    assert [drift.key.user for drift in synced.sync.drifts] == ["alice", "bob"]
