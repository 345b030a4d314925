import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from quota.holds import HeldTime

START_MS, END_MS = 1_000, 1_100
INTERVALS = st.lists(st.tuples(st.integers(0, 4), st.integers(900, 1_200), st.integers(0, 300)), max_size=20)


@given(intervals=INTERVALS, bins=st.integers(1, 120), replays=st.integers(1, 3))
def test_time_is_counted_per_client_and_per_part_of_the_range(
    intervals: list[tuple[int, int, int]], bins: int, replays: int
) -> None:
    held = HeldTime(START_MS, END_MS, bins, replays)
    wanted_by_client, wanted_by_bin = np.zeros(5, np.int64), np.zeros((replays, bins), np.int64)
    bin_ms = -(-(END_MS - START_MS) // bins)
    for client, from_ms, length_ms in intervals:
        held.add(np.array([client]), np.array([from_ms]), np.array([from_ms + length_ms]))
        for ms in range(max(from_ms, START_MS), min(from_ms + length_ms, END_MS)):
            wanted_by_client[client] += 1
            wanted_by_bin[client % replays, (ms - START_MS) // bin_ms] += 1
    found = held.by_client
    assert found[:5].tolist() + [0] * (5 - len(found)) == wanted_by_client.tolist()
    assert held.by_bin.tolist() == wanted_by_bin.tolist()


def test_what_is_added_after_a_look_at_the_sums_counts_too() -> None:
    held = HeldTime(START_MS, END_MS, 1)
    clients = np.array([0, 2])
    for _ in range(3):
        held.add(clients, np.array([1_000, 1_090]), np.array([1_010, 1_190]))
        assert held.by_client[clients].tolist() == [held.by_bin[0, 0] // 2] * 2
    assert held.by_bin.tolist() == [[60]]


def test_a_range_that_is_empty_holds_nobody() -> None:
    held = HeldTime(START_MS, START_MS, 3)
    held.add(np.array([0]), np.array([900]), np.array([1_200]))
    assert (held.by_client[:1].tolist(), held.by_bin.tolist()) == ([0], [[0, 0, 0]])
