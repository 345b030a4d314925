"""The batch wheel from outside, and against a plain dictionary of pending entries in any order of calls.

level 0   1 ms buckets         one window = 256 ms = one bucket of level 1
level 1   256 ms buckets       one window = 65 536 ms = one bucket of level 2
...
level 5   2^40 ms buckets      one window = 2^48 ms = all the time there is
"""

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from purgatory.batch_wheel import (
    HANDLE,
    MAX_PENDING,
    MAX_TIME_MS,
    SEQUENCE_MASK,
    BatchTimingWheel,
    Levels,
    Slab,
    expiration_order,
)
from purgatory.errors import InvalidArgumentError, WheelFullError

LEVEL_EDGES_MS = [1 << (8 * level) for level in range(1, 6)]


def test_compaction_keeps_what_is_pending_in_order_and_forgets_the_rest() -> None:
    wheel = BatchTimingWheel(start_ms=1000)
    random = np.random.default_rng(5)
    expiration_ms = random.integers(900, 70_000, 100_000)  # some overdue, some staged, most in buckets
    handles = wheel.schedule_many(expiration_ms)
    tail = wheel.schedule_many([990, 5000])
    kept = np.sort(random.choice(100_000, 2_000, replace=False))
    assert wheel.cancel_many(np.delete(handles, kept)) == 98_000
    assert wheel.compactions == 1
    assert (len(wheel), wheel.dead_references, wheel.staged) == (2_002, 0, 0)
    all_ms = np.append(expiration_ms[kept], [990, 5000])
    order = np.argsort(all_ms, kind="stable")
    got_handles, got_ms = wheel.advance(70_000)
    assert got_handles.tolist() == np.append(handles[kept], tail)[order].tolist()
    assert got_ms.tolist() == all_ms[order].tolist()


def test_the_callers_arrays_are_not_kept() -> None:
    wheel = BatchTimingWheel()
    expiration_ms = np.array([10, 20])
    handles = wheel.schedule_many(expiration_ms)
    expected = handles.tolist()
    expiration_ms[:] = 5
    handles[:] = 0
    got_handles, got_ms = wheel.advance(20)
    assert (got_handles.tolist(), got_ms.tolist()) == (expected, [10, 20])


def test_more_or_later_than_handles_can_address_is_refused_and_schedules_nothing() -> None:
    wheel = BatchTimingWheel()
    wheel.schedule_many([7])
    with pytest.raises(WheelFullError) as refusal:
        wheel.schedule_many(np.broadcast_to(np.int64(5), MAX_PENDING))
    assert (refusal.value.max_pending, refusal.value.requested) == (MAX_PENDING, MAX_PENDING + 1)
    with pytest.raises(InvalidArgumentError, match=r"^expiration_ms is .*; a time is whole milliseconds"):
        wheel.schedule_many([5, MAX_TIME_MS + 1])
    assert wheel.advance(10)[1].tolist() == [7]


def test_handles_survive_a_wrap_of_the_sequence() -> None:
    slab = Slab(first_sequence=SEQUENCE_MASK - 4)
    slab.reserve(8)
    handles = np.concatenate([slab.take_many(3), slab.take_many(5)])
    assert min(handles) >= 0
    assert len(set(handles.tolist())) == 8
    assert handles[-1] < handles[0]
    assert slab.are_pending(handles).all()
    assert slab.remove_many(handles).size == 8


starts_ms = st.one_of(
    st.integers(0, 2**41),
    st.builds(lambda edge_ms, offset_ms: edge_ms + offset_ms, st.sampled_from(LEVEL_EDGES_MS), st.integers(-2, 2)),
)
delays_ms = st.one_of(
    st.integers(-5, 300),
    st.builds(lambda edge_ms, offset_ms: edge_ms + offset_ms, st.sampled_from(LEVEL_EDGES_MS), st.integers(-1, 1)),
    st.integers(0, 2**41),
)


class WheelAgainstDictionary(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.wheel = BatchTimingWheel()
        self.pending: dict[int, tuple[int, int]] = {}  # handle -> (expiration_ms, submission)
        self.stale: list[int] = []
        self.submissions = 0
        self.now_ms = 0

    @initialize(start_ms=starts_ms)
    def start(self, start_ms: int) -> None:
        self.wheel = BatchTimingWheel(start_ms)
        self.now_ms = start_ms

    def expiration_ms(self, delay_ms: int) -> int:
        return min(max(self.now_ms + delay_ms, 0), MAX_TIME_MS)

    def remember(self, handle: int, expiration_ms: int) -> None:
        assert handle not in self.pending
        assert handle >= 0
        self.pending[handle] = (expiration_ms, self.submissions)
        self.submissions += 1

    def forget(self, handle: int) -> None:
        del self.pending[handle]
        self.stale.append(handle)

    @rule(batch=st.lists(delays_ms, max_size=30))
    def schedule_many(self, batch: list[int]) -> None:
        expirations_ms = [self.expiration_ms(delay_ms) for delay_ms in batch]
        handles = self.wheel.schedule_many(expirations_ms).tolist()
        for handle, expiration_ms in zip(handles, expirations_ms, strict=True):
            self.remember(handle, expiration_ms)

    @rule()
    def schedule_enough_to_leave_the_staging(self) -> None:
        expirations_ms = self.now_ms + np.arange(33_000) % 7
        expirations_ms[expirations_ms > MAX_TIME_MS] = MAX_TIME_MS
        handles = self.wheel.schedule_many(expirations_ms)
        assert self.wheel.staged == 0
        assert self.wheel.cancel_many(handles[5:]) == handles.size - 5
        for handle, expiration_ms in zip(handles[:5].tolist(), expirations_ms[:5].tolist(), strict=True):
            self.remember(handle, expiration_ms)

    @precondition(lambda self: self.pending)
    @rule(data=st.data())
    def cancel_many(self, data: st.DataObject) -> None:
        chosen = data.draw(st.lists(st.sampled_from([*self.pending, *self.stale[-20:], -1, 2**62]), max_size=20))
        assert self.wheel.cancel_many(chosen) == len(set(chosen) & set(self.pending))
        for handle in set(chosen) & set(self.pending):
            self.forget(handle)

    @rule(delay_ms=delays_ms)
    def advance(self, delay_ms: int) -> None:
        self.check_release(self.now_ms + delay_ms)

    @precondition(lambda self: self.pending)
    @rule(data=st.data(), offset_ms=st.integers(-1, 1))
    def advance_close_to_an_expiration(self, data: st.DataObject, offset_ms: int) -> None:
        expiration_ms, _ = data.draw(st.sampled_from(list(self.pending.values())))
        self.check_release(expiration_ms + offset_ms)

    @precondition(lambda self: self.wheel.next_expiration_ms is not None)
    @rule()
    def advance_to_the_hint(self) -> None:
        hint_ms = self.wheel.next_expiration_ms
        assert hint_ms is not None
        self.check_release(hint_ms)

    def check_release(self, asked_ms: int) -> None:
        asked_ms = min(asked_ms, MAX_TIME_MS)
        self.now_ms = max(self.now_ms, asked_ms)
        handles, expiration_ms = self.wheel.advance(asked_ms)
        due = sorted(
            (expiration_ms, submission, handle)
            for handle, (expiration_ms, submission) in self.pending.items()
            if expiration_ms <= self.now_ms
        )
        assert handles.tolist() == [handle for _, _, handle in due]
        assert expiration_ms.tolist() == [expiration_ms for expiration_ms, _, _ in due]
        for handle in handles.tolist():
            self.forget(handle)
        hint_ms = self.wheel.next_expiration_ms
        assert hint_ms is None or hint_ms > self.now_ms

    @invariant()
    def gauges_agree(self) -> None:
        assert len(self.wheel) == len(self.pending)
        assert self.wheel.clock_ms == self.now_ms
        assert self.wheel.dead_references >= 0
        hint_ms = self.wheel.next_expiration_ms
        if self.pending:
            assert hint_ms is not None
            assert hint_ms <= min(expiration_ms for expiration_ms, _ in self.pending.values())
        else:
            assert hint_ms is None

    def teardown(self) -> None:
        self.check_release(MAX_TIME_MS)
        assert not self.pending
        assert (self.wheel.dead_references, self.wheel.staged) == (0, 0)


WheelAgainstDictionary.TestCase.settings = settings(max_examples=80, stateful_step_count=40)
TestWheelAgainstDictionary = WheelAgainstDictionary.TestCase


def test_a_bucket_of_many_tiny_chunks_is_joined_in_order() -> None:
    levels = Levels()
    for handle in range(1000):
        levels.place(np.array([[77, handle]]), 0)
    due = levels.drain(0, 77).due
    assert len(due) <= 128
    assert np.concatenate(due)[:, HANDLE].tolist() == list(range(1000))


@pytest.mark.parametrize("span_ms", [255, 256, 65_535, 65_536, 2**32 - 1, 2**32, MAX_TIME_MS])
def test_the_order_is_stable_at_every_width(span_ms: int) -> None:
    random = np.random.default_rng(span_ms)
    values_ms = random.integers(0, span_ms, 300, endpoint=True)
    values_ms[:3] = [span_ms, 0, span_ms]
    expiration_ms = random.choice(values_ms, 3000)
    order = expiration_order(expiration_ms)
    assert order is not None
    assert order.tolist() == sorted(range(3000), key=lambda i: int(expiration_ms[i]))
