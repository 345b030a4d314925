import numpy as np

from quota.broker_entries import EntryKey
from quota.broker_rates import BrokerView
from quota.level_alters import LevelAlter, alters_of, restored_state
from quota.level_control import NEVER_MS, LevelState, propose

NOW_MS = 1_700_000_000_000
KEYS = [EntryKey(user, "", "producer_byte_rate") for user in ("alice", "bob")]
BOUND = np.array([100.0, 100.0])


def first_alter() -> tuple[LevelState, list[LevelAlter]]:
    """Alice wants 98 on the first of three brokers, which throttles, 30 and 40; Bob nothing."""
    wanted = np.array([[98.0, 30.5, 40.0], [0.0, 0.0, 0.0]])
    view = BrokerView(NOW_MS, wanted, np.full((2, 3), 10_999), wanted, np.full((2, 3), NOW_MS))
    never = np.full(2, NEVER_MS)
    proposals, state = propose(view, BOUND, LevelState.start(BOUND, never, never, 3, NOW_MS), NOW_MS)
    rows = np.flatnonzero(proposals.cause)
    alters = alters_of(KEYS, rows, BOUND, ["1", "2", "3"], state, proposals, NOW_MS)
    return state.altered(rows, np.array([alter.new for alter in alters]), NOW_MS), alters


def test_an_alter_says_from_what_to_what_and_why() -> None:
    _, alters = first_alter()
    assert alters == [
        LevelAlter(KEYS[0], 100.0, 35.0, 100.0, {"1": None, "2": 30.5, "3": 40.0}, "together_above", NOW_MS)
    ]


def test_the_state_after_a_restart_is_what_was_stored() -> None:
    state, alters = first_alter()
    other = LevelAlter(EntryKey("carol", "", "producer_byte_rate"), 9.0, 5.0, 9.0, {}, "quiet", NOW_MS)
    restored = restored_state(KEYS, [*alters, other], BOUND, 3, NOW_MS + 5_000)
    for name in ("level", "altered_at_ms", "over_at_ms"):
        assert getattr(restored, name).tolist() == getattr(state, name).tolist()


def test_the_newest_alter_counts_and_the_newest_time_over_the_bound_is_kept() -> None:
    _, alters = first_alter()
    later = LevelAlter(KEYS[0], 35.0, 70.0, 100.0, {}, "room_left", NOW_MS + 10_000)
    restored = restored_state(KEYS, [*alters, later], BOUND, 3, NOW_MS + 20_000)
    assert restored.level.tolist() == [70.0, 100.0]
    assert restored.altered_at_ms.tolist() == [NOW_MS + 10_000, NEVER_MS]
    assert restored.over_at_ms.tolist() == [NOW_MS, NEVER_MS]
