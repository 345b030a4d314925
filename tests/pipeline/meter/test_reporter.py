"""The reporter in a real broker: the usage it sends, and what becomes of it when broker or topic go away."""

import random
import re
import string
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from kafka import KafkaProducer
from kafka.admin import ConfigResource, ConfigResourceType

from pipeline.brokers.native import NativeEntity, NativeQuotas
from pipeline.cluster.connecting import ClusterAccess
from pipeline.demo.broker import EmbeddedBroker
from pipeline.meter.reporter import OTHERS
from schemas.names import USAGE_TOPIC
from tests.pipeline.meter.reported_broker import (
    DATA,
    admin_of,
    all_events,
    come_and_go,
    logged,
    make_topics,
    produce,
    reported,
    reported_broker,
    wait_for_all,
)
from tests.waiting import PATIENCE_SECONDS, wait_until

pytestmark = [pytest.mark.broker, pytest.mark.usefixtures("made_reporter")]
_USUAL_BYTES: Final = 1_048_588


@pytest.fixture(scope="module")
def own_broker(tmp_path_factory: pytest.TempPathFactory, made_reporter: Path) -> Iterator[EmbeddedBroker]:
    """A broker that a test may stop and kill, if it starts it again."""
    with reported_broker(tmp_path_factory.mktemp("reported")) as broker:
        yield broker


def await_usage(broker: EmbeddedBroker, user: str, client_id: str) -> int:
    """Until what a client has produced is reported; how many bytes."""
    key = (user, client_id, "produced_bytes")
    wait_until(lambda: 0 < reported(broker).get(key, 0) == logged(broker).get(key), f"the usage of {user}/{client_id}")
    return reported(broker)[key]


def test_sums_are_those_of_the_request_log_while_clients_come_and_go(own_broker: EmbeddedBroker) -> None:
    come_and_go(own_broker)
    sums, said = reported(own_broker), logged(own_broker)
    assert {user for user, _, _ in sums} >= {"alice", "b$b"}
    assert sums["b$b", "reader", "fetched_bytes"] > 100_000
    times = [key for key in said if key[0] == "alice" and key[2] == "io_time_ns"]
    # The network threads' time is in the sensors, and not in the log.
    assert all(sums[key] > 0.9 * said[key] for key in times)


def test_the_reporter_does_not_report_itself_and_nobody_hides_behind_its_name(own_broker: EmbeddedBroker) -> None:
    produce_without_sign_in(own_broker, "kquota-reporter")
    await_usage(own_broker, "ANONYMOUS", "kquota-reporter")
    own = re.compile(r'"clientId":"(kquota-reporter-[0-9a-f-]{36})"')
    assert len(set(own.findall(own_broker.request_log_path.read_text()))) == 1
    events = all_events(own_broker, USAGE_TOPIC)
    assert not [event for event in events if event["client_id"].startswith("kquota-reporter-")]
    assert {event["broker_id"] for event in events} == {"1"}


def test_usage_of_a_client_id_that_is_too_long_goes_into_the_sum_of_its_user(own_broker: EmbeddedBroker) -> None:
    draw = random.Random(1)
    too_long = "".join(draw.choices(string.ascii_letters + string.digits, k=30_000))
    with limited_topic(own_broker, USAGE_TOPIC, 15_000):
        produce_without_sign_in(own_broker, too_long)
        produce(own_broker, "alice", "of-normal-length", [1_000])
        wait_for_all(own_broker)  # that of others
        key, logged_key = (("ANONYMOUS", client_id, "produced_bytes") for client_id in (OTHERS, too_long))
        wait_until(lambda: reported(own_broker).get(key) == logged(own_broker)[logged_key], "the sum")
    assert too_long not in {client_id for _, client_id, _ in reported(own_broker)}


def produce_without_sign_in(broker: EmbeddedBroker, client_id: str) -> None:
    with closing(KafkaProducer(bootstrap_servers=broker.bootstrap_servers, client_id=client_id, acks=1)) as producer:
        producer.send(DATA, bytes(1_000)).get(PATIENCE_SECONDS)


@contextmanager
def limited_topic(broker: EmbeddedBroker, name: str, max_message_bytes: int) -> Iterator[None]:
    """The topic takes no larger batch of messages meanwhile."""
    resource: Any = ConfigResource
    with closing(admin_of(broker)) as admin:
        admin.alter_configs([resource(ConfigResourceType.TOPIC, name, {"max.message.bytes": str(max_message_bytes)})])
        yield
        admin.alter_configs([resource(ConfigResourceType.TOPIC, name, {"max.message.bytes": str(_USUAL_BYTES)})])


def test_requests_that_are_charged_to_no_client_are_reported_as_such(own_broker: EmbeddedBroker) -> None:
    produce(own_broker, "alice", "acks-0", [40_000] * 50, acks=0)
    wait_until(lambda: sum(event["request_count"] for event in exempt_in(own_broker)) >= 50, "exempt requests")
    assert {(event["user"], event["client_id"]) for event in exempt_in(own_broker)} == {("ANONYMOUS", "")}
    assert sum(event["io_time_ns"] for event in exempt_in(own_broker)) > 0
    assert reported(own_broker)["alice", "acks-0", "produced_bytes"] > 50 * 40_000


def exempt_in(broker: EmbeddedBroker) -> list[dict[str, Any]]:
    return [event for event in all_events(broker, USAGE_TOPIC) if event.get("throttle_exempt")]


def test_it_reports_how_long_the_broker_made_a_client_wait(own_broker: EmbeddedBroker) -> None:
    with NativeQuotas(ClusterAccess(own_broker.bootstrap_servers)) as quotas:
        quotas.alter({NativeEntity.of_row("alice", "held"): {"producer_byte_rate": 1_000}})
    produce(own_broker, "alice", "held", [10_500, 100])
    wait_for_all(own_broker)
    events = [event for event in all_events(own_broker, USAGE_TOPIC) if event["client_id"] == "held"]
    waited_ms = sum(event.get("broker_throttle_ms", 0) for event in events)
    lines = [line for line in own_broker.request_log_path.read_text().splitlines() if '"clientId":"held"' in line]
    throttles_ms = [int(one) for line in lines for one in re.findall(r'"throttleTimeMs":(\d+),"responseQueue', line)]
    assert waited_ms == sum(throttles_ms) > 0


def test_usage_that_is_read_while_the_topic_is_away_is_sent_later(own_broker: EmbeddedBroker) -> None:
    wait_for_all(own_broker)
    with closing(admin_of(own_broker)) as admin:
        admin.delete_topics([USAGE_TOPIC])
    produce(own_broker, "alice", "meanwhile", [10_000, 20_000])
    make_topics(own_broker, USAGE_TOPIC)
    await_usage(own_broker, "alice", "meanwhile")


def test_kill_9_loses_at_most_what_was_not_yet_sent(own_broker: EmbeddedBroker) -> None:
    key = ("alice", "killed", "produced_bytes")
    produce(own_broker, "alice", "killed", [10_000])
    sent = await_usage(own_broker, *key[:2])
    produce(own_broker, "alice", "killed", [20_000])
    wait_until(lambda: logged(own_broker)[key] > sent, "the request in the log")
    unsent = logged(own_broker)[key] - sent
    own_broker.kill()
    own_broker.start()
    produce(own_broker, "alice", "killed", [40_000])
    wait_until(lambda: reported(own_broker)[key] > sent + 40_000, "the usage after the restart")
    assert logged(own_broker)[key] - reported(own_broker)[key] in {0, unsent}
