"""Where references wait, and what comes out when the clock moves.

clock 0x0000:   0x0005 -> level 0, bucket 5        0x0205 -> level 1, bucket 2
clock 0x01f0:   0x0205 -> level 1, bucket 2        clock 0x0200: 0x0205 -> level 0, bucket 5
"""

import numpy as np

from purgatory.batch_levels import EXPIRATION, HANDLE, Levels, References


def references(expirations_ms: list[int], handles: list[int]) -> References:
    return np.column_stack([expirations_ms, handles])


def placed(levels: Levels, *expirations_ms: int, clock_ms: int = 0) -> None:
    times_ms = list(expirations_ms)
    levels.place(references(times_ms, times_ms), clock_ms)


def lists(chunks: list[References]) -> list[list[int]]:
    return [chunk[:, EXPIRATION].tolist() for chunk in chunks]


def test_buckets_behind_the_new_digit_are_due_and_the_one_at_it_is_the_boundary() -> None:
    levels = Levels()
    placed(levels, 0x205, 0x1FF, 0x3FF, 0x301, 0x400, 5, 3)
    drained = levels.drain(0, 0x3A0)
    assert lists(drained.due) == [[3], [5], [0x1FF], [0x205]]
    assert lists(drained.boundary) == [[0x3FF, 0x301]]
    assert not drained.in_order
    assert levels.first_bucket_ms(0x3A0) == 0x400


def test_a_move_inside_level_zero_is_in_order_and_has_no_boundary() -> None:
    levels = Levels()
    placed(levels, 9, 7, 8, 7)
    drained = levels.drain(0, 8)
    assert (lists(drained.due), lists(drained.boundary), drained.in_order) == ([[7, 7], [8]], [], True)
    assert levels.first_bucket_ms(8) == 9


def test_a_move_over_level_zero_only_stays_in_order() -> None:
    levels = Levels()
    placed(levels, 7, 0x101)
    drained = levels.drain(0, 0x1FF)
    assert (lists(drained.due), lists(drained.boundary), drained.in_order) == ([[7]], [[0x101]], True)


def test_lower_levels_are_due_whole_when_a_higher_digit_changes() -> None:
    levels = Levels()
    placed(levels, 0xFF, 0xFFFF, 0x10000, 0x1FFFF, 0x20000)
    drained = levels.drain(0, 0x10000)
    assert lists(drained.due) == [[0xFF], [0xFFFF]]
    assert lists(drained.boundary) == [[0x10000, 0x1FFFF]]
    assert not drained.in_order


def test_the_first_bucket_counts_from_the_clocks_own_window() -> None:
    levels = Levels()
    assert levels.first_bucket_ms(0x12345) is None
    placed(levels, 0x12399, 0x12501, clock_ms=0x12345)
    assert levels.first_bucket_ms(0x12345) == 0x12399
    levels.drain(0x12345, 0x12399)
    assert levels.first_bucket_ms(0x12399) == 0x12500


def test_a_bucket_of_many_tiny_chunks_is_joined_in_order() -> None:
    levels = Levels()
    for handle in range(1000):
        levels.place(references([77], [handle]), 0)
    due = levels.drain(0, 77).due
    assert len(due) <= 128
    assert np.concatenate(due)[:, HANDLE].tolist() == list(range(1000))


def test_chunks_of_slow_levels_do_not_keep_their_batch_in_memory() -> None:
    levels = Levels()
    placed(levels, *[5] * 9_999, 0x10000)
    boundary = levels.drain(0, 0x10000).boundary
    assert boundary[0].base is None


def test_taking_all_keeps_the_order_inside_a_millisecond_and_leaves_nothing() -> None:
    levels = Levels()
    levels.place(references([5, 0x205, 5, 0x10000], [1, 2, 3, 4]), 0)
    assert np.concatenate(levels.take_all()).tolist() == [[5, 1], [5, 3], [0x205, 2], [0x10000, 4]]
    assert levels.first_bucket_ms(0) is None
    assert levels.drain(0, 0x20000).due == []
