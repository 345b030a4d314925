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
    logged_exempt,
    make_topics,
    produce,
    reported,
    reported_broker,
    reported_exempt,
    requests_of,
    wait_for_all,
)
from tests.waiting import PATIENCE_SECONDS, never, wait_until

pytestmark = [pytest.mark.broker, pytest.mark.usefixtures("made_reporter")]
_USUAL_BYTES: Final = 1_048_588


@pytest.fixture(scope="module")
def own_broker(tmp_path_factory: pytest.TempPathFactory, made_reporter: Path) -> Iterator[EmbeddedBroker]:
    """A broker that a test may stop and kill, if it starts it again."""
    with reported_broker(tmp_path_factory.mktemp("reported")) as broker:
        yield broker


def test_sums_are_those_of_the_request_log_while_clients_come_and_go(own_broker: EmbeddedBroker) -> None:
    come_and_go(own_broker)
    sums, said = reported(own_broker), logged(own_broker)
    assert {user for user, _, _ in sums} >= {"alice", "b$b"}
    assert sums["b$b", "reader", "fetched_bytes"] > 100_000
    times = [key for key in said if key[0] == "alice" and key[2] == "io_time_ns"]
    # The network threads' time is in the sensors, and not in the log.
    assert all(sums[key] > 0.9 * said[key] for key in times)
    dates_ms = [
        event["event_time_ms"] for event in all_events(own_broker, USAGE_TOPIC) if event["client_id"] == "reader"
    ]
    said_ms = [request.logged_ms for request in requests_of(own_broker) if request.client_id == "reader"]
    patience_ms = 1000 * PATIENCE_SECONDS
    assert min(said_ms) - patience_ms < min(dates_ms) <= max(dates_ms) < max(said_ms) + patience_ms


def test_the_reporter_does_not_report_itself_and_nobody_hides_behind_its_name(own_broker: EmbeddedBroker) -> None:
    produce_without_sign_in(own_broker, "kquota-reporter")
    key = ("ANONYMOUS", "kquota-reporter", "produced_bytes")
    wait_until(lambda: reported(own_broker).get(key, 0) == logged(own_broker)[key], "the usage of the client")
    own = re.compile(r'"clientId":"(kquota-reporter-[0-9a-f-]{36})"')
    assert len(set(own.findall(own_broker.request_log_path.read_text()))) == 1
    events = all_events(own_broker, USAGE_TOPIC)
    assert not [event for event in events if event["client_id"].startswith("kquota-reporter-")]
    assert {event["broker_id"] for event in events} == {"1"}


def test_usage_of_a_client_id_that_is_too_long_for_the_topic_goes_into_the_sum_of_its_user(
    own_broker: EmbeddedBroker,
) -> None:
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


def test_requests_that_are_charged_to_no_client_are_those_of_the_request_log(own_broker: EmbeddedBroker) -> None:
    produce(own_broker, "alice", "acks-0", [40_000] * 50, acks=0)
    wait_until(lambda: reported_exempt(own_broker).requests == logged_exempt(own_broker).requests, "exempt requests")
    found, said = reported_exempt(own_broker), logged_exempt(own_broker)
    assert found.requests >= 50
    assert found.io_time_ns > 0.9 * said.io_time_ns  # the network threads' time is in the sensor, and not in the log
    charged = [event for event in all_events(own_broker, USAGE_TOPIC) if event["client_id"] == "acks-0"]
    assert sum(event.get("produced_bytes", 0) for event in charged) > 50 * 40_000


def test_it_reports_how_long_the_broker_made_a_client_wait(own_broker: EmbeddedBroker) -> None:
    with NativeQuotas(ClusterAccess(own_broker.bootstrap_servers)) as quotas:
        quotas.alter({NativeEntity.of_row("alice", "held"): {"producer_byte_rate": 1_000}})
    produce(own_broker, "alice", "held", [10_500, 100])
    wait_for_all(own_broker)
    events = [event for event in all_events(own_broker, USAGE_TOPIC) if event["client_id"] == "held"]
    lines = [line for line in own_broker.request_log_path.read_text().splitlines() if '"clientId":"held"' in line]
    throttles_ms = [
        int(found) for line in lines for found in re.findall(r'"throttleTimeMs":(\d+),"responseQueue', line)
    ]
    assert sum(event.get("broker_throttle_ms", 0) for event in events) == sum(throttles_ms) > 0


def test_usage_that_is_read_while_the_topic_is_away_is_sent_later(own_broker: EmbeddedBroker) -> None:
    wait_for_all(own_broker)
    with closing(admin_of(own_broker)) as admin:
        admin.delete_topics([USAGE_TOPIC])
    produce(own_broker, "alice", "meanwhile", [10_000, 20_000])
    assert never(lambda: "kquota-reporter sends again" in own_broker.server_log_path.read_text(), 3)
    make_topics(own_broker, USAGE_TOPIC)
    key = ("alice", "meanwhile", "produced_bytes")
    wait_until(lambda: reported(own_broker).get(key) == logged(own_broker)[key], "the usage of the client")


def test_a_restarted_broker_reports_what_comes_then(own_broker: EmbeddedBroker) -> None:
    own_broker.stop()
    own_broker.start()
    produce(own_broker, "alice", "after-restart", [10_000])
    key = ("alice", "after-restart", "produced_bytes")
    wait_until(lambda: reported(own_broker).get(key) == logged(own_broker)[key], "the usage of the client")


def test_kill_9_loses_at_most_what_was_not_yet_sent(own_broker: EmbeddedBroker) -> None:
    key = ("alice", "killed", "produced_bytes")
    produce(own_broker, "alice", "killed", [10_000])
    wait_until(lambda: reported(own_broker).get(key) == logged(own_broker)[key], "the usage before the kill")
    sent = reported(own_broker)[key]
    produce(own_broker, "alice", "killed", [20_000])
    wait_until(lambda: logged(own_broker)[key] > sent, "the request in the log")
    unsent = logged(own_broker)[key] - sent
    own_broker.kill()
    own_broker.start()
    produce(own_broker, "alice", "killed", [40_000])
    wait_until(lambda: reported(own_broker)[key] > sent + 40_000, "the usage after the restart")
    assert logged(own_broker)[key] - reported(own_broker)[key] in {0, unsent}
