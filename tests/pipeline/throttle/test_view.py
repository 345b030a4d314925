"""Until when a client is blocked: the rule, then the topic."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka import KafkaAdminClient, KafkaProducer

from pipeline.embedded.broker import EmbeddedBroker
from pipeline.throttle.topics import TopicSpec, create_topics
from pipeline.throttle.view import FORGET_AFTER_MS, ThrottleState, ThrottleView
from schemas.throttle_record import ThrottleRecord


def record(publish_seq: int = 1, until_ms: int = 5_000, **changes: Any) -> ThrottleRecord:
    fields: dict[str, Any] = {
        "action": "throttle",
        "cluster": "c",
        "broker_id": "",
        "user": "alice",
        "client_id": "etl",
        "throttle_time_ms": 1_000,
        "throttled_until_ms": until_ms,
        "quota_type": "producer_byte_rate",
        "sensor": ("alice", "etl"),
        "observed": 2.0,
        "bound": 1.0,
        "window_ms": 10_000,
        "tokens": None,
        "owed_ms": 1_000,
        "cause": "violation",
        "decision_id": "d",
        "publish_seq": publish_seq,
        "batch_id": 1,
        "quota_version": 1,
    }
    return ThrottleRecord(**fields | changes)


def release(publish_seq: int, **changes: Any) -> ThrottleRecord:
    return record(publish_seq, action="release", throttle_time_ms=0, **changes)


def state_after(*records: ThrottleRecord, cluster: str | None = "c") -> ThrottleState:
    state = ThrottleState(cluster)
    for each in records:
        state.apply(each)
    return state


def test_a_client_nothing_was_heard_of_is_not_blocked() -> None:
    assert ThrottleState().blocked_until_ms("alice", "etl") == 0
    assert ThrottleState().remaining_ms("alice", "etl", now_ms=0) == 0


@pytest.mark.parametrize(("now_ms", "remaining_ms"), [(4_000, 1_000), (4_999, 1), (5_000, 0), (9_000, 0)])
def test_a_throttle_ends_by_itself(now_ms: int, remaining_ms: int) -> None:
    assert state_after(record(until_ms=5_000)).remaining_ms("alice", "etl", now_ms) == remaining_ms


def test_only_the_named_pair_is_blocked() -> None:
    state = state_after(record(1, client_id="other"), release(2))

    assert state.blocked_until_ms("alice", "other") == 5_000
    assert state.blocked_until_ms("alice", "etl") == 0
    assert state.blocked_until_ms("bob", "etl") == 0


def test_a_release_unblocks_at_once() -> None:
    assert state_after(record(1), release(2)).blocked_until_ms("alice", "etl") == 0


def test_a_renewal_moves_the_end() -> None:
    assert state_after(record(1, 5_000), record(2, 9_000)).blocked_until_ms("alice", "etl") == 9_000


def test_a_late_copy_does_not_bring_a_throttle_back() -> None:
    state = state_after(record(1), release(2))

    assert not state.apply(record(1))
    assert not state.apply(record(2))
    assert state.blocked_until_ms("alice", "etl") == 0


@given(st.permutations([record(1, 5_000), record(2, 9_000), record(3, 7_000), release(4), record(5, 8_000)]))
def test_the_order_of_arrival_does_not_matter(records: list[ThrottleRecord]) -> None:
    assert state_after(*records).blocked_until_ms("alice", "etl") == 8_000


def test_other_clusters_are_ignored_if_one_is_given() -> None:
    foreign = record(cluster="other")

    assert state_after(foreign).blocked_until_ms("alice", "etl") == 0
    assert state_after(foreign, cluster=None).blocked_until_ms("alice", "etl") == 5_000


def test_a_brokers_throttle_holds_on_that_broker_and_the_clusters_everywhere() -> None:
    state = state_after(record(1, 5_000), record(2, 9_000, broker_id="1"))

    assert state.blocked_until_ms("alice", "etl") == 5_000
    assert state.blocked_until_ms("alice", "etl", "1") == 9_000
    assert state.blocked_until_ms("alice", "etl", "2") == 5_000


@pytest.mark.parametrize(("waited_ms", "left"), [(FORGET_AFTER_MS - 1, 1), (FORGET_AFTER_MS, 0)])
def test_throttles_of_long_ago_are_forgotten(waited_ms: int, left: int) -> None:
    state = state_after(record(until_ms=5_000))

    state.prune(5_000 + waited_ms)

    assert len(state) == left


def test_a_view_that_reaches_nobody_blocks_nobody() -> None:
    view = ThrottleView("127.0.0.1:1")
    view.start()

    assert not view.wait_until_caught_up(0.2)
    assert view.remaining_ms("alice", "etl", now_ms=0) == 0

    view.close(0.1)


@pytest.fixture
def topic(broker: EmbeddedBroker) -> Iterator[str]:
    admin: Any = KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    name = f"view.{time.time_ns()}"
    create_topics(admin, [TopicSpec(name, "throttle", 2, "any", {"cleanup.policy": "compact,delete"}, {})])
    yield name
    admin.close()


def within(seconds: float, is_so: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + seconds
    while not is_so() and time.monotonic() < deadline:
        time.sleep(0.01)
    return is_so()


@pytest.mark.broker
def test_the_view_knows_what_was_there_and_what_comes_once_it_is_committed(broker: EmbeddedBroker, topic: str) -> None:
    producer: Any = KafkaProducer(bootstrap_servers=broker.bootstrap_servers, transactional_id=topic)
    producer.init_transactions()

    def publish(each: ThrottleRecord) -> None:
        producer.send(topic, key=each.key(), value=each.to_value(), headers=each.headers()).get(5)

    producer.begin_transaction()
    publish(record(1, 5_000))
    producer.commit_transaction()
    view = ThrottleView(broker.bootstrap_servers, topic, cluster="c")
    view.start()
    assert view.wait_until_caught_up(10)
    assert view.blocked_until_ms("alice", "etl") == 5_000

    producer.begin_transaction()
    publish(record(2, 9_000))
    producer.flush()
    assert not within(1.0, lambda: view.blocked_until_ms("alice", "etl") != 5_000)
    producer.abort_transaction()

    producer.begin_transaction()
    producer.send(topic, key=b"x", value=b"not json").get(5)
    producer.send(topic, key=b"y", value=None).get(5)
    publish(record(3, 7_000))
    producer.commit_transaction()
    assert within(5.0, lambda: view.blocked_until_ms("alice", "etl") == 7_000)
    assert view.unreadable == 1

    view.close()
    producer.close()
