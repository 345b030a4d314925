"""The batch purgatory: Kafka's DelayedOperationTest (3.4) as far as it applies to batches, and against dictionaries."""

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from bench.purgatory.batch_purgatory import BatchPurgatory, WatchLists
from purgatory.batch_wheel import Int64s
from purgatory.errors import InvalidArgumentError

FAR_MS = 100_000


def gauges(purgatory: BatchPurgatory) -> tuple[int, int, int]:
    return purgatory.num_delayed, purgatory.watched, purgatory.watched_keys


def test_a_purge_keeps_order_and_forgets_keys_without_anything_pending() -> None:
    lists = WatchLists()
    lists.watch(np.arange(6), np.array([[1], [2], [1], [2], [3], [1]]))
    lists.watch(np.arange(6, 8), np.array([[1], [2]]))
    lists.purge(lambda handles: handles % 2 == 0)
    assert (lists.size, len(lists)) == (4, 2)
    assert [lists.take(key).tolist() for key in (1, 2, 3, 4)] == [[0, 2, 6], [], [4], []]


def test_the_callers_handles_may_be_written_to() -> None:
    purgatory = BatchPurgatory()
    handles = purgatory.watch_many([FAR_MS] * 2, [[1]] * 2)
    expected = handles.tolist()
    handles[:] = 0
    assert purgatory.check_and_complete(1).tolist() == expected


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ([[], []], "no watch key"),
        ([1, 2], r"keys is an array of int64 and shape \(2,\)"),
        ([[1]], "with a row for each of 2 times"),
        ([[1.5], [2.5]], "keys is an array of float64"),
    ],
    ids=["none", "flat", "too few", "not whole"],
)
def test_impossible_keys_are_refused_and_nothing_waits(keys: list[list[float]], message: str) -> None:
    purgatory = BatchPurgatory()
    with pytest.raises(InvalidArgumentError, match=message):
        purgatory.watch_many([FAR_MS, FAR_MS], keys)
    assert gauges(purgatory) == (0, 0, 0)


def test_impossible_times_are_refused_and_nothing_is_watched() -> None:
    purgatory = BatchPurgatory()
    with pytest.raises(InvalidArgumentError):
        purgatory.watch_many([FAR_MS, -1], [[1], [1]])
    assert gauges(purgatory) == (0, 0, 0)


KEYS = st.sampled_from([0, 1, 2, 7, -3, 2**62])


class PurgatoryAgainstDictionaries(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.purgatory = BatchPurgatory(purge_slack=6)
        self.pending: dict[int, tuple[int, set[int]]] = {}  # handle -> (expiration_ms, keys)
        self.stale: list[int] = []
        self.numbers: dict[
            int, int
        ] = {}  # handle -> how many came before it; the handles themselves differ from run to run
        self.now_ms = 0

    def forget(self, handles: list[int]) -> None:
        for handle in handles:
            del self.pending[handle]
            self.stale.append(handle)

    @rule(data=st.data(), keys_each=st.integers(1, 3), operations=st.integers(0, 8))
    def watch_many(self, data: st.DataObject, keys_each: int, operations: int) -> None:
        delays_ms = data.draw(st.lists(st.integers(0, 400), min_size=operations, max_size=operations))
        keys = [data.draw(st.lists(KEYS, min_size=keys_each, max_size=keys_each)) for _ in delays_ms]
        expirations_ms = [self.now_ms + delay_ms for delay_ms in delays_ms]
        columns = np.array(keys, dtype=np.int64).reshape(operations, keys_each)
        handles = self.purgatory.watch_many(expirations_ms, columns).tolist()
        assert not set(handles) & (set(self.pending) | set(self.stale))
        for handle, expiration_ms, row in zip(handles, expirations_ms, keys, strict=True):
            self.pending[handle] = (expiration_ms, set(row))
            self.numbers[handle] = len(self.numbers)

    @precondition(lambda self: self.pending or self.stale)
    @rule(data=st.data())
    def complete_many(self, data: st.DataObject) -> None:
        chosen = data.draw(st.lists(st.sampled_from([*self.pending, *self.stale[-9:]]), max_size=8))
        completed = self.purgatory.complete_many(chosen).tolist()
        assert sorted(completed) == sorted(set(chosen) & set(self.pending))
        self.forget(completed)

    @rule(key=KEYS, residue=st.one_of(st.none(), st.integers(0, 2)))
    def check_and_complete(self, key: int, residue: int | None) -> None:
        def look(handles: Int64s) -> npt.NDArray[np.bool_]:
            assert set(handles.tolist()) <= set(self.pending)
            return np.array([self.numbers[handle] % 3 == residue for handle in handles.tolist()], dtype=np.bool_)

        completed = self.purgatory.check_and_complete(key, None if residue is None else look).tolist()
        watched = [handle for handle, (_, keys) in self.pending.items() if key in keys]
        assert sorted(completed) == sorted(h for h in watched if residue is None or self.numbers[h] % 3 == residue)
        self.forget(completed)

    @rule(step_ms=st.integers(0, 300))
    def advance(self, step_ms: int) -> None:
        self.now_ms += step_ms
        handles, expirations_ms = (column.tolist() for column in self.purgatory.advance(self.now_ms))
        due = [expiration_ms for expiration_ms, _ in self.pending.values() if expiration_ms <= self.now_ms]
        assert expirations_ms == sorted(due)
        assert [self.pending[handle][0] for handle in handles] == expirations_ms
        self.forget(handles)

    @invariant()
    def gauges_agree(self) -> None:
        assert self.purgatory.num_delayed == len(self.pending)
        entries = sum(len(keys) for _, keys in self.pending.values())
        assert self.purgatory.watched >= entries
        keys_watched = set().union(*(keys for _, keys in self.pending.values()))
        assert self.purgatory.watched_keys >= len(keys_watched)

    def teardown(self) -> None:
        self.now_ms += 1000
        self.forget(self.purgatory.advance(self.now_ms)[0].tolist())
        assert not self.pending
        for key in (0, 1, 2, 7, -3, 2**62):
            assert not self.purgatory.check_and_complete(key).size
        assert (self.purgatory.watched, self.purgatory.watched_keys) == (0, 0)


PurgatoryAgainstDictionaries.TestCase.settings = settings(max_examples=60, stateful_step_count=30)
TestPurgatoryAgainstDictionaries = PurgatoryAgainstDictionaries.TestCase
