"""Rounds of `python -m tests.faults`, and one with the tables in an object store: real brokers, jobs and kills."""

from pathlib import Path

import pytest

from pipeline.demo.broker import EmbeddedBroker
from pipeline.errors import Unreachable
from pipeline.jvm.jars import fetch
from tests.faults.rounds import STEPS, play, play_apart, play_stored
from tests.faults.stepped_clock import COMPILER
from tests.object_store import ObjectStore

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.long]


@pytest.mark.skipif(COMPILER is None, reason="needs a C compiler: apt-get install gcc libc6-dev")
def test_a_job_killed_while_all_clocks_are_set_leaves_what_one_leaves_that_is_not(tmp_path: Path) -> None:
    assert play_apart("usage.appended", tmp_path / "round", 11, STEPS[0]).verdict.told() == []


def test_a_job_whose_check_fails_goes_on_in_its_process(broker: EmbeddedBroker, tmp_path: Path) -> None:
    assert play("check.appended", tmp_path, broker.bootstrap_servers, 11, True).verdict.told() == []


def test_a_job_with_tables_and_checkpoint_in_a_store_loses_and_repeats_nothing(
    store: ObjectStore, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    try:
        fetch(lambda _: None, "s3")
        is_checkpoint_stored = True
    except Unreachable:  # Spark cannot read S3; the tables can be there all the same
        is_checkpoint_stored = False
    outcome = play_stored(tmp_path, store, broker.bootstrap_servers, 17, is_checkpoint_stored)
    assert outcome.verdict.told() == []
