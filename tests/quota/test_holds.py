"""Holds by columns, beside a naive account of one client at a time."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quota.decisions import Throttles
from quota.holds import Holds, Owed
from quota.throttle_time import Slicing, ThrottleCaps
from tests.quota import one_throttle

T0_MS = 1_700_000_000_000
SLICING = Slicing(lead_ms=600, min_hold_ms=1_000, caps=ThrottleCaps(), sample_window_ms=1_000)
WINDOW_MS = 2_500
"""W of every claim here, and so the cap of a renewal."""


def ints(*values: int) -> "np.typing.NDArray[np.int64]":
    return np.array(values, np.int64)


OwedByInstant = Callable[[int, int], int]
"""What a client owes at an instant, in ms since `T0_MS`."""


def account(owed: OwedByInstant = lambda client, at_ms: 0, span_ms: int = 60_000) -> Holds:
    """Holds of clients that owe producer bytes only."""

    def owed_at(
        entities: "np.typing.NDArray[np.int64]",
        at_ms: "int | np.typing.NDArray[np.int64]",
        _types: "np.typing.NDArray[np.int64] | None",
    ) -> Owed:
        pairs = zip(entities.tolist(), np.broadcast_to(at_ms - T0_MS, len(entities)).tolist(), strict=True)
        owed_ms = np.zeros((3, len(entities)), np.int64)
        owed_ms[0] = [owed(client, at) for client, at in pairs]
        shape = owed_ms.shape
        return Owed(np.full(shape, 1_000.0), np.full(shape, 4), np.full(shape, WINDOW_MS), owed_ms)

    return Holds(SLICING, owed_at, T0_MS, T0_MS + span_ms)


def throttles(clients: Sequence[int], times_ms: Sequence[int]) -> Throttles:
    size = len(clients)
    return Throttles(
        rows=np.arange(size),
        quota_type=np.zeros(size, np.int64),
        bound=np.full(size, 1_000.0),
        level=np.full(size, 4),
        throttle_time_ms=ints(*times_ms),
    )


def decide(holds: Holds, at_ms: int, throttle_ms: int, client: int = 0) -> None:
    holds.advance(T0_MS + at_ms)
    holds.decide(ints(client), throttles([client], [throttle_ms]), T0_MS + at_ms)


def use(holds: Holds, at_ms: int, used_bytes: int, client: int = 0) -> None:
    holds.use(ints(client), ints(T0_MS + at_ms), ints(used_bytes))


@pytest.mark.parametrize(
    ("second_at_ms", "second_ms", "whole_ms"),
    [
        (500, 200, 1_000),  # inside the first: nothing more
        (500, 500, 1_000),  # ends with it
        (500, 1_499, 1_000),  # ends less than a second later: not clearly later
        (500, 1_500, 2_000),  # ends a second later
        (1_000, 2_000, 3_000),  # begins as it ends
        (1_000, 1_999, 1_000),  # is short for one that begins so soon
        (5_000, 1_300, 2_300),  # long after it
        (5_000, 999, 1_000),  # too short to be published
    ],
)
def test_overlapping_holds_count_once(second_at_ms: int, second_ms: int, whole_ms: int) -> None:
    holds = account()
    decide(holds, 0, 1_000)
    decide(holds, second_at_ms, second_ms)
    assert holds.finish().throttle_ms[0] == whole_ms


def test_windows_count_once_however_often_they_are_decided() -> None:
    holds = account()
    for at_ms in (100, 400, 999, 1_000, 7_500):
        decide(holds, at_ms, 1_010)
    assert holds.finish().windows[0] == 3


@pytest.mark.parametrize(("at_ms", "deferred"), [(1_999, 70), (2_000, 0), (1_000, 70), (999, 0)])
def test_what_is_used_before_the_end_of_a_hold_is_deferred(at_ms: int, deferred: int) -> None:
    holds = account()
    decide(holds, 1_000, 1_000)
    use(holds, at_ms, 70)
    assert holds.finish().deferred_bytes[0] == deferred


def test_a_client_on_several_brokers_has_all_its_rows_deferred() -> None:
    holds = account()
    decide(holds, 0, 1_000)
    holds.use(ints(0, 1, 0), ints(*[T0_MS + 10] * 3), ints(5, 100, 7))
    assert holds.finish().deferred_bytes[:2].tolist() == [12, 0]


def test_a_hold_is_cut_at_the_end_of_the_range() -> None:
    holds = account(span_ms=2_000)
    decide(holds, 1_500, 10_000)
    assert holds.finish().throttle_ms[0] == 500


def test_a_hold_from_before_the_range_counts_from_its_begin_on_and_defers_what_is_used_in_it() -> None:
    holds = account()
    decide(holds, -500, 1_500)
    use(holds, -100, 5)
    use(holds, 400, 7)
    decide(holds, 800, 400)
    totals = holds.finish()
    assert (totals.windows[0], totals.throttle_ms[0], totals.deferred_bytes[0]) == (1, 1_000, 7)


def test_what_is_owed_holds_a_client_longer_than_a_short_throttle_time() -> None:
    holds = account(lambda client, at_ms: max(2_400 - at_ms, 0))
    decide(holds, 0, 300)
    assert holds.finish().throttle_ms[0] == 2_400


def test_usage_during_a_throttle_that_was_not_published_is_not_deferred() -> None:
    holds = account()
    decide(holds, 0, 999)
    use(holds, 500, 7)
    totals = holds.finish()
    assert (totals.windows[0], totals.throttle_ms[0], totals.deferred_bytes[0]) == (1, 0, 0)


def test_a_throttle_beyond_all_time_is_cut_like_any_other() -> None:
    holds = account(span_ms=2_000)
    decide(holds, 500, 2**63 - 1)
    assert holds.finish().throttle_ms[0] == 1_500


def test_a_debt_beyond_the_cap_is_renewed_until_the_rest_is_too_short() -> None:
    holds = account(lambda client, at_ms: max(30_000 - at_ms, 0))
    decide(holds, 0, 1_000)
    assert holds.finish().throttle_ms[0] == 29_100, "the check at 28 500 finds 900 ms more than is left"


@pytest.mark.parametrize(("owed_ms", "whole_ms"), [(1_000, 1_000), (1_001, 2_001)])
def test_a_client_is_released_at_its_end_if_it_owes_no_more_than_the_threshold(owed_ms: int, whole_ms: int) -> None:
    # Usage of the batch at 900 ms makes it owe again, after the check of 400 ms before the end at 1 000.
    holds = account(lambda client, at_ms: owed_ms if 900 <= at_ms < 1_100 else 0)
    decide(holds, 0, 1_000)
    holds.advance(T0_MS + 900)
    assert holds.finish().throttle_ms[0] == whole_ms


@dataclass
class Change:
    """An edit of the quotas while a client is held: what it finds, and how long the client is held then."""

    bound: float
    owed_ms: int
    whole_ms: int


@pytest.mark.parametrize(
    "change",
    [
        Change(bound=1_000.0, owed_ms=0, whole_ms=5_000),  # this bound did not change: the check comes later
        Change(bound=2_000.0, owed_ms=0, whole_ms=1_000),  # nothing owed: released
        Change(bound=2_000.0, owed_ms=1_500, whole_ms=2_500),  # raised: shortened to what is owed
        Change(bound=2_000.0, owed_ms=1_000, whole_ms=1_000),  # what would be left is too short: released
        Change(bound=2_000.0, owed_ms=3_001, whole_ms=5_000),  # shorter by 999 ms: left as it is
        Change(bound=500.0, owed_ms=1_500, whole_ms=5_000),  # a lower bound never shortens
        Change(bound=np.inf, owed_ms=0, whole_ms=1_000),  # no bound any more
    ],
)
def test_an_edit_looks_at_once_at_the_throttles_it_changes(change: Change) -> None:
    edited = False

    def owed_at(
        entities: "np.typing.NDArray[np.int64]",
        at_ms: "int | np.typing.NDArray[np.int64]",
        _types: "np.typing.NDArray[np.int64] | None",
    ) -> Owed:
        shape = (3, len(entities))
        owed_ms = np.zeros(shape, np.int64)
        owed_ms[0] = np.maximum(change.owed_ms - (at_ms - T0_MS - 1_000), 0) if edited else 0
        bound = np.full(shape, change.bound if edited else 1_000.0)
        return Owed(bound, np.full(shape, 4), np.full(shape, WINDOW_MS), owed_ms)

    holds = Holds(SLICING, owed_at, T0_MS, T0_MS + 60_000)
    decide(holds, 0, 5_000)
    holds.advance(T0_MS + 1_000)
    edited = True
    holds.check_after_edit(T0_MS + 1_000)
    assert holds.finish().throttle_ms[0] == change.whole_ms


@dataclass
class NaiveClient:
    """One client's throttle, event by event."""

    held: set[int]
    until_ms: int = -1_000_000
    due_ms: int | None = None

    def decide(self, at_ms: int, capped_ms: int, owed_ms: int) -> None:
        left_ms = None if self.due_ms is None else max(self.until_ms - at_ms, 0)
        owed_ms = max(owed_ms, capped_ms)
        slice_ms = max(capped_ms, one_throttle.slice_ms(SLICING, owed_ms, WINDOW_MS, "producer_byte_rate"))
        if one_throttle.is_published(SLICING, owed_ms, slice_ms, left_ms, at_ms - self.until_ms):
            self._hold(at_ms, slice_ms)

    def advance(self, to_ms: int, owed: Callable[[int], int]) -> None:
        while self.due_ms is not None and self.due_ms <= to_ms:
            at_ms, owed_ms = self.due_ms, owed(self.due_ms)
            at_end = at_ms >= self.until_ms
            if one_throttle.check(SLICING, owed_ms, self.until_ms - at_ms, at_end=at_end) == "hold":
                self._hold(at_ms, one_throttle.slice_ms(SLICING, owed_ms, WINDOW_MS, "producer_byte_rate"))
            else:
                self.due_ms = None if at_end else self.until_ms

    def _hold(self, at_ms: int, slice_ms: int) -> None:
        self.until_ms = at_ms + slice_ms
        self.due_ms = max(self.until_ms - SLICING.lead_ms, at_ms)
        self.held |= set(range(at_ms, self.until_ms))


SPAN_MS = 20_000
STEPS = st.lists(st.tuples(st.integers(0, 900), st.integers(1, 3_000), st.integers(0, 3)), max_size=40)
DEBTS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, SPAN_MS), st.integers(0, 6_000)), max_size=12)


@given(steps=STEPS, debts=DEBTS)
def test_many_clients_at_once_are_held_as_each_by_itself(
    steps: list[tuple[int, int, int]], debts: list[tuple[int, int, int]]
) -> None:
    """Debts appear at some instants and are then paid off as time passes, as buckets are."""

    def owed(client: int, at_ms: int) -> int:
        ends = (begin_ms + debt_ms for who, begin_ms, debt_ms in debts if who == client and begin_ms <= at_ms)
        return max([end_ms - at_ms for end_ms in ends] + [0])

    holds = account(owed, span_ms=SPAN_MS)
    naive = {client: NaiveClient(set()) for client in range(4)}
    at_ms = 0
    for step_ms, throttle_ms, client in steps:
        at_ms = min(at_ms + step_ms, SPAN_MS - 1)
        decide(holds, at_ms, throttle_ms, client)
        for number, one in naive.items():
            one.advance(at_ms, lambda instant_ms, number=number: owed(number, instant_ms))  # type: ignore[misc]
        naive[client].decide(at_ms, throttle_ms, owed(client, at_ms))
    totals = holds.finish()
    wanted = []
    for number, one in naive.items():
        one.advance(SPAN_MS - 1, lambda instant_ms, number=number: owed(number, instant_ms))  # type: ignore[misc]
        wanted.append(len(one.held & set(range(SPAN_MS))))
    found = totals.throttle_ms.tolist()[:4]
    assert found == wanted[: len(found)]
    assert sum(wanted[len(found) :]) == 0


def test_what_is_left_of_a_hold_stays_left_when_a_time_epoch_begins() -> None:
    holds = account()
    begin_ms, last_ms, now_ms = T0_MS + 40_000, T0_MS + 40_500, T0_MS + 10_000
    holds.decide(ints(0), throttles([0], [2_000]), begin_ms)
    holds.advance(last_ms)
    holds.begin_epoch(last_ms, now_ms)
    holds.advance(now_ms + 1_400)
    assert holds.held.tolist() == [0]
    holds.advance(now_ms + 1_500)
    assert holds.held.tolist() == []
    totals = holds.finish()
    assert totals.throttle_ms.tolist()[:1] == [2_000]


def test_a_sample_window_that_the_clock_showed_twice_is_two_windows() -> None:
    holds = account()
    at_ms = T0_MS + 10_000
    holds.decide(ints(0), throttles([0], [2_000]), at_ms)
    holds.begin_epoch(at_ms, at_ms)
    holds.decide(ints(0), throttles([0], [2_000]), at_ms)
    assert holds.finish().windows.tolist()[:1] == [2]
