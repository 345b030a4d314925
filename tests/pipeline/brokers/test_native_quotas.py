"""Quotas that are set here are those that Kafka's own kafka-configs describes, and the reverse; on a real broker."""

from collections.abc import Iterator

import pytest

from pipeline.brokers.native import NativeEntity, NativeQuotas
from pipeline.demo.broker import EmbeddedBroker
from tests.pipeline.brokers.quota_broker import (
    ODD_NAMES,
    await_values,
    client,
    ip,
    lines_of,
    pair,
    user,
    values_in,
)
from tests.pipeline.cli.kafka_configs import OURS, KafkaConfigs
from tests.waiting import wait_until

pytestmark = pytest.mark.broker

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


def test_quotas_of_every_level_are_those_that_kafka_configs_describes(
    native: NativeQuotas, quota_broker: EmbeddedBroker, kafka_configs: KafkaConfigs
) -> None:
    assert native.alter(EVERY_LEVEL) == []
    await_values(native, EVERY_LEVEL)
    assert lines_of(native.describe()) == kafka_configs.described(quota_broker, *OURS)


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


def test_a_value_that_is_changed_or_removed_leaves_the_others_of_its_entity(native: NativeQuotas) -> None:
    native.alter({user("alice"): {PRODUCE: 1.0, FETCH: 2.0}, client("etl"): {PRODUCE: 3.0}})
    assert native.alter({user("alice"): {PRODUCE: 10.0, REQUEST: 4.0}}) == []
    await_values(native, {user("alice"): {PRODUCE: 10.0, FETCH: 2.0, REQUEST: 4.0}, client("etl"): {PRODUCE: 3.0}})
    assert native.alter({user("alice"): {PRODUCE: None, FETCH: 20.0}, client("etl"): {PRODUCE: None}}) == []
    await_values(native, {user("alice"): {FETCH: 20.0, REQUEST: 4.0}})


def test_to_remove_what_is_not_set_and_to_set_what_is_set_changes_nothing(native: NativeQuotas) -> None:
    native.alter({user("alice"): {PRODUCE: 1.0}})
    assert native.alter({user("alice"): {PRODUCE: 1.0, FETCH: None}, user("nobody"): {PRODUCE: None}}) == []
    assert native.alter({}) == []
    await_values(native, {user("alice"): {PRODUCE: 1.0}})


def test_every_name_that_a_client_can_have_comes_back_as_it_was(native: NativeQuotas) -> None:
    entities = [make(name) for name in ODD_NAMES for make in (user, client, lambda name: pair(name, name))]
    wanted = {entity: {PRODUCE: float(number)} for number, entity in enumerate(entities, 1)}
    assert native.alter(wanted) == []
    await_values(native, wanted)


def test_odd_names_are_those_that_kafka_configs_prints(
    native: NativeQuotas, quota_broker: EmbeddedBroker, kafka_configs: KafkaConfigs
) -> None:
    # A name with a line end is two lines there.
    wanted = {pair(name, name): {PRODUCE: 5.0} for name in ODD_NAMES if name.isprintable()}
    assert native.alter(wanted) == []
    await_values(native, wanted)
    assert lines_of(native.describe()) == kafka_configs.described(quota_broker, *OURS)


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


def test_what_kafka_refuses_is_told_for_each_entity_and_the_others_go_through(native: NativeQuotas) -> None:
    good = {user("alice"): {PRODUCE: 1.0}, client("etl"): {FETCH: 2.0}}
    refused = list(refused_ones())
    changes = {user("alice"): good[user("alice")], **{entity: values for entity, values, _ in refused}, **good}
    answer = native.alter(changes)
    assert {one.entity: one.reason for one in answer} == {entity: reason for entity, _, reason in refused}
    assert len(answer) == len(refused)
    await_values(native, good)


def test_a_refusal_is_one_line_with_its_entity(native: NativeQuotas) -> None:
    (refused,) = native.alter({pair("alice", None): {PRODUCE: -1.0}})
    assert str(refused) == (
        "user-principal 'alice', the default client-id: Quota producer_byte_rate must be greater than 0"
    )


def test_the_brokers_that_are_up_are_known_by_their_ids(native: NativeQuotas) -> None:
    assert native.broker_ids() == [1]
