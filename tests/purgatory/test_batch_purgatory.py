"""The batch purgatory: Kafka's DelayedOperationTest (3.4) as far as it applies to batches, and the purges."""

import numpy as np
import numpy.typing as npt
import pytest

from purgatory.batch_levels import Int64s
from purgatory.batch_purgatory import BatchPurgatory, WatchLists
from purgatory.batch_wheel import slots_of
from purgatory.errors import InvalidArgumentError

FAR_MS = 100_000


def gauges(purgatory: BatchPurgatory) -> tuple[int, int, int]:
    return purgatory.num_delayed, purgatory.watched, purgatory.watched_keys


def test_3_4_3_satisfaction_by_event() -> None:
    purgatory = BatchPurgatory()
    assert purgatory.check_and_complete(1).tolist() == []
    first, second = purgatory.watch_many([FAR_MS, FAR_MS], [[1], [2]]).tolist()
    can_complete = np.zeros(purgatory.capacity, dtype=np.bool_)

    def look(handles: Int64s) -> npt.NDArray[np.bool_]:
        return can_complete[slots_of(handles)]

    assert purgatory.check_and_complete(1, look).tolist() == []
    can_complete[slots_of(np.array([first]))] = True
    assert purgatory.check_and_complete(2, look).tolist() == []
    assert purgatory.check_and_complete(1, look).tolist() == [first]
    assert purgatory.check_and_complete(1, look).tolist() == []
    can_complete[slots_of(np.array([second]))] = True
    assert purgatory.check_and_complete(2, look).tolist() == [second]
    assert gauges(purgatory) == (0, 0, 0)


def test_3_4_4_expiry_of_one_leaves_the_other() -> None:
    purgatory = BatchPurgatory(start_ms=7)
    first, second = purgatory.watch_many([27, 200_007], [[1], [2]]).tolist()
    assert purgatory.advance(26)[0].tolist() == []
    assert [column.tolist() for column in purgatory.advance(27)] == [[first], [27]]
    assert purgatory.num_delayed == 1
    assert purgatory.complete_many([first, second]).tolist() == [second]
    assert purgatory.num_delayed == 0


def test_3_4_6_completed_operations_leave_a_list_when_its_key_is_checked() -> None:
    purgatory = BatchPurgatory()
    purgatory.watch_many([FAR_MS], [[1]])
    two = purgatory.watch_many([FAR_MS], [[1, 2]])
    three = purgatory.watch_many([FAR_MS], [[1, 2, 3]])
    assert gauges(purgatory) == (3, 6, 3)
    purgatory.complete_many(np.concatenate([two, three]))
    assert gauges(purgatory) == (1, 6, 3)
    assert purgatory.check_and_complete(2).tolist() == []
    assert gauges(purgatory) == (1, 4, 2)
    assert purgatory.check_and_complete(1).size == 1
    assert gauges(purgatory) == (0, 1, 1)


def test_an_event_completes_earlier_batches_first_and_only_once() -> None:
    purgatory = BatchPurgatory()
    handles = [purgatory.watch_many([FAR_MS - n, FAR_MS], [[5, 6], [5, 7]]) for n in range(3)]
    assert purgatory.check_and_complete(5).tolist() == np.concatenate(handles).tolist()
    assert purgatory.check_and_complete(6).tolist() == []
    assert purgatory.advance(FAR_MS)[0].tolist() == []


def test_repeated_keys_are_watched_once() -> None:
    purgatory = BatchPurgatory()
    purgatory.watch_many([FAR_MS, FAR_MS], [[1, 1, 2], [3, 1, 3]])
    assert gauges(purgatory) == (2, 4, 3)


@pytest.mark.parametrize(("more", "watched"), [(0, 20), (1, 11)], ids=["at the slack", "above it"])
def test_lists_are_purged_once_they_hold_more_than_the_slack(more: int, watched: int) -> None:
    purgatory = BatchPurgatory(purge_slack=20)
    done = purgatory.watch_many([FAR_MS] * 10, [[1]] * 10)
    purgatory.complete_many(done)
    purgatory.watch_many([FAR_MS] * (10 + more), [[2]] * (10 + more))
    assert purgatory.watched == watched


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


def test_an_empty_batch_is_no_batch() -> None:
    purgatory = BatchPurgatory()
    assert purgatory.watch_many([], np.empty((0, 3), dtype=np.int64)).size == 0
    assert gauges(purgatory) == (0, 0, 0)
