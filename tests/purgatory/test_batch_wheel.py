"""The batch wheel from outside: what is handed out, when, and in which order.

level 0   1 ms buckets         one window = 256 ms = one bucket of level 1
level 1   256 ms buckets       one window = 65 536 ms = one bucket of level 2
...
level 5   2^40 ms buckets      one window = 2^48 ms = all the time there is
"""

import numpy as np
import pytest

from purgatory.batch_levels import MAX_TIME_MS
from purgatory.batch_wheel import BatchTimingWheel

LEVEL_EDGES_MS = [1 << (8 * level) for level in range(1, 6)]
TODAY_MS = 1_795_000_000_000  # 41 bits


def released(wheel: BatchTimingWheel, now_ms: int) -> list[int]:
    expirations_ms: list[int] = wheel.advance(now_ms)[1].tolist()
    return expirations_ms


def test_an_empty_wheel_hands_out_two_empty_int64_arrays() -> None:
    handles, expiration_ms = BatchTimingWheel().advance(10)
    assert (handles.dtype, handles.shape) == (np.dtype(np.int64), (0,))
    assert (expiration_ms.dtype, expiration_ms.shape) == (np.dtype(np.int64), (0,))


def test_an_empty_batch_schedules_and_cancels_nothing() -> None:
    wheel = BatchTimingWheel()
    assert wheel.schedule_many([]).dtype == np.int64
    assert wheel.cancel_many([]) == 0
    assert len(wheel) == 0


def test_handles_come_back_with_their_expirations() -> None:
    wheel = BatchTimingWheel(start_ms=100)
    handles = wheel.schedule_many(np.array([130, 110, 120]))
    got_handles, got_ms = wheel.advance(125)
    assert got_handles.tolist() == [handles[1], handles[2]]
    assert got_ms.tolist() == [110, 120]
    assert len(wheel) == 1


@pytest.mark.parametrize("edge_ms", LEVEL_EDGES_MS)
@pytest.mark.parametrize("offset_ms", [-1, 0, 1])
@pytest.mark.parametrize("start_ms", [0, 1, 254, 255, 256, 65_535, TODAY_MS])
def test_an_entry_comes_out_at_its_millisecond_and_not_one_before(edge_ms: int, offset_ms: int, start_ms: int) -> None:
    wheel = BatchTimingWheel(start_ms)
    expiration_ms = start_ms + edge_ms + offset_ms
    wheel.schedule_many([expiration_ms])
    assert released(wheel, expiration_ms - 1) == []
    assert released(wheel, expiration_ms) == [expiration_ms]


@pytest.mark.parametrize("edge_ms", LEVEL_EDGES_MS)
@pytest.mark.parametrize("start_offset_ms", [-2, -1])
def test_an_entry_beyond_a_carry_through_all_digits_comes_out_on_time(edge_ms: int, start_offset_ms: int) -> None:
    # Seen from …FFFE or …FFFF, the next milliseconds differ from the clock in every digit. So they wait on a high
    # level.
    start_ms = 3 * edge_ms + start_offset_ms
    wheel = BatchTimingWheel(start_ms)
    wheel.schedule_many(np.arange(start_ms + 5, start_ms, -1))
    for now_ms in range(start_ms + 1, start_ms + 6):
        assert released(wheel, now_ms) == [now_ms]


@pytest.mark.parametrize("edge_ms", LEVEL_EDGES_MS)
@pytest.mark.parametrize("stop_offset_ms", [-1, 0, 1])
def test_a_clock_jump_splits_the_bucket_it_stops_in(edge_ms: int, stop_offset_ms: int) -> None:
    around_ms = [7 * edge_ms + offset_ms for offset_ms in (-2, -1, 0, 1, 2, edge_ms - 1, edge_ms)]
    wheel = BatchTimingWheel()
    wheel.schedule_many(around_ms)
    stop_ms = 7 * edge_ms + stop_offset_ms
    assert released(wheel, stop_ms) == [x for x in around_ms if x <= stop_ms]
    assert released(wheel, 8 * edge_ms) == [x for x in around_ms if x > stop_ms]


def test_entries_of_a_millisecond_come_in_submission_order_where_kafka_reverses_it() -> None:
    # Vector V9. In Kafka A waits on level 2, B goes directly to level 1, and A is added behind B. So B comes out first.
    wheel = BatchTimingWheel()
    first = wheel.schedule_many([300])
    assert (
        released(wheel, 260) == []
    )  # the clock enters the 256 ms window of 300: the entry moves from level 1 to level 0
    second = wheel.schedule_many([300])
    assert wheel.advance(300)[0].tolist() == [*first, *second]


def test_scalar_and_array_calls_share_one_submission_order() -> None:
    wheel = BatchTimingWheel()
    submitted = [wheel.schedule(5), *wheel.schedule_many([5, 5]).tolist(), wheel.schedule(5), wheel.schedule(5)]
    submitted += wheel.schedule_many([5]).tolist()
    assert wheel.advance(5)[0].tolist() == submitted


def test_submission_order_survives_every_level() -> None:
    # A is added when 2^40 is five digits away, B and C when it is nearer. All three end in one bucket, A in front.
    target_ms = (1 << 40) + 77
    wheel = BatchTimingWheel()
    submitted = []
    for shift in (40, 32, 24, 16, 8, 0):
        wheel.advance(target_ms - (1 << shift))
        submitted += wheel.schedule_many([target_ms]).tolist()
        submitted.append(wheel.schedule(target_ms))
        wheel.schedule_many(np.full(40_000, MAX_TIME_MS))  # enough to leave the staging
    assert wheel.staged == 0
    assert wheel.advance(target_ms)[0].tolist() == submitted


def test_overdue_entries_come_out_although_the_clock_stands_still() -> None:
    wheel = BatchTimingWheel(start_ms=1000)
    wheel.schedule_many([1000, 3, 999])
    assert wheel.schedule(0) >= 0
    assert released(wheel, 1000) == [0, 3, 999, 1000]
    assert released(wheel, 1000) == []


def test_overdue_entries_come_out_although_the_staging_was_flushed_in_between() -> None:
    wheel = BatchTimingWheel(start_ms=1000)
    early = wheel.schedule_many([500, 400])
    wheel.schedule_many(np.full(100_000, 2000))
    assert wheel.staged == 0
    assert wheel.next_expiration_ms == 400
    late = wheel.schedule(500)
    assert wheel.advance(1000)[0].tolist() == [early[1], early[0], late]


def test_overdue_entries_alone_are_ordered_too() -> None:
    wheel = BatchTimingWheel(start_ms=1000)
    wheel.schedule_many(np.arange(1000, 0, -1).repeat(100))
    assert wheel.staged == 0
    got_ms = wheel.advance(1000)[1]
    assert np.array_equal(got_ms, np.arange(1, 1001).repeat(100))


def test_a_jump_past_coarse_buckets_orders_what_was_in_them() -> None:
    wheel = BatchTimingWheel()
    wheel.schedule_many(np.arange(700, 299, -1).repeat(100))  # level 1, unordered inside its buckets
    assert wheel.staged == 0
    assert np.array_equal(wheel.advance(2000)[1], np.arange(300, 701).repeat(100))


def test_the_clock_never_goes_back() -> None:
    wheel = BatchTimingWheel(start_ms=500)
    wheel.schedule_many([450, 501])
    assert released(wheel, 10) == [450]
    assert wheel.clock_ms == 500
    assert released(wheel, -1) == []
    assert released(wheel, 501) == [501]


def test_the_hint_is_none_exactly_when_nothing_is_pending() -> None:
    wheel = BatchTimingWheel()
    assert wheel.next_expiration_ms is None
    handle = wheel.schedule(300)
    assert wheel.next_expiration_ms == 300
    wheel.cancel(handle)
    assert wheel.next_expiration_ms is None


def test_sleeping_until_the_hint_finds_every_entry_on_time() -> None:
    wheel = BatchTimingWheel(start_ms=TODAY_MS)
    delays_ms = [1, 200, 255, 256, 700, 66_000, 66_001, 20_000_000]
    wheel.schedule_many([TODAY_MS + delay_ms for delay_ms in delays_ms])
    wheel.advance(TODAY_MS + 1)
    found, naps = [1], 0
    while (hint_ms := wheel.next_expiration_ms) is not None:
        assert hint_ms > wheel.clock_ms
        found += [x - TODAY_MS for x in released(wheel, hint_ms)]
        naps += 1
    assert found == delays_ms
    assert naps <= len(delays_ms) * 6  # at most one sleep per level and entry


# --- staging, compaction, gauges ---------------------------------------------------------------------------


def test_small_batches_stay_staged_until_one_of_them_is_due() -> None:
    wheel = BatchTimingWheel()
    wheel.schedule_many([50, 60])
    wheel.schedule(70)
    wheel.advance(49)
    assert wheel.staged == 3
    wheel.advance(50)
    assert (wheel.staged, len(wheel)) == (0, 2)


def test_the_scalar_path_leaves_the_staging_too() -> None:
    wheel = BatchTimingWheel()
    for _ in range(40_000):
        wheel.schedule(100)
    assert wheel.staged < 40_000
    assert len(released(wheel, 100)) == 40_000


def test_cancelled_entries_leave_dead_references_that_the_clock_clears() -> None:
    wheel = BatchTimingWheel()
    wheel.cancel_many(wheel.schedule_many(np.arange(1, 1001))[::2])
    assert (len(wheel), wheel.dead_references) == (500, 500)
    assert released(wheel, 1000) == list(range(2, 1001, 2))
    assert (wheel.dead_references, wheel.compactions) == (0, 0)


def test_compaction_keeps_what_is_pending_in_order_and_forgets_the_rest() -> None:
    wheel = BatchTimingWheel(start_ms=1000)
    random = np.random.default_rng(5)
    expiration_ms = random.integers(900, 70_000, 100_000)  # some overdue, some staged, most in buckets
    handles = wheel.schedule_many(expiration_ms)
    tail = [wheel.schedule(990), wheel.schedule(5000)]
    kept = np.sort(random.choice(100_000, 2_000, replace=False))
    assert wheel.cancel_many(np.delete(handles, kept)) == 98_000
    assert wheel.compactions == 1
    assert (len(wheel), wheel.dead_references, wheel.staged) == (2_002, 0, 0)
    all_ms = np.append(expiration_ms[kept], [990, 5000])
    order = np.argsort(all_ms, kind="stable")
    got_handles, got_ms = wheel.advance(70_000)
    assert got_handles.tolist() == np.append(handles[kept], tail)[order].tolist()
    assert got_ms.tolist() == all_ms[order].tolist()


def test_scalar_cancels_compact_as_well() -> None:
    wheel = BatchTimingWheel()
    for handle in wheel.schedule_many(np.full(70_000, 99)).tolist():
        wheel.cancel(handle)
    assert wheel.compactions == 1
    assert wheel.dead_references < 70_000
    assert wheel.advance(99)[0].size == 0


def test_slots_of_cancelled_and_released_entries_are_used_again() -> None:
    wheel = BatchTimingWheel()
    for now_ms in range(1, 2000):
        handles = wheel.schedule_many(np.full(50, now_ms))
        wheel.cancel_many(handles[:20])
        for handle in handles[20:30].tolist():
            wheel.cancel(handle)
        wheel.cancel(wheel.schedule(now_ms))
        assert wheel.advance(now_ms)[0].tolist() == handles[30:].tolist()
    assert wheel.capacity == 1024


def test_a_million_pending_come_out_complete_and_in_order() -> None:
    wheel = BatchTimingWheel(start_ms=TODAY_MS)
    random = np.random.default_rng(11)
    expiration_ms = TODAY_MS + (10 ** random.uniform(0, 9, 1_000_000)).astype(np.int64)  # 1 ms to 11 days
    handles = np.concatenate([wheel.schedule_many(part) for part in np.split(expiration_ms, 100)])
    cancelled = random.random(1_000_000) < 0.3
    assert wheel.cancel_many(random.permutation(handles[cancelled])) == int(cancelled.sum())
    order = np.argsort(expiration_ms[~cancelled], kind="stable")
    parts = [wheel.advance(TODAY_MS + step_ms) for step_ms in (10, 5_000, 10**6, 10**9)]
    assert np.array_equal(np.concatenate([part[0] for part in parts]), handles[~cancelled][order])
    assert np.array_equal(np.concatenate([part[1] for part in parts]), expiration_ms[~cancelled][order])
    assert len(wheel) == 0
