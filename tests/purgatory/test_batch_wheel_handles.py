"""Handles of the batch wheel: what cancelling them does, and what the wheel refuses."""

import numpy as np
import pytest

from purgatory.batch_levels import MAX_TIME_MS
from purgatory.batch_wheel import MAX_PENDING, BatchTimingWheel
from purgatory.errors import InvalidArgumentError, PurgatoryError, WheelFullError
from tests.purgatory.test_batch_wheel import released


def test_a_cancelled_entry_never_comes_out() -> None:
    wheel = BatchTimingWheel()
    handles = wheel.schedule_many([10, 20, 30])
    assert wheel.cancel(int(handles[1]))
    assert len(wheel) == 2
    assert released(wheel, 100) == [10, 30]


def test_repeated_handles_in_one_batch_cancel_once() -> None:
    wheel = BatchTimingWheel()
    handles = wheel.schedule_many([10, 20, 30])
    assert wheel.cancel_many(np.repeat(handles[:2], 3)) == 2
    assert wheel.cancel_many(handles) == 1
    assert len(wheel) == 0


def test_stale_handles_cancel_nothing_even_when_their_slot_is_taken_again() -> None:
    wheel = BatchTimingWheel()
    released_handle, cancelled_handle = wheel.schedule_many([1, 50]).tolist()
    wheel.advance(1)
    wheel.cancel(cancelled_handle)
    fresh = wheel.schedule_many(np.full(2000, 60))  # more than the first slab: every slot is taken again
    assert wheel.cancel_many([released_handle, cancelled_handle]) == 0
    assert not wheel.cancel(released_handle)
    assert not wheel.cancel(cancelled_handle)
    assert len(wheel) == fresh.size


def test_a_handle_that_was_handed_out_is_stale_at_once() -> None:
    wheel = BatchTimingWheel()
    handle = wheel.schedule(5)
    wheel.advance(5)
    assert not wheel.cancel(handle)
    assert wheel.cancel_many([handle]) == 0
    assert (len(wheel), wheel.dead_references) == (0, 0)


def test_made_up_handles_cancel_nothing() -> None:
    wheel = BatchTimingWheel()
    wheel.schedule_many([10, 20])
    made_up = [-1, -2, -1024, 0x3FF, 2**25 - 1, 2**62, 2**63 - 1, -(2**63)]
    assert wheel.cancel_many(made_up) == 0
    assert not any(wheel.cancel(handle) for handle in made_up)
    assert len(wheel) == 2


def test_another_wheels_handles_cancel_nothing() -> None:
    one, other = BatchTimingWheel(), BatchTimingWheel()
    handles = one.schedule_many(np.arange(1000))
    other.schedule_many(np.arange(1000))
    assert other.cancel_many(handles) == 0
    assert len(other) == 1000


def test_the_callers_arrays_are_not_kept() -> None:
    wheel = BatchTimingWheel()
    expiration_ms = np.array([10, 20])
    handles = wheel.schedule_many(expiration_ms)
    expected = handles.tolist()
    expiration_ms[:] = 5
    handles[:] = 0
    got_handles, got_ms = wheel.advance(20)
    assert (got_handles.tolist(), got_ms.tolist()) == (expected, [10, 20])


@pytest.mark.parametrize("refused_ms", [-1, MAX_TIME_MS + 1, 2**63 - 1])
def test_times_outside_the_range_are_refused_and_schedule_nothing(refused_ms: int) -> None:
    wheel = BatchTimingWheel()
    with pytest.raises(InvalidArgumentError, match=f"^expiration_ms is {refused_ms}; a time is whole milliseconds"):
        wheel.schedule_many([5, refused_ms, 6])
    with pytest.raises(InvalidArgumentError, match=f"^expiration_ms is {refused_ms}; "):
        wheel.schedule(refused_ms)
    assert len(wheel) == 0
    assert wheel.advance(MAX_TIME_MS)[0].size == 0


def test_unsigned_times_beyond_int64_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="is 18446744073709551615; a time"):
        BatchTimingWheel().schedule_many(np.array([2**64 - 1], dtype=np.uint64))


def test_the_last_millisecond_can_be_scheduled_and_reached() -> None:
    wheel = BatchTimingWheel()
    wheel.schedule_many([MAX_TIME_MS, MAX_TIME_MS - 1])
    assert released(wheel, MAX_TIME_MS - 1) == [MAX_TIME_MS - 1]
    assert released(wheel, MAX_TIME_MS) == [MAX_TIME_MS]


@pytest.mark.parametrize("start_ms", [-1, MAX_TIME_MS + 1, 1.5, None])
def test_a_start_outside_the_range_is_refused(start_ms: int) -> None:
    with pytest.raises(InvalidArgumentError, match=r"start_ms is .*; a time is whole milliseconds"):
        BatchTimingWheel(start_ms)


def test_a_clock_beyond_the_range_is_refused_and_moves_nothing() -> None:
    wheel = BatchTimingWheel()
    wheel.schedule(5)
    for refused in (MAX_TIME_MS + 1, 10.0):
        with pytest.raises(InvalidArgumentError, match=r"now_ms is .*; a time is"):
            wheel.advance(refused)  # type: ignore[arg-type]
    assert (wheel.clock_ms, len(wheel)) == (0, 1)


@pytest.mark.parametrize("batch", [[1.0], [[1]], 5, ["a"], [None]])
def test_batches_that_are_no_integer_arrays_are_refused(batch: object) -> None:
    wheel = BatchTimingWheel()
    with pytest.raises(
        InvalidArgumentError, match=r"expiration_ms is an array of .*, not a one-dimensional integer array"
    ):
        wheel.schedule_many(batch)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="handles is an array of"):
        wheel.cancel_many(batch)  # type: ignore[arg-type]


@pytest.mark.parametrize("refused", [1.5, float("nan"), np.float64(3)])
def test_scalar_times_that_are_not_whole_are_refused_and_schedule_nothing(refused: float) -> None:
    wheel = BatchTimingWheel()
    with pytest.raises(InvalidArgumentError):
        wheel.schedule(refused)  # type: ignore[arg-type]
    assert (len(wheel), wheel.staged) == (0, 0)
    assert wheel.cancel(wheel.schedule(3))


def test_more_than_handles_can_address_is_refused_and_schedules_nothing() -> None:
    wheel = BatchTimingWheel()
    wheel.schedule(7)
    with pytest.raises(WheelFullError) as refusal:
        wheel.schedule_many(np.broadcast_to(np.int64(5), MAX_PENDING))
    assert (refusal.value.max_pending, refusal.value.requested) == (MAX_PENDING, MAX_PENDING + 1)
    assert isinstance(refusal.value, PurgatoryError)
    assert released(wheel, 10) == [7]


def test_numpy_scalars_are_accepted_and_handles_stay_python_integers() -> None:
    wheel = BatchTimingWheel()
    handle = wheel.schedule(np.int64(5))  # type: ignore[arg-type]
    assert wheel.cancel(np.int64(handle))  # type: ignore[arg-type]
    assert type(wheel.schedule(6)) is int


# --- next_expiration_ms ------------------------------------------------------------------------------------
