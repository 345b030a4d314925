"""Two of the failpoints of `python -m tests.faults`, in every run of the suite: one of a batch, one of a look."""

from pathlib import Path

import pytest

from pipeline.embedded.broker import EmbeddedBroker
from tests.faults.rounds import play

pytestmark = [pytest.mark.broker, pytest.mark.spark]


@pytest.mark.parametrize("point", ["usage.appended", "look.appended"])
def test_a_job_killed_at_a_failpoint_leaves_what_a_job_leaves_that_was_not(
    point: str, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    outcome = play(point, tmp_path, broker.bootstrap_servers, seed=11)
    assert outcome.verdict["differences"] == []
    for check in ("usage", "decisions", "dead_letters", "looks", "violations", "topic", "pairs", "ledger"):
        assert outcome.verdict["compared"][check] > 0, check
