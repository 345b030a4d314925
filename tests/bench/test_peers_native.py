"""The long-run rate of a client that a broker lets through in bursts."""

import numpy as np
import pytest

from bench.peers.stages import mean_rate


@pytest.mark.parametrize("phase", [0.0, 3.0, 6.0, 9.0])
def test_where_the_bursts_are_hardly_matters(phase: float) -> None:
    # One burst of 11 each 11 s:   |___________|___________|___________|___________|_
    at = np.arange(0.0, 40.25, 0.25)
    totals = 11.0 * np.floor((at + phase) / 11.0)
    assert mean_rate(at.tolist(), totals.tolist()) == pytest.approx(1.0, abs=0.06)


def test_a_steady_rate_is_itself() -> None:
    assert mean_rate([10.0, 11.0, 14.0], [5.0, 7.0, 13.0]) == pytest.approx(2.0)
