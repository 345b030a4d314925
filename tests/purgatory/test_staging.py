"""The staging keeps the order of submission, however array calls and scalar calls are mixed."""

import numpy as np

from purgatory.batch_levels import MAX_TIME_MS, Staging


def test_scalar_and_array_entries_come_out_in_submission_order() -> None:
    staging = Staging()
    staging.append(30, 1)
    staging.extend(np.array([20, 40]), np.array([2, 3]), min_ms=20)
    staging.append(10, 4)
    staging.append(50, 5)
    assert (staging.size, staging.min_ms) == (5, 10)
    assert staging.take_all().tolist() == [[30, 1], [20, 2], [40, 3], [10, 4], [50, 5]]
    assert (staging.size, staging.min_ms) == (0, MAX_TIME_MS + 1)


def test_an_empty_staging_gives_no_rows() -> None:
    references = Staging().take_all()
    assert (references.dtype, references.shape) == (np.dtype(np.int64), (0, 2))
