"""Levels follow the demand, and sensors of defaults get entries of their own while they need them."""

import pytest

from quota.broker_levels.entries import OwnLimits
from quota.broker_levels.writes import DriftKind
from tests.quota.factories import quota_row
from tests.quota.synced import D, Synced, key_of, levels_of, told

ALICE, DEFAULT = key_of("alice"), key_of(D)
ROW = quota_row("alice", producer_byte_rate=100.0)
OF_DEFAULT = quota_row(D, producer_byte_rate=100.0)


def test_a_level_follows_the_demand_and_goes_back_to_the_bound() -> None:
    synced = Synced(ROW, brokers=("1", "2", "3"))
    written = told(synced.use(8, {"alice": (60, 30, 90)}))
    assert written == [("alice", None, 100.0, "added"), ("alice", 100.0, 35.0, "together_above")]
    change = synced.ledger.rows[-1][0]
    assert {broker: round(rate or 0) for broker, rate in change.demand.items()} == {"1": 60, "2": 30, "3": 90}
    assert synced.rest() == [("alice", 35.0, 100.0, "quiet")]
    assert synced.period() == []


def test_a_level_moves_ten_seconds_after_its_last_move_and_at_once_after_an_edit() -> None:
    synced = Synced(ROW)
    synced.use(12, {"alice": (60, 45)})
    synced.use(15, {"alice": (52, 52)})
    _, (first, first_ms), (second, second_ms) = synced.ledger.written
    assert (first.new, second.new, second_ms - first_ms) == (53.0, 50.0, 10_000)
    synced.load(quota_row("alice", producer_byte_rate=90.0))
    synced.use(1, {"alice": (52, 52)})
    assert synced.ledger.written[-1][0].cause == "edited"


def test_a_quiet_entity_is_written_once() -> None:
    synced = Synced(ROW)
    assert told(synced.use(120, {"alice": (50, 49)})) == [("alice", None, 100.0, "added")]


@pytest.mark.parametrize(("bound", "level"), [(200.0, 85.0), (101.0, 36.0), (50.0, 18.0), (45.0, 16.0)])
def test_the_level_of_an_edited_bound_is_that_of_the_demand_or_in_proportion_at_once(
    bound: float, level: float
) -> None:
    synced = Synced(ROW, brokers=("1", "2", "3"))
    synced.use(8, {"alice": (60, 30, 90)})
    synced.load(quota_row("alice", producer_byte_rate=bound))
    written = told(synced.use(1, {"alice": (35, 30, 35)}))
    assert [(cause, new) for _, _, new, cause in written] == [("edited", level)]


def test_levels_are_corrected_when_a_broker_leaves_and_kept_when_one_joins() -> None:
    synced = Synced(ROW, brokers=("1", "2", "3"))
    synced.use(8, {"alice": (90, 90, 90)})
    assert levels_of(synced.sync) == {ALICE: 34.0}
    synced.brokers = ("1", "3")
    synced.describe()
    assert synced.period() == [("alice", 34.0, 50.0, "out_of_range")]
    synced.brokers = ("1", "3", "4")
    synced.describe()
    assert told(synced.use(9, {"alice": (50, 50, 0)})) == []


def test_in_broker_scope_every_broker_gets_the_bound() -> None:
    synced = Synced(ROW)
    synced.use(8, {"alice": (90, 90)})
    assert levels_of(synced.sync) == {ALICE: 50.0}
    synced.load(ROW, mirror=True)
    assert synced.period() == [("alice", 50.0, 100.0, "edited")]
    assert told(synced.use(20, {"alice": (90, 90)})) == []
    synced.load(ROW)
    assert told(synced.use(8, {"alice": (90, 90)})) == [("alice", 100.0, 50.0, "together_above")]


def test_a_stop_that_restores_puts_every_level_at_the_bound() -> None:
    synced = Synced(ROW, OF_DEFAULT)
    synced.use(20, {"alice": (90, 90), "carol": (90, 90)})
    assert levels_of(synced.sync) == {ALICE: 50.0, key_of("carol"): 50.0}
    changes = synced.sync.restore()
    assert told(changes) == [("alice", 50.0, 100.0, "restored"), ("carol", 50.0, None, "removed")]
    synced.sync.confirm(changes, synced.now_ms)
    assert synced.sync.restore() == []


# Sensors of defaults.


def test_a_sensor_of_a_default_has_an_entry_while_it_needs_one() -> None:
    synced = Synced(OF_DEFAULT)
    load = {"carol": (90, 90), "dave": (90, 0), "erin": (60, 38)}
    written = synced.use(20, load)
    assert told(written) == [(D, None, 100.0, "added"), ("carol", None, 50.0, "together_above")]
    assert (written[-1].kind, written[-1].before, written[-1].bound) == ("own", None, 100.0)
    assert synced.rest() == [("carol", 50.0, None, "removed")]
    assert synced.ledger.held == {DEFAULT: 100.0}


def test_a_sensor_over_its_bound_again_and_again_keeps_its_entry_for_ten_minutes() -> None:
    synced = Synced(OF_DEFAULT)
    synced.use(20, {"carol": (90, 90)})
    for _ in range(3):
        synced.now_ms += 580_000
        synced.period()
        assert synced.ledger.held[key_of("carol")] == 50.0
        synced.use(10, {"carol": (90, 90)})
    assert synced.rest() == [("carol", 50.0, None, "removed")]


def test_an_entry_that_would_change_the_quota_of_another_client_is_refused() -> None:
    hidden = quota_row(D, "etl", producer_byte_rate=30.0)
    synced = Synced(OF_DEFAULT, hidden)
    assert {key.user for key in synced.ledger.held} == set()
    assert {user for user, *_ in told(synced.use(20, {"carol": (90, 90)}))} == {D}
    assert [(refusal.key.user, refusal.by, refusal.retry_at_ms) for refusal in synced.sync.refused] == [
        ("carol", "resolution", None)
    ]
    synced.load(OF_DEFAULT)
    assert [user for user, *_ in told(synced.use(5, {"carol": (90, 90)})) if user != D] == ["carol"]
    assert synced.sync.refused == ()
    synced.load(OF_DEFAULT, hidden)
    assert ("carol", 50.0, None, "removed") in synced.period()


def test_a_refusal_is_told_no_longer_when_the_sensor_is_quiet() -> None:
    synced = Synced(OF_DEFAULT, quota_row(D, "etl", producer_byte_rate=30.0))
    synced.use(20, {"carol": (90, 90)})
    synced.use(60, {})
    assert synced.sync.refused == ()


def test_a_foreign_value_at_a_sensor_of_a_default_is_left_alone_and_reported() -> None:
    carol = key_of("carol")
    synced = Synced(OF_DEFAULT, held={carol: 70.0})
    synced.use(20, {"carol": (90, 90)})
    assert synced.ledger.held[carol] == 70.0
    assert [(drift.key, drift.kind) for drift in synced.sync.drifts] == [(carol, DriftKind.FOREIGN)]


def test_a_row_for_a_sensor_with_an_entry_takes_it_over() -> None:
    synced = Synced(OF_DEFAULT)
    synced.use(20, {"carol": (90, 90)})
    synced.load(OF_DEFAULT, quota_row("carol", producer_byte_rate=100.0))
    assert synced.period() == []
    assert synced.sync.owned[key_of("carol")].kind == "level"


# How many of them.

OF_EACH_PAIR = quota_row(D, D, producer_byte_rate=100.0)


def own_of(synced: Synced) -> set[str]:
    """`user/client-id` of the entries of sensors of defaults that are on the brokers."""
    return {f"{key.user}/{key.client_id}" for key in synced.ledger.held if D not in key}


def test_a_user_that_makes_up_client_ids_gets_as_many_entries_as_a_user_may_have() -> None:
    synced = Synced(OF_EACH_PAIR, own_limits=OwnLimits(per_user=5))
    for second in range(60):
        synced.use(1, {f"mallory/{second + later}": (90, 90) for later in range(20)})
        assert len(own_of(synced)) <= 5
    assert len(own_of(synced)) == 5
    assert synced.sync.left_out["mallory"] >= 5
    synced.use(20, {"carol/etl": (90, 90), **{f"mallory/{number}": (90, 90) for number in range(60, 80)}})
    assert "carol/etl" in own_of(synced)
    assert synced.sync.left_out.keys() == {"mallory"}


@pytest.mark.parametrize(
    ("limits", "granted", "left_out"),
    [
        (OwnLimits(per_user=2), {"a/4", "a/3", "b/9"}, {"a": 2}),
        (OwnLimits(in_all=2), {"b/9", "a/4"}, {"a": 3}),
        (OwnLimits(per_user=1, in_all=1), {"b/9"}, {"a": 4}),
        (OwnLimits(per_user=0), set(), {"a": 4, "b": 1}),
        (OwnLimits(), {"a/1", "a/2", "a/3", "a/4", "b/9"}, {}),
    ],
)
def test_the_largest_offenders_get_the_entries_and_the_others_are_counted(
    limits: OwnLimits, granted: set[str], left_out: dict[str, int]
) -> None:
    synced = Synced(OF_EACH_PAIR, own_limits=limits)
    load = {"a/1": (70, 70), "a/2": (75, 75), "a/3": (80, 80), "a/4": (90, 90), "b/9": (95, 95)}
    synced.use(20, load)
    assert (own_of(synced), dict(synced.sync.left_out)) == (granted, left_out)


@pytest.mark.parametrize("limits", [OwnLimits(per_user=2), OwnLimits(in_all=2)])
def test_entries_of_quiet_sensors_make_room_for_those_that_found_none(limits: OwnLimits) -> None:
    synced = Synced(OF_EACH_PAIR, own_limits=limits)
    synced.use(20, {"a/1": (90, 90), "a/2": (90, 90)})
    assert synced.use(90, {"a/2": (90, 90)}) == []
    assert own_of(synced) == {"a/1", "a/2"}, "it stays while it takes no room from others"
    synced.use(20, {"a/2": (90, 90), "a/3": (90, 90)})
    assert own_of(synced) == {"a/2", "a/3"}
    assert synced.sync.left_out == {}


def test_a_quiet_sensor_of_another_user_makes_no_room_where_a_user_has_all_it_may_have() -> None:
    synced = Synced(OF_EACH_PAIR, own_limits=OwnLimits(per_user=1))
    synced.use(20, {"a/1": (90, 90), "b/1": (90, 90)})
    synced.use(80, {"b/1": (90, 90), "b/2": (90, 90)})
    assert own_of(synced) == {"a/1", "b/1"}


def test_after_a_restart_with_less_room_those_that_were_over_last_keep_their_entries() -> None:
    synced = Synced(OF_EACH_PAIR)
    synced.use(20, {"a/1": (90, 90), "a/3": (90, 90)})
    synced.use(20, {"a/2": (90, 90)})
    synced.restart(own_limits=OwnLimits(per_user=1))
    synced.use(2, {})
    assert own_of(synced) == {"a/2"}


# Restarts.
