"""What the sync makes of values that others wrote, and of writes that the brokers refuse."""

from typing import Any

import pytest

from quota.broker_levels.writes import DriftKind
from tests.quota.factories import quota_row
from tests.quota.synced import CONSUMER, START_MS, D, Synced, key_of

ALICE, DEFAULT = key_of("alice"), key_of(D)
ROW = quota_row("alice", producer_byte_rate=100.0)
OF_DEFAULT = quota_row(D, producer_byte_rate=100.0)
EDITED_ROW = quota_row("alice", producer_byte_rate=80.0)


@pytest.mark.parametrize(
    ("row", "theirs", "drifts"),
    [(ROW, 7.0, True), (ROW, 100.0, True), (OF_DEFAULT, 7.0, True), (OF_DEFAULT, 100.0, False)],
)
def test_a_value_of_others_is_reported_and_left_alone(row: dict[str, Any], theirs: float, drifts: bool) -> None:
    key = key_of(row["user"])
    synced = Synced(row, held={key: theirs})
    assert synced.period() == []
    found = [(drift.key, drift.theirs, drift.ours, drift.wanted, drift.kind) for drift in synced.sync.drifts]
    assert found == ([(key, theirs, None, 100.0, DriftKind.FOREIGN)] if drifts else [])
    synced.load()
    assert synced.period() == []
    assert synced.ledger.held == {key: theirs}
    assert synced.sync.drifts == ()


@pytest.mark.parametrize("theirs", [7.0, 100.0])
def test_an_adopted_value_is_given_back_when_the_row_goes(theirs: float) -> None:
    synced = Synced(ROW, held={ALICE: theirs}, adopt=True)
    assert synced.period() == [("alice", theirs, 100.0, "adopted")]
    assert synced.sync.owned[ALICE].before == theirs
    synced.restart()
    synced.load()
    assert synced.period() == [("alice", 100.0, theirs, "given_back")]
    assert (synced.sync.owned, synced.ledger.held) == ({}, {ALICE: theirs})


def test_what_stood_there_before_is_remembered_while_the_level_moves() -> None:
    synced = Synced(ROW, held={ALICE: 7.0}, adopt=True)
    synced.use(8, {"alice": (90, 90)})
    assert synced.ledger.rows[-1][0].cause == "together_above"
    synced.restart()
    synced.load()
    assert synced.period() == [("alice", 50.0, 7.0, "given_back")]


def test_values_of_others_at_other_entities_and_types_are_never_touched() -> None:
    others = {key_of("bob"): 1.0, key_of("alice", "etl"): 2.0, key_of("alice", "", CONSUMER): 3.0}
    synced = Synced(ROW, held=others, adopt=True)
    synced.period()
    synced.load()
    synced.period()
    assert synced.ledger.held == others


@pytest.mark.parametrize("theirs", [7.0, None])
def test_what_someone_changed_is_reported_and_left_alone_until_it_is_put_right(theirs: float | None) -> None:
    synced = Synced(ROW)
    synced.period()
    synced.others_write(ALICE, theirs)
    assert synced.period() == []
    (drift,) = synced.sync.drifts
    assert (drift.theirs, drift.ours, drift.wanted, drift.kind) == (theirs, 100.0, 100.0, DriftKind.CHANGED)
    synced.load(EDITED_ROW)
    assert synced.period() == []
    assert synced.sync.drifts[0].wanted == 80.0
    synced.others_write(ALICE, 80.0)
    synced.period()
    assert synced.sync.drifts == ()
    synced.load(ROW)
    assert synced.period() == [("alice", 80.0, 100.0, "edited")]


def test_what_someone_changed_is_written_again_if_values_of_others_are_adopted() -> None:
    synced = Synced(ROW, held={ALICE: 5.0}, adopt=True)
    synced.period()
    synced.others_write(ALICE, 7.0)
    assert synced.period() == [("alice", 7.0, 100.0, "adopted")]
    assert synced.sync.owned[ALICE].before == 5.0


def test_a_value_that_goes_is_not_given_back_over_what_someone_changed() -> None:
    synced = Synced(ROW)
    synced.period()
    synced.others_write(ALICE, 7.0)
    synced.load()
    assert synced.period() == []
    assert [drift.wanted for drift in synced.sync.drifts] == [None]
    synced.others_write(ALICE, None)
    assert synced.period() == [("alice", None, None, "removed")]
    assert (synced.sync.owned, synced.sync.drifts) == ({}, ())


# What the brokers refuse.


def test_a_refused_write_is_tried_again_ever_more_rarely() -> None:
    synced = Synced(ROW, OF_DEFAULT)
    changes = synced.sync.period(START_MS, START_MS)
    synced.sync.confirm(changes[1:], START_MS)
    synced.sync.refuse(changes[0], "not allowed", START_MS)
    (refusal,) = synced.sync.refused
    assert (refusal.key, refusal.by, refusal.reason) == (ALICE, "broker", "not allowed")
    tried: list[int] = []
    now_ms = START_MS
    while len(tried) < 8:
        now_ms += 10_000
        for change in synced.sync.period(now_ms, now_ms):
            tried.append((now_ms - START_MS) // 1000)
            synced.sync.refuse(change, "not allowed", now_ms)
    assert tried == [10, 30, 70, 150, 310, 630, 1230, 1830]


def test_a_refused_write_is_retried_when_its_row_is_edited_and_forgotten_when_taken() -> None:
    synced = Synced(ROW)
    synced.sync.refuse(synced.sync.period(START_MS, START_MS)[0], "not allowed", START_MS)
    assert synced.period() == []
    synced.load(EDITED_ROW)
    assert synced.period() == [("alice", None, 80.0, "added")]
    assert synced.sync.refused == ()


# Levels.
