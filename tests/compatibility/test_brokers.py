"""Brokers of other Kafka releases: topics, transactions, quotas, both meters, and a job that throttles."""

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from unittest.mock import patch

import pytest

from deploy.reporter.__main__ import make as make_reporter
from pipeline.brokers.native import NativeEntity, NativeQuotas
from pipeline.cluster.connecting import ClusterAccess
from pipeline.cluster.topics import check_topics, create_topics, topic_specs
from pipeline.demo.broker import EmbeddedBroker
from pipeline.jvm.java import find_java, find_jdk
from pipeline.meter.reporter import REPORTER_JAR
from tests.compatibility.kafka_jars import LOCKED, NEWEST_JAVA, RELEASES, kafka_jars
from tests.integration.running_job import running_job, usage
from tests.integration.throttle_job import ThrottleJob
from tests.pipeline.brokers.quota_broker import values_in
from tests.pipeline.meter.reported_broker import admin_of, bytes_in, come_and_go, logged, reported, reported_broker
from tests.topic_reading import read_topic
from tests.waiting import wait_until

pytestmark = [pytest.mark.broker, pytest.mark.long]


@pytest.fixture(scope="module", params=[*RELEASES, LOCKED])
def broker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    make_reporter(REPORTER_JAR)
    release = request.param
    jars = () if release == LOCKED else kafka_jars(release)
    newest = NEWEST_JAVA.get(release)
    java = find_java() if newest is None else find_jdk()
    if newest is not None and (java is None or java.version > newest):
        found = "none" if java is None else f"Java {java.version}"
        pytest.skip(f"Kafka {release} runs on Java {newest} at most; JAVA_HOME and PATH have {found}")
    with ExitStack() as stack:
        with patch.dict(os.environ, {"KQUOTA_JAVA_HOME": str(java.home)} if java else {}):
            running = stack.enter_context(reported_broker(tmp_path_factory.mktemp("broker"), jars))
        yield running


def test_the_topics_are_created_as_the_job_needs_them(broker: EmbeddedBroker) -> None:
    names = {f"{purpose}_topic": f"made.{purpose}" for purpose in ("usage", "throttle", "marker")}
    specs = topic_specs(2, 60_000, **names)
    with closing(admin_of(broker)) as admin:
        create_topics(admin, specs)
        assert check_topics(admin, specs, broker.bootstrap_servers) == []


def test_records_of_a_transaction_are_read_once_it_commits(broker: EmbeddedBroker) -> None:
    with closing(ThrottleJob(broker.bootstrap_servers)) as job:
        job.throttle("alice", "bob")
        job.release("bob")
        records = [json.loads(record.value) for record in read_topic(broker.bootstrap_servers, job.name)]
    assert [(record["user"], record["action"]) for record in records] == [
        ("alice", "throttle"),
        ("bob", "throttle"),
        ("bob", "release"),
    ]


def test_native_quotas_are_altered_and_described(broker: EmbeddedBroker) -> None:
    entity = NativeEntity.of_row("alice", "compared")
    with NativeQuotas(ClusterAccess(broker.bootstrap_servers)) as quotas:
        assert quotas.alter({entity: {"producer_byte_rate": 1_000.0}}) == []
        wait_until(lambda: values_in(quotas).get(entity) == {"producer_byte_rate": 1_000.0}, "the broker to hear of it")
        assert quotas.alter({entity: {"producer_byte_rate": None}}) == []
        wait_until(lambda: entity not in values_in(quotas), "the broker to hear that it is gone")


def test_reporter_and_request_log_have_equal_sums(broker: EmbeddedBroker) -> None:
    come_and_go(broker)
    sums = bytes_in(reported(broker))
    assert sums == bytes_in(logged(broker))
    assert sums["b$b", "reader", "fetched_bytes"] > 100_000


@pytest.mark.spark
def test_a_job_throttles_and_releases_a_client(broker: EmbeddedBroker, tmp_path: Path) -> None:
    with running_job("compared", tmp_path, broker.bootstrap_servers) as job:
        done = job.command("quotas", "alter", "--user", "alice", "--add-config", "producer_byte_rate=1000")
        assert done.returncode == 0, done.stderr
        job.start()
        job.send(usage("alice", 60_000))
        throttle = job.wait_for_record(user="alice", action="throttle")
        assert job.command("quotas", "delete", "--user", "alice").returncode == 0
        release = job.wait_for_record(user="alice", action="release")
    assert (throttle["bound"], release["cause"]) == (1_000, "quota_changed")
