"""Until when a client is blocked: by records, and by the topic."""

import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka import KafkaAdminClient, KafkaProducer

from pipeline.clock import Moment, wall_ms
from pipeline.cluster.topics import TopicSpec, create_topics
from pipeline.demo.broker import EmbeddedBroker
from pipeline.gate.gate import Gate
from pipeline.gate.waiting_room import GateLimits, ThrottleState, WaitingRoom, lease_end_ms
from schemas.names import ClientKey, UnreadableRecord
from schemas.throttle_record import Message, ThrottleRecord
from tests.fakes.clock import ManualClock
from tests.forking import in_a_child
from tests.pages.blocks import ROOT, blocks_of
from tests.pipeline.throttle.factories import record, release
from tests.throttle_records import CLIENTS, CLUSTERS, LAST_END_MS, held_until_ms, message, messages
from tests.waiting import PATIENCE_SECONDS, never, wait_until

REQUESTS = "request_percentage"


def state_after(*records: ThrottleRecord, cluster: str | None = "c") -> ThrottleState:
    state = ThrottleState(cluster)
    for each in records:
        state.apply(each, each.throttled_until_ms)
    return state


def blocked_until_ms(state: ThrottleState, user: str, client_id: str, broker_id: str = "") -> int:
    lease = state.lease_of(ClientKey(broker_id, user, client_id))
    return 0 if lease is None else lease.until_ms


def test_the_last_record_counts_also_of_a_job_that_began_to_count_again() -> None:
    state = state_after(record(500_000), release(500_001), record(0, 7_000))

    assert blocked_until_ms(state, "alice", "etl") == 7_000


@given(st.lists(st.integers(0, 5_000)))
def test_nothing_is_kept_of_released_clients(clients: list[int]) -> None:
    throttles = [record(seq, user=f"user-{seq}") for seq in clients]

    assert len(state_after(*throttles, *(release(0, user=each.user) for each in throttles))) == 0


def test_all_is_forgotten_of_another_topic() -> None:
    state = state_after(record(1), record(2, user="bob"), release(3, user="carol"), cluster=None)

    assert {user for _, user, _ in state.forget()} == {"alice", "bob"}
    assert (len(state), state.forget()) == (0, [])


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
def test_a_lease_ends_as_far_from_now_as_its_wall_clock_end_and_no_farther_than_its_length(
    wall_ms: int, until_ms: int, end_ms: int
) -> None:
    throttle = record(until_ms=until_ms, throttle_time_ms=1_000)

    assert lease_end_ms(throttle, Moment(wall_ms=wall_ms, steady_ms=50_000)) == end_ms


@given(st.lists(messages(), max_size=12), st.integers(0, LAST_END_MS))
def test_a_client_is_held_until_the_last_throttle_ends_that_holds_it(sent: list[Message], now_ms: int) -> None:
    records = []
    for one in sent:
        with suppress(UnreadableRecord):
            records.append(ThrottleRecord.from_value(one.value))
    clock = ManualClock(0)
    rooms = {cluster: WaitingRoom(GateLimits(), cluster, clock) for cluster in CLUSTERS}
    for room in rooms.values():
        room.apply(records)
    clock.advance(now_ms)
    for cluster, *client in CLIENTS:
        lease, end_ms = rooms[cluster].lease(ClientKey(*client)), held_until_ms(sent, cluster, *client)
        assert (0 if lease is None else lease.until_ms) == (end_ms if end_ms > now_ms else 0)


def test_records_of_two_clusters_are_counted_apart() -> None:
    state = state_after(record(50, 5_000), record(3, 9_000, cluster="other"), cluster=None)
    assert blocked_until_ms(state, "alice", "etl") == 9_000, "its lower number is the other cluster's own"
    state.apply(release(4, cluster="other"), 0)
    assert blocked_until_ms(state, "alice", "etl") == 5_000
    assert len(state) == 1


@pytest.fixture
def topic(broker: EmbeddedBroker) -> Iterator[str]:
    admin: Any = KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    name = f"view.{time.time_ns()}"
    create_topics(admin, [TopicSpec(name, "throttle", 2, "any", {"cleanup.policy": "compact,delete"}, {})])
    yield name
    admin.close()


@pytest.mark.broker
def test_a_gate_knows_old_and_new_records_once_they_are_committed(broker: EmbeddedBroker, topic: str) -> None:
    producer: Any = KafkaProducer(bootstrap_servers=broker.bootstrap_servers, transactional_id=topic)
    producer.init_transactions()

    def publish(each: ThrottleRecord) -> None:
        producer.send(topic, **message(each)._asdict()).get(PATIENCE_SECONDS)

    def until_ms() -> int:
        throttled = gate.throttle_of("alice", "etl")
        return 0 if throttled is None else throttled.record.throttled_until_ms

    now_ms = wall_ms()
    first_ms, second_ms, third_ms = now_ms + 500_000, now_ms + 900_000, now_ms + 700_000
    producer.begin_transaction()
    publish(record(1, first_ms, throttle_time_ms=500_000))
    producer.commit_transaction()
    gate = Gate.connect(broker.bootstrap_servers, topic=topic, cluster="c")
    assert gate.wait_until_caught_up(int(PATIENCE_SECONDS * 1_000))
    wait_until(lambda: until_ms() == first_ms, "the first record")  # a commit is answered before readers see it

    producer.begin_transaction()
    publish(record(2, second_ms, throttle_time_ms=900_000))
    producer.flush()
    assert never(lambda: until_ms() != first_ms, for_seconds=1.0)
    producer.abort_transaction()

    producer.begin_transaction()
    producer.send(topic, key=b"x", value=b"not json").get(PATIENCE_SECONDS)
    producer.send(topic, key=b"y", value=None).get(PATIENCE_SECONDS)
    publish(record(3, third_ms, throttle_time_ms=700_000))
    producer.commit_transaction()
    wait_until(lambda: until_ms() == third_ms, "the record of the committed transaction")
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


def test_nothing_is_kept_of_throttles_that_have_ended() -> None:
    of_user = {"client_id": None, "except_client_ids": ()}
    state = state_after(record(1, 5_000), record(2, 6_000, **of_user), record(3, 7_000, quota_type=REQUESTS, **of_user))

    kept = []
    for now_ms in (4_999, 5_000, 6_999, 7_000):
        state.prune(now_ms)
        kept.append(len(state))
    assert kept == [3, 2, 1, 0]


def test_the_record_of_the_page_holds_a_user_but_for_two_client_ids() -> None:
    (shown,) = [block for block in blocks_of((ROOT / "docs" / "gate.md").read_text()) if block.language == "json"]
    throttle = ThrottleRecord.from_value(shown.text.encode())
    assert throttle.target == ("", "alice", None, "producer_byte_rate")
    assert [throttle.holds("alice", client_id) for client_id in ("", "new", "etl", "web")] == [True, True, False, False]
