"""The whole sync against simulated brokers, killed twenty times while the load moves."""

from itertools import pairwise
from random import Random

import numpy as np
import pytest

from tests.quota.synced_brokers import SyncedBrokers
from tests.quota.write_ledger import Fate

OVERLOADS = (0.3, 1.2, 5.0, 20.0)
SHARES = ((0.9, 0.1), (0.1, 0.9), (0.5, 0.5), (0.9, 0.1))
MOVE_SECONDS = 120
KILLS = 20
ABRUPT = [fate for fate in Fate if fate.is_killed]


@pytest.fixture(scope="module")
def run() -> SyncedBrokers:
    random = Random(18)
    seconds = sorted(random.sample(range(1, len(SHARES) * MOVE_SECONDS), KILLS))
    cluster = SyncedBrokers(
        np.array(OVERLOADS), np.array(SHARES), MOVE_SECONDS, {second: random.choice(ABRUPT) for second in seconds}
    )
    cluster.run()
    return cluster


def test_whenever_the_sync_is_killed_a_broker_has_its_share_and_at_most_the_bound(
    run: SyncedBrokers,
) -> None:
    levels = np.array(run.levels)
    assert levels.max() <= 1.0
    assert levels.min() >= 1 / len(SHARES[0])
    assert (levels.min(axis=0) < 1.0).tolist() == [overload > 1 for overload in OVERLOADS]


def test_the_sum_stays_where_it_is_without_a_kill(run: SyncedBrokers) -> None:
    """docs/broker-levels.md, "2, 90/10 → 10/90" and the like: 0.9 to 1.12 from 40 s after a move on."""
    sent = np.array(run.sent)
    for move in range(len(SHARES)):
        settled = sent[move * MOVE_SECONDS + 40 : (move + 1) * MOVE_SECONDS]
        means = [settled[start : start + 50].mean(axis=0) for start in range(len(settled) - 50)]
        lowest, highest = np.min(means, axis=0), np.max(means, axis=0)
        assert (lowest[1:] >= 0.88).all(), (move, lowest)
        assert (highest[1:] <= 1.14).all(), (move, highest)


def test_the_entity_that_is_below_its_bound_is_written_once(run: SyncedBrokers) -> None:
    of_quiet = [change.cause for change, _, _ in run.ledger.rows if change.key.user == "user-0"]
    assert of_quiet == ["added"]


def test_no_level_moves_twice_in_ten_seconds(run: SyncedBrokers) -> None:
    for number in range(len(OVERLOADS)):
        of_user = [(change, at_ms) for change, at_ms in run.ledger.written if change.key.user == f"user-{number}"]
        moves = [at_ms for change, at_ms in of_user if change.is_move]
        assert all(after - before >= 10_000 for before, after in pairwise(moves))
        assert bool(moves) is (OVERLOADS[number] > 1)


def test_afterwards_all_is_as_a_fresh_computation_says(run: SyncedBrokers) -> None:
    """When the clients have been quiet for as long as anything is remembered."""
    run.come_to_rest()
    fresh = SyncedBrokers(run.overloads, run.shares, MOVE_SECONDS, {})
    assert run.ledger.held == fresh.ledger.held
