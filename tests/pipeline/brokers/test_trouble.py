"""Brokers that do not answer, that are too old, or that refuse: one line each, and what can be tried again is."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread
from typing import Any

import pytest

from pipeline.brokers.native import NativeQuotas
from pipeline.cluster.access import ClusterAccess
from pipeline.demo.broker import BrokerOptions, EmbeddedBroker
from pipeline.errors import ClusterUnreachable, Unreachable
from pipeline.jvm.jars import fetch
from tests.pipeline.brokers.quota_broker import access_to, clear, user, values_in
from tests.waiting import PATIENCE_SECONDS, wait_until

pytestmark = pytest.mark.broker

# One that was killed registers again when its former session has ended.
BACK_SOON = BrokerOptions(settings={"broker.session.timeout.ms": "1000"})

CHANGE = {user("alice"): {"producer_byte_rate": 5.0}}


class OldCluster(ClusterAccess):
    """Brokers of Kafka 2.5, as the client sees them: it is told that version, and knows its requests."""

    def open(self, make: Any, **options: Any) -> Any:
        return super().open(make, api_version=(2, 5), **options)


@pytest.fixture(scope="module")
def stopped_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    fetch()
    with EmbeddedBroker(tmp_path_factory.mktemp("broker"), options=BACK_SOON) as own:
        yield own


@pytest.fixture
def own_broker(stopped_broker: EmbeddedBroker) -> EmbeddedBroker:
    """A broker that a test may stop; it runs, and has no quotas."""
    stopped_broker.start()
    with NativeQuotas(access_to(stopped_broker)) as native:
        clear(native)
    return stopped_broker


@contextmanager
def impatience() -> Iterator[None]:
    """As the fixture `impatient`, but only for a while: a broker that is there may need longer than a second."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pipeline.cluster.connecting.CONNECT_TIMEOUT_MS", 1_000)
        yield


@pytest.mark.usefixtures("impatient")
def test_a_cluster_that_does_not_answer_at_the_start_is_told_at_once() -> None:
    with pytest.raises(ClusterUnreachable, match=r"127\.0\.0\.1:1: connection refused"):
        NativeQuotas(ClusterAccess("127.0.0.1:1"))


def test_brokers_older_than_the_requests_are_told_in_one_line(quota_broker: EmbeddedBroker) -> None:
    with NativeQuotas(OldCluster(quota_broker.bootstrap_servers)) as native:
        with pytest.raises(Unreachable, match=r"do not know the request DescribeClientQuotas \(API 48\)"):
            native.describe()
        with pytest.raises(Unreachable, match=r"do not know the request AlterClientQuotas \(API 49\)") as old:
            native.alter(CHANGE)
    assert (old.value.exit_code, old.value.fix) == (6, "update them: Kafka has it since 2.6")


def test_a_call_is_made_again_until_the_broker_is_back_or_the_last_pause_is_over(
    own_broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "pipeline")
    access = access_to(own_broker)
    with (
        NativeQuotas(access, pauses_seconds=[0.1] * 1000) as native,
        NativeQuotas(access, pauses_seconds=[0.01]) as impatient,
    ):
        own_broker.kill()
        with impatience():
            with pytest.raises(ClusterUnreachable) as away:
                impatient.alter(CHANGE)
            assert (away.value.exit_code, "\n" in str(away.value)) == (6, False)
            refused: list[Any] = []
            altering = Thread(target=lambda: refused.append(native.alter(CHANGE)))
            altering.start()
            wait_until(lambda: "next try in 0.1 s" in caplog.text, "a try that failed")
        own_broker.start()
        altering.join(PATIENCE_SECONDS)
        assert refused == [[]]
        wait_until(lambda: values_in(native) == CHANGE, "the broker to hear of its quotas")
        assert impatient.alter(CHANGE) == [], "it can be used again"
    assert all("\n" not in record.getMessage() for record in caplog.records)
