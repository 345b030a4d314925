"""Quotas of the brokers: entities, requests, what Kafka's own kafka-configs describes, refusals, and trouble."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any

import pytest

from pipeline.brokers.native import NativeEntity, NativeQuota, NativeQuotas, batches_of, unsendable
from pipeline.cluster.connecting import ClusterAccess
from pipeline.demo.broker import BrokerOptions, EmbeddedBroker
from pipeline.errors import ClusterUnreachable, Unreachable
from pipeline.jvm.jars import fetch
from quota.entity import DEFAULT, label
from tests.pipeline.brokers.quota_broker import (
    ODD_NAMES,
    access_to,
    await_values,
    clear,
    client,
    ip,
    lines_of,
    pair,
    user,
    values_in,
)
from tests.pipeline.cli.kafka_configs import OURS, KafkaConfigs
from tests.waiting import wait_until

PRODUCE, FETCH, REQUEST = "producer_byte_rate", "consumer_byte_rate", "request_percentage"
EVERY_LEVEL: dict[NativeEntity, dict[str, float]] = {
    pair("alice", "etl"): {PRODUCE: 1024.0, FETCH: 2048.0, REQUEST: 200.5},
    pair("alice", None): {PRODUCE: 1e7},
    user("alice"): {REQUEST: 0.0001},
    pair(None, "etl"): {FETCH: 5.0},
    pair(None, None): {FETCH: 9_007_199_254_740_992.0},
    user(None): {REQUEST: 50.5},
    client("etl"): {PRODUCE: 123_456_789_012.0},
    client(None): {PRODUCE: 2.0**63},
}


@pytest.mark.broker
def test_quotas_of_every_level_are_those_that_kafka_configs_describes(
    native: NativeQuotas, quota_broker: EmbeddedBroker, kafka_configs: KafkaConfigs
) -> None:
    assert native.alter(EVERY_LEVEL) == []
    await_values(native, EVERY_LEVEL)
    assert lines_of(native.describe()) == kafka_configs.described(quota_broker, *OURS)


@pytest.mark.broker
def test_what_kafka_configs_sets_is_described_here_also_what_kquota_does_not_have(
    native: NativeQuotas, quota_broker: EmbeddedBroker, kafka_configs: KafkaConfigs
) -> None:
    lines = [
        ["--alter", "--user", "a b", "--client", "50%", "--add-config", f"{PRODUCE}=1e6,controller_mutation_rate=3"],
        ["--alter", "--user-defaults", "--add-config", f"{REQUEST}=NaN"],
        ["--alter", "--ip", "10.0.0.1", "--add-config", "connection_creation_rate=7"],
        ["--alter", "--ip-defaults", "--add-config", "connection_creation_rate=9"],
    ]
    assert [answer["exit_code"] for answer in kafka_configs.answers(quota_broker, lines)] == [0, 0, 0, 0]
    wait_until(lambda: len(native.describe()) == len(lines), "the broker to hear of its quotas")
    found = {quota.entity: quota for quota in native.describe()}
    assert found[pair("a b", "50%")].bounds == {PRODUCE: 1e6}
    assert found[pair("a b", "50%")].others == {"controller_mutation_rate": 3.0}
    assert str(found[user(None)].values) == f"{{'{REQUEST}': nan}}"
    assert found[ip("10.0.0.1")].values == {"connection_creation_rate": 7.0}
    assert lines_of([found[ip("10.0.0.1")], found[ip(None)]]) == kafka_configs.described(quota_broker, ["ips"])
    native.alter({pair("a b", "50%"): {PRODUCE: None, FETCH: 2.0}})
    kept = {FETCH: 2.0, "controller_mutation_rate": 3.0}
    wait_until(lambda: values_in(native)[pair("a b", "50%")] == kept, "the broker to hear of its quotas")


@pytest.mark.broker
def test_thousands_of_entities_are_changed_in_batches_and_all_described(
    native: NativeQuotas, quota_broker: EmbeddedBroker, kafka_configs: KafkaConfigs
) -> None:
    wanted = {
        pair(f"user-{number}", f"client-{number}"): {PRODUCE: 1000.0 + number, FETCH: 1e6, REQUEST: 50.0}
        for number in range(2_100)
    }
    assert native.alter(wanted) == []
    await_values(native, wanted)
    assert lines_of(native.describe()) == kafka_configs.described(quota_broker, *OURS)


def refused_ones() -> Iterator[tuple[NativeEntity, dict[str, float], str]]:
    yield user("negative"), {PRODUCE: -1.0}, f"Quota {PRODUCE} must be greater than 0"
    yield user("zero"), {REQUEST: 0.0}, f"Quota {REQUEST} must be greater than 0"
    yield user("unknown"), {PRODUCE: 5.0, "bytes": 5.0}, "Invalid configuration key bytes"
    yield client("fraction"), {FETCH: 1.5}, f"{FETCH} cannot be a fractional value"
    yield client("large"), {FETCH: 9.3e18}, f"Proposed value for {FETCH} is too large for a LONG"
    yield user(""), {PRODUCE: 5.0}, "Empty user not supported"
    yield pair("nameless", ""), {PRODUCE: 5.0}, "Empty client-id not supported"
    yield NativeEntity(()), {PRODUCE: 5.0}, "Invalid empty client quota entity"
    yield user("n" * 32_768), {PRODUCE: 5.0}, "a name has 32768 bytes; the largest allowed is 32767"
    yield NativeEntity.of([("topic", "t")]), {PRODUCE: 5.0}, "Unhandled client quota entity type: topic"


@pytest.mark.broker
def test_what_kafka_refuses_is_told_for_each_entity_and_the_others_go_through(native: NativeQuotas) -> None:
    good = {user("alice"): {PRODUCE: 1.0}, client("etl"): {FETCH: 2.0}}
    refused = list(refused_ones())
    changes = {user("alice"): good[user("alice")], **{entity: values for entity, values, _ in refused}, **good}
    answer = native.alter(changes)
    assert {one.entity: one.reason for one in answer} == {entity: reason for entity, _, reason in refused}
    assert len(answer) == len(refused)
    await_values(native, good)


@pytest.mark.broker
def test_a_value_that_is_changed_or_removed_leaves_the_others_of_its_entity(native: NativeQuotas) -> None:
    native.alter({user("alice"): {PRODUCE: 1.0, FETCH: 2.0}, client("etl"): {PRODUCE: 3.0}})
    assert native.alter({user("alice"): {PRODUCE: 10.0, REQUEST: 4.0}}) == []
    await_values(native, {user("alice"): {PRODUCE: 10.0, FETCH: 2.0, REQUEST: 4.0}, client("etl"): {PRODUCE: 3.0}})
    assert native.alter({user("alice"): {PRODUCE: None, FETCH: 20.0}, client("etl"): {PRODUCE: None}}) == []
    await_values(native, {user("alice"): {FETCH: 20.0, REQUEST: 4.0}})
    same: dict[NativeEntity, dict[str, float | None]] = {
        user("alice"): {FETCH: 20.0, PRODUCE: None},
        user("nobody"): {PRODUCE: None},
    }
    assert native.alter(same) == native.alter({}) == []
    await_values(native, {user("alice"): {FETCH: 20.0, REQUEST: 4.0}})


@pytest.mark.broker
def test_every_name_that_a_client_can_have_comes_back_and_is_the_one_that_kafka_configs_prints(
    native: NativeQuotas, quota_broker: EmbeddedBroker, kafka_configs: KafkaConfigs
) -> None:
    entities = [make(name) for name in ODD_NAMES for make in (user, client, lambda name: pair(name, name))]
    wanted = {entity: {PRODUCE: float(number)} for number, entity in enumerate(entities, 1)}
    assert native.alter(wanted) == []
    await_values(native, wanted)
    unprintable = {
        make(name): {PRODUCE: None}
        for name in ODD_NAMES
        if not name.isprintable()
        for make in (user, client, lambda name: pair(name, name))
    }  # a line end is two lines there
    assert native.alter(unprintable) == []
    await_values(native, {entity: values for entity, values in wanted.items() if entity not in unprintable})
    assert lines_of(native.describe()) == kafka_configs.described(quota_broker, *OURS)


ROWS = [
    (user("alice"), ("alice", "")),
    (user(None), (DEFAULT, "")),
    (client("etl"), ("", "etl")),
    (client(None), ("", DEFAULT)),
    (pair("alice", "etl"), ("alice", "etl")),
    (pair("alice", None), ("alice", DEFAULT)),
    (pair(None, "etl"), (DEFAULT, "etl")),
    (pair(None, None), (DEFAULT, DEFAULT)),
]


@pytest.mark.parametrize(("entity", "names"), ROWS, ids=str)
def test_a_row_of_the_table_and_an_entity_of_the_brokers_name_the_same(
    entity: NativeEntity, names: tuple[str, str]
) -> None:
    assert entity.row_names() == names
    assert NativeEntity.of_row(*names) == entity
    assert str(entity) == label(*names)


@pytest.mark.parametrize(
    "entity",
    [
        ip("10.0.0.1"),
        ip(None),
        user("<default>"),
        pair("alice", "<default>"),
        user(""),
        pair("", None),
        NativeEntity.of([("user", "alice"), ("client-id-prefix", "etl")]),
        NativeEntity(()),
    ],
    ids=str,
)
def test_the_table_has_no_row_for_others(entity: NativeEntity) -> None:
    assert entity.row_names() is None


def test_the_order_of_the_parts_does_not_matter() -> None:
    parts = [("user", "alice"), ("client-id", None)]
    assert NativeEntity.of(parts) == NativeEntity.of(reversed(parts))


@pytest.mark.parametrize(
    ("entity", "text"),
    [
        (ip("10.0.0.1"), "ip '10.0.0.1'"),
        (ip(None), "the default ip"),
        (user("<default>"), "user-principal '<default>'"),
        (NativeEntity.of([("zone", "a"), ("user", "u")]), "user-principal 'u', zone 'a'"),
    ],
)
def test_an_entity_is_written_as_kafkas_tools_do(entity: NativeEntity, text: str) -> None:
    assert str(entity) == text


def test_values_are_ours_or_others() -> None:
    quota = NativeQuota(user("alice"), {"producer_byte_rate": 1.0, "controller_mutation_rate": 2.0})
    assert (quota.bounds, quota.others) == ({"producer_byte_rate": 1.0}, {"controller_mutation_rate": 2.0})


THREE = {"producer_byte_rate": 1.0, "consumer_byte_rate": 2.0, "request_percentage": None}


@pytest.mark.parametrize(("name", "is_refused"), [("n" * 32_767, False), ("n" * 32_768, True), ("é" * 16_384, True)])
def test_a_name_has_at_most_32767_bytes(name: str, is_refused: bool) -> None:
    entity = pair("alice", name)
    refused = unsendable({entity: THREE, user("bob"): THREE})
    told = f"{entity}: a name has 32768 bytes; the largest allowed is 32767"
    assert list(map(str, refused)) == ([told] if is_refused else [])


@pytest.mark.parametrize(("entities", "batches"), [(0, []), (50, [50]), (51, [50, 1]), (110, [50, 50, 10])])
def test_a_request_has_at_most_50_entities_and_nothing_is_lost(entities: int, batches: list[int]) -> None:
    changes = {user(str(n)): THREE for n in range(entities)}
    assert [len(batch) for batch in batches_of(changes)] == batches
    assert list(chain.from_iterable(batch.items() for batch in batches_of(changes))) == list(changes.items())


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


@pytest.mark.broker
@pytest.mark.usefixtures("impatient")
def test_a_cluster_that_does_not_answer_at_the_start_is_told_at_once() -> None:
    with pytest.raises(ClusterUnreachable, match=r"127\.0\.0\.1:1: connection refused"):
        NativeQuotas(ClusterAccess("127.0.0.1:1")).describe()


@pytest.mark.broker
def test_brokers_older_than_the_requests_are_told_in_one_line(quota_broker: EmbeddedBroker) -> None:
    with NativeQuotas(OldCluster(quota_broker.bootstrap_servers)) as native:
        with pytest.raises(Unreachable, match=r"do not know the request DescribeClientQuotas \(API 48\)"):
            native.describe()
        with pytest.raises(Unreachable, match=r"do not know the request AlterClientQuotas \(API 49\)") as old:
            native.alter(CHANGE)
    assert (old.value.exit_code, old.value.fix) == (6, "update them: Kafka has it since 2.6")


@pytest.mark.broker
def test_a_call_that_is_not_answered_can_be_made_again_when_the_broker_is_back(own_broker: EmbeddedBroker) -> None:
    with NativeQuotas(access_to(own_broker)) as native:
        own_broker.kill()
        with impatience(), pytest.raises(ClusterUnreachable) as away:
            native.alter(CHANGE)
        assert (away.value.exit_code, "\n" in str(away.value)) == (6, False)
        own_broker.start()
        assert native.alter(CHANGE) == []
        wait_until(lambda: values_in(native) == CHANGE, "the broker to hear of its quotas")
