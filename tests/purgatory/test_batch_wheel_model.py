"""The batch wheel against a plain dictionary of pending entries, in any order of calls."""

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from purgatory.batch_levels import MAX_TIME_MS
from purgatory.batch_wheel import BatchTimingWheel

LEVEL_EDGES_MS = [1 << (8 * level) for level in range(1, 6)]

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
        for handle, expiration_ms in zip(
            self.wheel.schedule_many(expirations_ms).tolist(), expirations_ms, strict=True
        ):
            self.remember(handle, expiration_ms)

    @rule(delay_ms=delays_ms, repetitions=st.integers(1, 3))
    def schedule(self, delay_ms: int, repetitions: int) -> None:
        for _ in range(repetitions):
            expiration_ms = self.expiration_ms(delay_ms)
            self.remember(self.wheel.schedule(expiration_ms), expiration_ms)

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

    @precondition(lambda self: self.pending)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        handle = data.draw(st.sampled_from(list(self.pending)))
        assert self.wheel.cancel(handle)
        self.forget(handle)
        assert not self.wheel.cancel(handle)

    @precondition(lambda self: self.stale)
    @rule(data=st.data())
    def cancel_stale(self, data: st.DataObject) -> None:
        assert not self.wheel.cancel(data.draw(st.sampled_from(self.stale)))

    @rule(delay_ms=delays_ms)
    def advance(self, delay_ms: int) -> None:
        self.check_release(self.now_ms + delay_ms)

    @precondition(lambda self: self.pending)
    @rule(data=st.data(), offset_ms=st.integers(-1, 1))
    def advance_close_to_an_expiration(self, data: st.DataObject, offset_ms: int) -> None:
        expiration_ms, _ = data.draw(st.sampled_from(list(self.pending.values())))
        self.check_release(expiration_ms + offset_ms)

    @rule()
    def advance_to_the_hint(self) -> None:
        hint_ms = self.wheel.next_expiration_ms
        if hint_ms is not None:
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
