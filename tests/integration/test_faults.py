"""Two of the failpoints of `python -m tests.faults`: a kill during a batch, and an error during a look."""

from pathlib import Path

import pytest

from pipeline.demo.broker import EmbeddedBroker
from tests.faults.rounds import AT_LEAST, play

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.long]


@pytest.mark.parametrize(("point", "in_process"), [("usage.appended", False), ("look.appended", True)])
def test_a_job_that_fails_at_a_failpoint_leaves_what_a_job_leaves_that_does_not(
    point: str, in_process: bool, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    outcome = play(point, tmp_path, broker.bootstrap_servers, 11, in_process)
    assert outcome.verdict["differences"] == []
    for check, least in AT_LEAST.items():
        assert outcome.verdict["compared"][check] >= least, check
