"""A job that is killed while its tables, or its checkpoint too, are in an object store loses and repeats nothing."""

from pathlib import Path

import pytest

from pipeline.demo.broker import EmbeddedBroker
from pipeline.errors import Unreachable
from pipeline.jvm.jars import fetch
from tests.faults.stored_rounds import AT_LEAST, play_stored
from tests.object_store import ObjectStore

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.long]


@pytest.mark.parametrize("is_checkpoint_stored", [False, True], ids=["local checkpoint", "checkpoint in the store"])
def test_a_job_that_is_killed_leaves_what_a_job_leaves_that_is_not(
    store: ObjectStore, broker: EmbeddedBroker, tmp_path: Path, is_checkpoint_stored: bool
) -> None:
    pytest.importorskip("obstore", reason="needs the package obstore: pip install '.[object-store]'")
    if is_checkpoint_stored:
        try:
            fetch(lambda _: None, "s3")
        except Unreachable as error:
            pytest.skip(f"needs the jars with which Spark reads S3: {error}")
    outcome = play_stored(tmp_path, store, broker.bootstrap_servers, 17, is_checkpoint_stored)
    assert outcome.verdict["differences"] == []
    for check, least in AT_LEAST.items():
        assert outcome.verdict["compared"][check] >= least, check
