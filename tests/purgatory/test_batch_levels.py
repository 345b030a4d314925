"""Where references wait, in which order buckets and sorts give them, and what comes out when the clock moves."""

import numpy as np
import pytest

from purgatory.batch_levels import HANDLE, MAX_TIME_MS, Levels, References, expiration_order


def references(expirations_ms: list[int], handles: list[int]) -> References:
    return np.column_stack([expirations_ms, handles])


def test_a_bucket_of_many_tiny_chunks_is_joined_in_order() -> None:
    levels = Levels()
    for handle in range(1000):
        levels.place(references([77], [handle]), 0)
    due = levels.drain(0, 77).due
    assert len(due) <= 128
    assert np.concatenate(due)[:, HANDLE].tolist() == list(range(1000))


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
