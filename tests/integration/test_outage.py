"""A job whose broker goes away, or that is itself stopped for a while, goes on by itself."""

import os
import signal
import time
from collections.abc import Iterator

import pytest

from pipeline.demo.broker import EmbeddedBroker
from pipeline.jvm.jars import fetch
from tests.faults.rig import Rig, rig
from tests.integration.running_job import usage

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.long]

OUTAGE_SECONDS = 75
TRANSACTION_TIMEOUT_MS = 2_000


@pytest.fixture(scope="module")
def own_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    """A broker this module may stop."""
    fetch()
    own = EmbeddedBroker(tmp_path_factory.mktemp("broker"))
    own.start()
    yield own
    own.stop()


@pytest.fixture(scope="module")
def rigged(own_broker: EmbeddedBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with rig("outage", tmp_path_factory.mktemp("outage"), own_broker.bootstrap_servers) as made:
        made.job.overrides["KQUOTA_KAFKA__TRANSACTION_TIMEOUT_MS"] = str(TRANSACTION_TIMEOUT_MS)
        yield made


def throttles(rigged: Rig, user: str) -> None:
    rigged.job.send(usage(user, 500_000))
    rigged.job.wait_for_record(user=user, action="throttle")


def test_a_broker_that_is_away_at_the_start_is_waited_for(own_broker: EmbeddedBroker, rigged: Rig) -> None:
    own_broker.stop()
    rigged.job.start(wait=False)
    rigged.job.wait_for_line("next try in 4 s")
    own_broker.start()
    rigged.job.wait_for_line("running; trigger")
    throttles(rigged, "first")


def test_a_broker_that_is_away_for_more_than_a_minute_ends_nothing(own_broker: EmbeddedBroker, rigged: Rig) -> None:
    own_broker.kill()
    time.sleep(OUTAGE_SECONDS)
    own_broker.start()
    throttles(rigged, "second")
    assert rigged.job.process is not None
    assert rigged.job.process.poll() is None


def test_a_pause_longer_than_the_transaction_time_out_ends_nothing(rigged: Rig) -> None:
    process = rigged.job.process
    assert process is not None
    for number in range(6):
        rigged.job.send(*[usage(f"paused-{number}-{client}", 500_000) for client in range(20)])
        time.sleep(0.1 * number)  # so that a transaction is open at one of the pauses
        os.kill(process.pid, signal.SIGSTOP)
        time.sleep(2 * TRANSACTION_TIMEOUT_MS / 1000)
        os.kill(process.pid, signal.SIGCONT)
    throttles(rigged, "third")
    assert process.poll() is None
    assert not [line for line in rigged.job.log if "has fenced this one" in line]
