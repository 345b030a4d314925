import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quota.holds import Holds

T0_MS = 1_700_000_000_000


def ints(*values: int) -> "np.typing.NDArray[np.int64]":
    return np.array(values, np.int64)


def holds(span_ms: int = 60_000, bins: int = 6) -> Holds:
    return Holds(1_000, T0_MS, T0_MS + span_ms, bins)


def decide(account: Holds, at_ms: int, throttle_ms: int, client: int = 0) -> None:
    account.decide(ints(client), ints(throttle_ms), T0_MS + at_ms)


def use(account: Holds, at_ms: int, used_bytes: int, client: int = 0) -> None:
    account.use(ints(client), ints(T0_MS + at_ms), ints(used_bytes))


@pytest.mark.parametrize(
    ("second_at_ms", "second_ms", "whole_ms"),
    [
        (500, 200, 1_000),  # inside the first: nothing more
        (500, 500, 1_000),  # ends with it
        (500, 501, 1_001),  # ends 1 ms later
        (1_000, 300, 1_300),  # begins as it ends
        (5_000, 300, 1_300),  # long after it
    ],
)
def test_overlapping_holds_count_once(second_at_ms: int, second_ms: int, whole_ms: int) -> None:
    account = holds()
    decide(account, 0, 1_000)
    decide(account, second_at_ms, second_ms)
    assert account.totals.throttle_ms[0] == whole_ms


def test_windows_count_once_however_often_they_are_decided() -> None:
    account = holds()
    for at_ms in (100, 400, 999, 1_000, 7_500):
        decide(account, at_ms, 10)
    assert account.totals.windows[0] == 3


@pytest.mark.parametrize(("at_ms", "deferred"), [(1_999, 70), (2_000, 0), (1_000, 70)])
def test_what_is_used_before_the_end_of_a_hold_is_deferred(at_ms: int, deferred: int) -> None:
    account = holds()
    decide(account, 1_000, 1_000)
    use(account, at_ms, 70)
    assert account.totals.deferred_bytes[0] == deferred


def test_a_client_on_several_brokers_has_all_its_rows_deferred() -> None:
    account = holds()
    decide(account, 0, 1_000)
    account.use(ints(0, 1, 0), ints(*[T0_MS + 10] * 3), ints(5, 100, 7))
    assert account.totals.deferred_bytes[:2].tolist() == [12, 0]


def test_a_hold_is_cut_at_the_end_of_the_range() -> None:
    account = holds(span_ms=2_000)
    decide(account, 1_500, 10_000)
    assert account.totals.throttle_ms[0] == 500


def test_a_hold_from_before_the_range_goes_on_in_it_uncounted_and_defers_what_is_used_in_it() -> None:
    account = holds()
    decide(account, -500, 1_500)
    use(account, -100, 5)
    use(account, 400, 7)
    decide(account, 800, 400)
    totals = account.totals
    assert (totals.windows[0], totals.throttle_ms[0], totals.deferred_bytes[0]) == (1, 200, 7)


def test_an_account_goes_on_where_another_ended() -> None:
    account = holds()
    account.resume(ints(T0_MS + 1_000, 0))
    use(account, 999, 5)
    use(account, 999, 9, client=1)
    decide(account, 600, 700)
    totals = account.totals
    assert (totals.throttle_ms[0], totals.deferred_bytes[:2].tolist()) == (300, [5, 0])


def test_a_throttle_beyond_all_time_is_cut_like_any_other() -> None:
    account = holds(span_ms=2_000)
    decide(account, 500, 2**63 - 1)
    assert account.totals.throttle_ms[0] == 1_500


def test_throttle_time_falls_into_the_part_of_the_range_it_was_decided_in() -> None:
    account = holds(span_ms=60_000, bins=6)
    decide(account, 0, 1_000)
    decide(account, 10_000, 2_000, client=3)
    decide(account, 59_999, 9_000)
    assert account.throttle_ms_by_bin.tolist() == [1_000, 2_000, 0, 0, 0, 1]


@given(st.lists(st.tuples(st.integers(0, 500), st.integers(0, 3_000), st.integers(0, 3)), max_size=60))
def test_time_held_is_the_length_of_the_union_of_the_holds(steps: list[tuple[int, int, int]]) -> None:
    account = holds(span_ms=20_000)
    held: dict[int, set[int]] = {client: set() for client in range(4)}
    at_ms = 0
    for step_ms, throttle_ms, client in steps:
        at_ms = min(at_ms + step_ms, 19_999)
        decide(account, at_ms, throttle_ms, client)
        held[client] |= set(range(at_ms, min(at_ms + throttle_ms, 20_000)))
    found = [int(account.totals.throttle_ms[client]) for client in range(len(account.totals.throttle_ms))][:4]
    assert found == [len(held[client]) for client in range(len(found))]
    assert account.throttle_ms_by_bin.sum() == sum(len(instants) for instants in held.values())
