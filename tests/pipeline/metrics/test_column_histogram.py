"""Many values at once are counted as prometheus_client counts them one by one."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram

from pipeline.metrics import ColumnHistogram

BOUNDS = (0.25, 1.0, 2.5)


# Sums of these are exact in any order.
@given(st.lists(st.lists(st.sampled_from([0.0, 0.125, 0.25, 0.375, 1.0, 2.5, 2.625, 1e9]))))
def test_it_tells_what_a_histogram_of_single_values_tells(waves: list[list[float]]) -> None:
    at_once, one_by_one = CollectorRegistry(), CollectorRegistry()
    ours = ColumnHistogram("h", "text", BOUNDS, at_once)
    theirs = Histogram("h", "text", buckets=BOUNDS, registry=one_by_one)
    for wave in waves:
        ours.observe(np.array(wave, np.float64))
        for value in wave:
            theirs.observe(value)
    names = [("h_bucket", {"le": bound}) for bound in ("0.25", "1.0", "2.5", "+Inf")] + [("h_sum", {}), ("h_count", {})]
    for name, labels in names:
        assert at_once.get_sample_value(name, labels) == one_by_one.get_sample_value(name, labels)
