"""Quotas of the brokers: entities, requests, what Kafka's own kafka-configs describes, refusals, and trouble."""

from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from pipeline.brokers.native import NativeEntity, NativeQuotas, batches_of
from pipeline.cluster.connecting import ClusterAccess
from pipeline.demo.broker import BrokerOptions, EmbeddedBroker
from pipeline.errors import ClusterUnreachable, Unreachable
from pipeline.jvm.jars import fetch
from quota.entity import DEFAULT, label
from tests.pipeline.brokers.quota_broker import access_to, await_values, client, ip, lines_of, pair, user
from tests.pipeline.cli.kafka_configs import OURS, KafkaConfigs

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
ODD_NAMES = (
    *("a b", "50% off", "%20", 'says "hi"', "it's", "a,b=c", "<default>", "/users", "ünïcödé 夜間", "🚦"),
    *("tab\there", "line\nend", "n" * 32_767),
)


@pytest.mark.broker
def test_quotas_of_every_level_and_name_are_those_that_kafka_configs_describes(
    native: NativeQuotas, quota_broker: EmbeddedBroker, kafka_configs: KafkaConfigs
) -> None:
    entities = [entity for name in ODD_NAMES for entity in (user(name), client(name), pair(name, name))]
    wanted = EVERY_LEVEL | {entity: {PRODUCE: float(number)} for number, entity in enumerate(entities, 1)}
    assert native.alter(wanted) == []
    await_values(native, wanted)
    # A line end is two lines there.
    unprintable = [entity for entity in wanted if not all((name or "").isprintable() for _, name in entity.parts)]
    assert native.alter({entity: {PRODUCE: None} for entity in unprintable}) == []
    await_values(native, {entity: values for entity, values in wanted.items() if entity not in unprintable})
    assert lines_of(native.describe()) == kafka_configs.described(quota_broker, *OURS)


REFUSED: dict[NativeEntity, tuple[dict[str, float], str]] = {
    user("negative"): ({PRODUCE: -1.0}, f"Quota {PRODUCE} must be greater than 0"),
    user("zero"): ({REQUEST: 0.0}, f"Quota {REQUEST} must be greater than 0"),
    user("unknown"): ({PRODUCE: 5.0, "bytes": 5.0}, "Invalid configuration key bytes"),
    client("fraction"): ({FETCH: 1.5}, f"{FETCH} cannot be a fractional value"),
    client("large"): ({FETCH: 9.3e18}, f"Proposed value for {FETCH} is too large for a LONG"),
    user(""): ({PRODUCE: 5.0}, "Empty user not supported"),
    pair("nameless", ""): ({PRODUCE: 5.0}, "Empty client-id not supported"),
    NativeEntity(()): ({PRODUCE: 5.0}, "Invalid empty client quota entity"),
    user("n" * 32_768): ({PRODUCE: 5.0}, "a name has 32768 bytes; the largest allowed is 32767"),
    pair("alice", "é" * 16_384): ({PRODUCE: 5.0}, "a name has 32768 bytes; the largest allowed is 32767"),
    NativeEntity.of([("topic", "t")]): ({PRODUCE: 5.0}, "Unhandled client quota entity type: topic"),
}


@pytest.mark.broker
def test_what_kafka_refuses_is_told_for_each_entity_and_the_others_go_through(native: NativeQuotas) -> None:
    good = {user("alice"): {PRODUCE: 1.0}, client("etl"): {FETCH: 2.0}}
    good |= {user(f"of the second request {number}"): {PRODUCE: 5.0} for number in range(60)}
    changes = {
        user("alice"): good[user("alice")],
        **{entity: values for entity, (values, _) in REFUSED.items()},
        **good,
    }
    answer = native.alter(changes)
    assert {one.entity: one.reason for one in answer} == {entity: reason for entity, (_, reason) in REFUSED.items()}
    assert len(answer) == len(REFUSED)
    await_values(native, good)


@pytest.mark.broker
def test_a_value_that_is_changed_or_removed_leaves_the_others_of_its_entity(native: NativeQuotas) -> None:
    native.alter({user("alice"): {PRODUCE: 1.0, FETCH: 2.0}, client("etl"): {PRODUCE: 3.0}})
    assert native.alter({user("alice"): {PRODUCE: 10.0, REQUEST: 4.0}}) == []
    await_values(native, {user("alice"): {PRODUCE: 10.0, FETCH: 2.0, REQUEST: 4.0}, client("etl"): {PRODUCE: 3.0}})
    assert native.alter({user("alice"): {PRODUCE: None, FETCH: 20.0}, client("etl"): {PRODUCE: None}}) == []
    await_values(native, {user("alice"): {FETCH: 20.0, REQUEST: 4.0}})
    assert native.alter({user("unknown"): {PRODUCE: None}}) == native.alter({}) == []


@pytest.mark.parametrize(
    ("entity", "names"),
    [
        (user("alice"), ("alice", "")),
        (user(None), (DEFAULT, "")),
        (client("etl"), ("", "etl")),
        (client(None), ("", DEFAULT)),
        (NativeEntity.of([("user", "alice"), ("client-id", "etl")]), ("alice", "etl")),
        (NativeEntity.of([("client-id", None), ("user", "alice")]), ("alice", DEFAULT)),
        (pair(None, "etl"), (DEFAULT, "etl")),
        (pair(None, None), (DEFAULT, DEFAULT)),
    ],
    ids=str,
)
def test_a_row_and_an_entity_of_the_brokers_name_the_same(entity: NativeEntity, names: tuple[str, str]) -> None:
    assert entity.row_names() == names
    assert NativeEntity.of_row(*names) == entity
    assert str(entity) == label(*names)


@pytest.mark.parametrize(
    ("entity", "text"),
    [
        (ip("10.0.0.1"), "ip '10.0.0.1'"),
        (ip(None), "the default ip"),
        (user("<default>"), "user-principal '<default>'"),
        (pair("alice", "<default>"), "user-principal 'alice', client-id '<default>'"),
        (user(""), "user-principal ''"),
        (NativeEntity.of([("zone", "a"), ("user", "u")]), "user-principal 'u', zone 'a'"),
        (NativeEntity(()), ""),
    ],
)
def test_the_table_has_no_row_for_others_which_are_written_as_kafkas_tools_do(entity: NativeEntity, text: str) -> None:
    assert entity.row_names() is None
    assert str(entity) == text


@pytest.mark.parametrize(("entities", "batches"), [(0, []), (50, [50]), (51, [50, 1]), (110, [50, 50, 10])])
def test_a_request_has_at_most_50_entities_and_nothing_is_lost(entities: int, batches: list[int]) -> None:
    changes = {user(str(number)): {PRODUCE: 1.0, REQUEST: None} for number in range(entities)}
    assert [len(batch) for batch in batches_of(changes)] == batches
    assert list(chain.from_iterable(batch.items() for batch in batches_of(changes))) == list(changes.items())


class OldCluster(ClusterAccess):
    """Brokers of Kafka 2.5, as the client sees them: it is told that version, and knows its requests."""

    def open(self, make: Any, **options: Any) -> Any:
        return super().open(make, api_version=(2, 5), **options)


@pytest.mark.broker
def test_brokers_older_than_the_requests_are_told_in_one_line(quota_broker: EmbeddedBroker) -> None:
    told = r"do not know the request DescribeClientQuotas \(API 48\)"
    with (
        NativeQuotas(OldCluster(quota_broker.bootstrap_servers)) as native,
        pytest.raises(Unreachable, match=told) as old,
    ):
        native.describe()
    assert (old.value.exit_code, old.value.fix) == (6, "update them: Kafka has it since 2.6")


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[EmbeddedBroker]:
    """A broker that a test may kill; it registers again when its former session has ended."""
    fetch()
    with EmbeddedBroker(tmp_path, options=BrokerOptions(settings={"broker.session.timeout.ms": "1000"})) as own:
        yield own


@pytest.mark.broker
@pytest.mark.long
def test_a_call_that_is_not_answered_can_be_made_again_when_the_broker_is_back(
    own_broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    change = {user("alice"): {PRODUCE: 5.0}}
    with NativeQuotas(access_to(own_broker)) as native:
        native.describe()
        own_broker.kill()
        monkeypatch.setattr("pipeline.cluster.connecting.CONNECT_TIMEOUT_MS", 1_000)
        with pytest.raises(ClusterUnreachable) as away:
            native.alter(change)
        monkeypatch.undo()  # a broker that is there may need longer
        assert (away.value.exit_code, "\n" in str(away.value)) == (6, False)
        own_broker.start()
        assert native.alter(change) == []
        await_values(native, change)
