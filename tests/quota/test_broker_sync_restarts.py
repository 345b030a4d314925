"""What is known after a restart, and after a write that nobody has answered."""

import pytest

from tests.quota.factories import quota_row
from tests.quota.synced import D, Synced, Told, key_of, levels_of
from tests.quota.write_ledger import Fate

ALICE, DEFAULT = key_of("alice"), key_of(D)
ROW = quota_row("alice", producer_byte_rate=100.0)
OF_DEFAULT = quota_row(D, producer_byte_rate=100.0)
EDITED_ROW = quota_row("alice", producer_byte_rate=80.0)


def test_a_restart_without_changes_writes_nothing() -> None:
    synced = Synced(ROW, OF_DEFAULT, quota_row("bob", mode="exempt"))
    synced.use(20, {"alice": (90, 90), "carol": (90, 90)})
    before = dict(synced.sync.owned)
    synced.restart()
    assert synced.period() == []
    assert synced.sync.owned == before


def test_who_was_over_the_bound_before_a_restart_rests_at_an_even_share_after_it() -> None:
    synced = Synced(ROW)
    synced.use(14, {"alice": (60, 45)})
    assert levels_of(synced.sync)[ALICE] > 52.6, "5 % above an even share, or it would stay"
    synced.restart()
    synced.period()
    synced.now_ms += 70_000
    synced.period()
    synced.now_ms += 3_000
    assert [(new, cause) for _, _, new, cause in synced.period()] == [(50.0, "quiet_offender")]


def test_what_was_edited_during_an_outage_is_written_afterwards() -> None:
    synced = Synced(ROW, OF_DEFAULT)
    synced.period()
    synced._rows = (EDITED_ROW, quota_row("bob", producer_byte_rate=3.0))
    synced.restart()
    assert sorted(synced.period()) == [
        (D, 100.0, None, "removed"),
        ("alice", 100.0, 80.0, "edited"),
        ("bob", None, 3.0, "added"),
    ]


@pytest.mark.parametrize(
    ("fate", "later"),
    [
        (Fate.KILLED_BEFORE, [("alice", 100.0, 80.0, "edited")]),
        (Fate.KILLED_STORED, [("alice", 100.0, 80.0, "edited")]),
        (Fate.KILLED_WRITTEN, []),
    ],
)
def test_a_write_that_was_not_answered_is_decided_by_what_the_brokers_hold(fate: Fate, later: list[Told]) -> None:
    synced = Synced(ROW)
    synced.period()
    synced.load(EDITED_ROW)
    synced.period(fate)
    synced.restart()
    assert synced.period() == later
    assert synced.sync.drifts == ()
    assert synced.ledger.held == {ALICE: 80.0}


@pytest.mark.parametrize(("fate", "drifts"), [(Fate.KILLED_STORED, 1), (Fate.KILLED_WRITTEN, 1)])
def test_a_write_that_was_not_answered_and_is_not_there_is_drift(fate: Fate, drifts: int) -> None:
    synced = Synced(ROW)
    synced.period()
    synced.load(EDITED_ROW)
    synced.period(fate)
    synced.ledger.held[ALICE] = 7.0
    synced.restart()
    assert synced.period() == []
    assert len(synced.sync.drifts) == drifts


@pytest.mark.parametrize("fate", [Fate.KILLED_STORED, Fate.KILLED_WRITTEN])
def test_the_first_write_may_be_the_one_that_was_not_answered(fate: Fate) -> None:
    synced = Synced(ROW)
    synced.period(fate)
    synced.restart()
    synced.period()
    synced.load()
    assert synced.period() == [("alice", 100.0, None, "removed")]


@pytest.mark.parametrize("fate", [Fate.KILLED_STORED, Fate.KILLED_WRITTEN])
def test_what_was_given_back_without_an_answer_is_not_owned_any_more(fate: Fate) -> None:
    synced = Synced(ROW, held={ALICE: 7.0}, adopt=True)
    synced.period()
    synced.load()
    synced.period(fate)
    synced.restart()
    synced.period()
    assert (synced.sync.owned, synced.ledger.held) == ({}, {ALICE: 7.0})


@pytest.mark.parametrize("fate", [Fate.UNANSWERED, Fate.NOT_WRITTEN])
def test_a_failure_in_mid_run_is_decided_by_what_the_brokers_hold(fate: Fate) -> None:
    synced = Synced(ROW)
    synced.period(fate)
    synced.describe()
    assert (synced.period() == []) is (fate is Fate.UNANSWERED)
    assert synced.sync.owned[ALICE].value == 100.0
    assert synced.sync.drifts == ()


# Limits.
