"""What is made of the seconds of a client that two brokers share."""

import pytest

from bench.split_client import SplitRun, markdown

SECONDS = 200


def run(scope: str, sums: list[float]) -> SplitRun:
    return SplitRun(scope, 3.0, sums)


def test_settled_means_begin_late_enough_and_have_no_move_in_them() -> None:
    """Every second has its own value, so a mean says where it begins."""
    settled = run("cluster", [float(second) for second in range(SECONDS)]).settled_means
    begins = [mean - 24.5 for mean in settled]
    assert begins == [*range(40, 51), *range(140, 151)]


def test_the_means_of_all_half_minutes_are_counted() -> None:
    assert run("cluster", [0.0] * 10 + [3.0] * 15 + [0.0] * 15).all_means == pytest.approx([1.5] * 11)


def test_each_client_has_a_row_in_the_table() -> None:
    text = markdown([run("broker", [2.0] * SECONDS), run("cluster", [1.0] * SECONDS)])
    assert "| 3 · T | mirror | 2.00 | 2.00–2.00 |" in text
    assert "| 3 · T | cluster | 1.00 | 1.00–1.00 |" in text
