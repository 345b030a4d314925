"""Where references wait, in which order buckets and sorts give them, and what comes out when the clock moves."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from purgatory.batch_levels import EXPIRATION, HANDLE, MAX_TIME_MS, Levels, References, bucket_keys, expiration_order


def references(expirations_ms: list[int], handles: list[int]) -> References:
    return np.column_stack([expirations_ms, handles])


def placed(levels: Levels, *expirations_ms: int, clock_ms: int = 0) -> None:
    times_ms = list(expirations_ms)
    levels.place(references(times_ms, times_ms), clock_ms)


def lists(chunks: list[References]) -> list[list[int]]:
    return [chunk[:, EXPIRATION].tolist() for chunk in chunks]


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


times_ms = st.integers(0, MAX_TIME_MS)


def digits(time_ms: int) -> list[int]:
    return [(time_ms >> (8 * level)) & 255 for level in range(6)]


@given(st.lists(times_ms, min_size=1, max_size=20), times_ms)
def test_a_key_is_the_highest_digit_that_differs_from_the_clock(batch: list[int], clock_ms: int) -> None:
    batch = [time_ms for time_ms in batch if time_ms > clock_ms] or [MAX_TIME_MS]
    clock_ms = min(clock_ms, MAX_TIME_MS - 1)
    keys = bucket_keys(np.array(batch), clock_ms)
    assert keys.dtype == np.uint16
    for time_ms, key in zip(batch, keys.tolist(), strict=True):
        level = max(k for k in range(6) if digits(time_ms)[k] != digits(clock_ms)[k])
        assert divmod(key, 256) == (level, digits(time_ms)[level])


@pytest.mark.parametrize(
    "span_ms",
    [255, 256, 65_535, 65_536, 2**32 - 1, 2**32, MAX_TIME_MS],
    ids=["one byte", "two", "two, full", "three", "four, full", "five", "six"],
)
def test_the_order_is_stable_at_every_width(span_ms: int) -> None:
    random = np.random.default_rng(span_ms)
    values_ms = random.integers(0, span_ms, 300, endpoint=True)
    values_ms[:3] = [span_ms, 0, span_ms]
    expiration_ms = random.choice(values_ms, 3000)
    order = expiration_order(expiration_ms)
    assert order is not None
    assert order.tolist() == sorted(range(3000), key=lambda i: int(expiration_ms[i]))
