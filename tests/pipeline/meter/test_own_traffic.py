"""The requests of the cluster and of its meters, which are no usage of any client."""

from typing import Any

import pytest

from pipeline.meter.request_log import OwnTraffic, produce_request_size
from pipeline.meter.usage_topic import UsageTopic
from tests.pipeline.meter.logged_requests import FETCH, PRODUCE, api, event_of, line_of, parser


@pytest.mark.parametrize(
    ("listener", "principal", "is_own"),
    [
        ("CONTROLLER", "User:ANONYMOUS", True),
        ("CONTROLLER", "User:alice", False),
        ("PLAINTEXT", "User:ANONYMOUS", False),
        ("SASL_PLAINTEXT", "User:alice", False),
    ],
)
def test_the_cluster_is_known_by_listener_and_principal_together(listener: str, principal: str, is_own: bool) -> None:
    reader = parser()

    event = event_of(reader, line_of(PRODUCE | {"listener": listener, "principal": principal}))

    assert (event is None) is is_own
    assert reader.counts.own == is_own


def test_other_requests_of_a_meter_are_reported_like_those_of_any_client() -> None:
    header = PRODUCE["requestHeader"] | {"clientId": "kquota-meter-1"}

    assert event_of(parser(), line_of(PRODUCE | {"requestHeader": header})) is not None
    assert event_of(parser(), line_of(api("METADATA"))) is not None


@pytest.mark.parametrize(
    ("topic_id", "is_reported"), [("ZpT0Tx2bQWmR6nFxWm8t3A", False), ("AAAAAAAAAAAAAAAAAAAAAQ", True)]
)
def test_a_request_that_names_the_usage_topic_by_its_id_is_not_reported(topic_id: str, is_reported: bool) -> None:
    own = OwnTraffic(usage_topic=UsageTopic("quota.usage.v1", "ZpT0Tx2bQWmR6nFxWm8t3A"))
    header = PRODUCE["requestHeader"] | {"requestApiVersion": 13}
    sent = line_of(produce_to({"topicId": topic_id}, requestHeader=header))

    assert (event_of(parser(own_traffic=own), sent) is not None) is is_reported
    assert event_of(parser(), sent) is not None  # an id that is not known


def test_a_meter_of_another_usage_topic_knows_its_own_alone() -> None:
    reader = parser(own_traffic=OwnTraffic(usage_topic=UsageTopic("usage.test")))

    assert event_of(reader, line_of(produce_to({"name": "usage.test"}))) is None
    assert event_of(reader, line_of(produce_to({"name": "quota.usage.v1"}))) is not None


def produce_to(*topics: dict[str, str], **changes: Any) -> dict[str, Any]:
    written = [{**topic, "partitionData": [{"index": 0, "recordsSizeInBytes": 300}]} for topic in topics]
    return PRODUCE | {"request": PRODUCE["request"] | {"topicData": written}} | changes


@pytest.mark.parametrize("principal", ["User:ANONYMOUS", "User:CN=kquota", "User:meters"])
@pytest.mark.parametrize("client_id", ["kquota-meter-1", "kquota-meter-2", "another-make-of-meter"])
def test_what_any_meter_sends_to_the_usage_topic_is_not_reported(principal: str, client_id: str) -> None:
    reader = parser()
    header = PRODUCE["requestHeader"] | {"clientId": client_id}
    sent = produce_to({"name": "quota.usage.v1"}, principal=principal, requestHeader=header)

    assert event_of(reader, line_of(sent)) is None
    assert reader.counts.own == 1


def test_a_request_that_also_writes_elsewhere_is_reported_whole() -> None:
    both = produce_to({"name": "quota.usage.v1"}, {"name": "orders"})

    event = event_of(parser(), line_of(both))

    assert event is not None
    assert event.produced_bytes == produce_request_size(11, "app-1", both["request"])


@pytest.mark.parametrize(
    ("request_body", "is_follower"),
    [
        ({"replicaId": 2}, True),
        ({"replicaId": 0}, True),
        ({"replicaId": -1}, False),
        ({"replicaState": {"replicaId": 2, "replicaEpoch": 5}}, True),
        ({}, False),
    ],
)
def test_follower_fetches_are_the_clusters_own(request_body: dict[str, Any], is_follower: bool) -> None:
    assert (event_of(parser(), line_of(FETCH | {"request": request_body})) is None) is is_follower


def transaction(name: str, **request: Any) -> dict[str, Any]:
    return api(name, request=request)


@pytest.mark.parametrize(
    ("logged", "is_own"),
    [
        (transaction("INIT_PRODUCER_ID", transactionalId="kquota-meter.1"), True),
        (transaction("ADD_PARTITIONS_TO_TXN", v3AndBelowTransactionalId="kquota-meter.2"), True),
        (transaction("ADD_PARTITIONS_TO_TXN", transactions=[{"transactionalId": "kquota-meter.2"}]), True),
        (transaction("ADD_OFFSETS_TO_TXN", transactionalId="kquota-meter.2", groupId="g"), True),
        (transaction("TXN_OFFSET_COMMIT", transactionalId="kquota-meter.2", groupId="g"), True),
        (transaction("END_TXN", transactionalId="kquota-meter.2"), True),
        (transaction("WRITE_TXN_MARKERS", markers=[]), True),
        (transaction("END_TXN", transactionalId="kquota-job"), False),
        (transaction("END_TXN", transactionalId="orders"), False),
        (transaction("INIT_PRODUCER_ID", transactionalId=None), False),
        (transaction("ADD_PARTITIONS_TO_TXN", v3AndBelowTransactionalId="", transactions=[]), False),
        (
            transaction(
                "ADD_PARTITIONS_TO_TXN",
                transactions=[{"transactionalId": "kquota-meter.2"}, {"transactionalId": "orders"}],
            ),
            False,
        ),
        (api("END_TXN", request=""), False),
    ],
)
def test_the_transactions_of_meters_are_not_reported(logged: dict[str, Any], is_own: bool) -> None:
    assert (event_of(parser(), line_of(logged)) is None) is is_own
