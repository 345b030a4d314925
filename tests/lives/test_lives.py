"""Whole lives under random trouble keep what is promised, and a seed gives one life.

Defects of the job and of the gate that a life must find stand in tests/mutations.
"""

import pytest

from tests.lives.life import Life


@pytest.mark.parametrize(
    ("seed", "hours"),
    [
        *((seed, 0.015) for seed in range(1, 21)),
        *(pytest.param(seed, 0.05, marks=pytest.mark.long) for seed in range(21, 521)),
    ],
)
def test_a_life_keeps_what_is_promised(seed: int, hours: float) -> None:
    assert Life(seed, hours).run().found == []


def test_a_seed_gives_the_same_life_again() -> None:
    first, again, other = (Life(seed, 0.01).run().trace for seed in (7, 7, 8))
    assert first == again
    assert first != other
