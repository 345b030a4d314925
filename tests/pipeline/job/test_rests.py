"""How long the reaper and the looker rest."""

import pytest

from pipeline.job.job_run import rest_ms


@pytest.mark.parametrize(
    ("due_ms", "expected_ms"),
    [(None, 25), (900, 1), (1_000, 1), (1_001, 1), (1_002, 2), (1_024, 24), (1_025, 25), (1_026, 25), (9_000, 25)],
)
def test_a_rest_ends_when_something_is_due_or_after_the_longest_one(due_ms: int | None, expected_ms: int) -> None:
    assert rest_ms(due_ms, 1_000, 25) == expected_ms
