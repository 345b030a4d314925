import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from quota.entity import TIE_ORDER
from quota.holds import Owed

CLIENT = st.tuples(st.lists(st.sampled_from((0, 5, 5, 9)), min_size=3, max_size=3), st.integers(0, 2))


@given(st.lists(CLIENT))
def test_the_longest_wait_claims_then_the_preferred_type_then_the_order_of_ties(
    clients: list[tuple[list[int], int]],
) -> None:
    owed_ms = np.array([owed for owed, _ in clients], np.int64).reshape(-1, 3).T
    numbers = np.arange(3 * len(clients)).reshape(-1, 3).T
    owed = Owed(numbers.astype(np.float64), numbers, numbers + 1, owed_ms)
    found = owed.largest(np.array([preferred for _, preferred in clients], np.int64))
    for place, (of_types, preferred) in enumerate(clients):
        most = [quota_type for quota_type in TIE_ORDER if of_types[quota_type] == max(of_types)]
        wanted = preferred if preferred in most else most[0]
        assert found.quota_type[place] == wanted
        assert found.owed_ms[place] == max(of_types)
        figures = (found.bound[place], found.level[place], found.window_ms[place])
        assert figures == (3 * place + wanted, 3 * place + wanted, 3 * place + wanted + 1)
    some = np.arange(len(clients))[::2]
    assert found.take(some).owed_ms.tolist() == found.owed_ms[some].tolist()
