"""Whole lives under random trouble keep what is promised, and a seed gives one life.

`python -m tests.lives` has as many more as one wants, in several processes. Defects of the job and of the gate that a
life must find stand in tests/mutations.
"""

from collections import Counter
from pathlib import Path

import pytest

from tests.lives.life import Life

AT_LEAST = {"levels": 2, "demands": 5, "renewals": 100, "forgiven": 1, "gates": 300, "debts by the integral": 150}
"""What must have been compared in ten lives; the least of seeds 1 to 20 is twice as much or more."""


@pytest.mark.parametrize(
    ("first", "hours"),
    [
        *((first, 0.015) for first in (1, 11)),
        *(pytest.param(first, 0.05, marks=pytest.mark.long) for first in range(21, 121, 10)),
    ],
)
def test_ten_lives_keep_what_is_promised_and_much_is_compared(first: int, hours: float) -> None:
    compared = Counter[str]()
    for seed in range(first, first + 10):
        lived = Life(seed, hours).run()
        assert (seed, lived.found) == (seed, [])
        compared += lived.compared
    assert {name: compared[name] for name, least in AT_LEAST.items() if compared[name] < least} == {}


@pytest.mark.long
@pytest.mark.parametrize("seed", [3, 4])
def test_a_life_with_real_tables_keeps_what_is_promised(seed: int, tmp_path: Path) -> None:
    assert Life(seed, 0.015, tmp_path).run().found == []


def test_a_seed_gives_the_same_life_again() -> None:
    first, again, other = (Life(seed, 0.01).run().trace for seed in (7, 7, 8))
    assert first == again
    assert first != other
