"""Until when a client is blocked: by records, and by the topic."""

import time
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka import KafkaProducer

from pipeline.clock import Moment, wall_ms
from pipeline.demo.broker import EmbeddedBroker
from pipeline.gate.gate import Gate
from pipeline.gate.waiting_room import GateLimits, ThrottleState, WaitingRoom, lease_end_ms
from schemas.names import ClientKey, UnreadableRecord
from schemas.throttle_record import Message, ThrottleRecord
from tests.fakes.clock import ManualClock
from tests.forking import in_a_child
from tests.pipeline.meter.reported_broker import make_topics
from tests.throttle_records import CLIENTS, CLUSTERS, LAST_END_MS, held_until_ms, message, messages, record, release
from tests.waiting import PATIENCE_SECONDS, never, wait_until


def test_nothing_is_kept_of_throttles_that_have_ended_or_were_released() -> None:
    state, user = ThrottleState(), partial(record, client_id=None, except_client_ids=())
    throttles = record(1, 5_000), user(2, 6_000), user(3, 7_000, quota_type="request_percentage")
    for each in (*throttles, record(4, 9_000, user="bob"), release(5, user="bob")):
        state.apply(each, each.throttled_until_ms)
    kept = []
    for now_ms in (4_999, 5_000, 6_999, 7_000):
        state.prune(now_ms)
        kept.append(len(state))
    assert kept == [3, 2, 1, 0]


@pytest.mark.parametrize(
    ("wall_ms", "until_ms", "end_ms"),
    [
        (9_000, 10_000, 51_000),
        (9_600, 10_000, 50_400),
        (10_000, 10_000, 50_000),
        (11_000, 10_000, 49_000),
        (2_000, 10_000, 51_000),
    ],
    ids=["just written", "on its way for a while", "at its end", "over", "a clock that is 7 s behind the driver's"],
)
def test_a_lease_ends_as_far_from_now_as_its_record_within_its_length(wall_ms: int, until_ms: int, end_ms: int) -> None:
    throttle = record(until_ms=until_ms, throttle_time_ms=1_000)

    assert lease_end_ms(throttle, Moment(wall_ms=wall_ms, steady_ms=50_000)) == end_ms


@given(st.lists(messages(), max_size=12), st.integers(0, LAST_END_MS))
def test_a_client_is_held_until_the_last_throttle_ends_that_holds_it(sent: list[Message], now_ms: int) -> None:
    """In a room of one cluster; in one of none by the throttles of all clusters."""
    records = []
    for one in sent:
        with suppress(UnreadableRecord):
            records.append(ThrottleRecord.from_value(one.value))
    clock = ManualClock(0)
    rooms = {cluster: WaitingRoom(GateLimits(), cluster, clock) for cluster in (*CLUSTERS, None)}
    for room in rooms.values():
        room.apply(records)
    clock.advance(now_ms)
    for client in {one[1:] for one in CLIENTS}:
        ends_ms = {cluster: held_until_ms(sent, cluster, *client) for cluster in CLUSTERS}
        for cluster, room in rooms.items():
            end_ms = max(ends_ms.values()) if cluster is None else ends_ms[cluster]
            lease = room.lease(ClientKey(*client))
            assert (0 if lease is None else lease.until_ms) == (end_ms if end_ms > now_ms else 0)


@pytest.fixture
def topic(broker: EmbeddedBroker) -> str:
    name = f"view.{time.time_ns()}"
    make_topics(broker, name)
    return name


@pytest.mark.broker
def test_a_gate_knows_records_once_they_are_committed(broker: EmbeddedBroker, topic: str) -> None:
    producer: Any = KafkaProducer(bootstrap_servers=broker.bootstrap_servers, transactional_id=topic)
    producer.init_transactions()

    def publish(each: ThrottleRecord) -> None:
        producer.send(topic, **message(each)._asdict()).get(PATIENCE_SECONDS)

    def until_ms() -> int:
        throttled = gate.throttle_of("alice", "etl")
        return 0 if throttled is None else throttled.record.throttled_until_ms

    gate = Gate.connect(broker.bootstrap_servers, topic=topic, cluster="c")
    assert gate.wait_until_caught_up(int(PATIENCE_SECONDS * 1_000))
    end_ms = wall_ms() + 700_000
    producer.begin_transaction()
    publish(record(2, end_ms + 200_000, throttle_time_ms=900_000))
    producer.flush()
    assert never(lambda: until_ms() != 0)
    producer.abort_transaction()

    producer.begin_transaction()
    producer.send(topic, key=b"x", value=b"not json").get(PATIENCE_SECONDS)
    producer.send(topic, key=b"y", value=None).get(PATIENCE_SECONDS)
    publish(record(3, end_ms, throttle_time_ms=700_000))
    producer.commit_transaction()
    wait_until(lambda: until_ms() == end_ms, "the record of the committed transaction")
    assert gate.stats().unreadable == 1

    gate.close()
    producer.close()


@pytest.mark.broker
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_gate_follows_the_topic_in_a_child_and_in_its_parent(broker: EmbeddedBroker, topic: str) -> None:
    gate = Gate.connect(broker.bootstrap_servers, topic=topic, cluster="c")
    assert gate.wait_until_caught_up(int(PATIENCE_SECONDS * 1_000))
    until_ms = wall_ms() + 1_000_000

    def knows_it() -> bool:
        return gate.throttle_of("alice", "etl") is not None

    def publish_and_read() -> str:
        producer: Any = KafkaProducer(bootstrap_servers=broker.bootstrap_servers)
        throttle = message(record(1, until_ms, throttle_time_ms=1_000_000))
        producer.send(topic, key=throttle.key, value=throttle.value).get(PATIENCE_SECONDS)
        wait_until(knows_it, "the record in the child", PATIENCE_SECONDS / 2)
        return gate.state

    assert in_a_child(publish_and_read) == "following"
    wait_until(knows_it, "the record in the parent")
    gate.close()
