"""The size formulas, compared with sizes of Kafka's own serializer and with kafka-python's encoder."""

import uuid
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.protocol.consumer import FetchResponse
from kafka.protocol.producer import ProduceRequest

from pipeline.meter.request_log import (
    FETCH_VERSIONS,
    PRODUCE_VERSIONS,
    UnsupportedVersion,
    fetch_response_size,
    produce_request_size,
    unsigned_varint_size,
)

ORDERS_PRODUCED = {
    "transactionalId": None,
    "acks": -1,
    "topicData": [{"name": "orders", "partitionData": [{"index": 0, "recordsSizeInBytes": 72}]}],
}
EMPTY_FETCH = {"throttleTimeMs": 0, "errorCode": 0, "sessionId": 0, "responses": []}


def fetched(aborted: list[dict[str, int]] | None, records_bytes: int = 72) -> dict[str, Any]:
    partition = {"partitionIndex": 0, "abortedTransactions": aborted, "recordsSizeInBytes": records_bytes}
    return {"responses": [{"topic": "orders", "topicId": "AAAAAAAAAAAAAAAAAAAAAQ", "partitions": [partition]}]}


def test_the_sizes_are_those_of_kafkas_serializer() -> None:
    assert produce_request_size(11, "app-1", ORDERS_PRODUCED) == 112
    assert fetch_response_size(17, fetched([])) == 143
    assert fetch_response_size(17, EMPTY_FETCH) == 16


@pytest.mark.parametrize(("value", "size"), [(0, 1), (1, 1), (127, 1), (128, 2), (16_383, 2), (16_384, 3), (2**31, 5)])
def test_a_varint_has_seven_bits_per_byte(value: int, size: int) -> None:
    assert unsigned_varint_size(value) == size


def test_a_null_list_of_aborted_transactions_is_as_long_as_an_empty_one() -> None:
    assert fetch_response_size(12, fetched(None)) == fetch_response_size(12, fetched([]))


@pytest.mark.parametrize("version", [2, 14])
def test_a_produce_version_without_a_known_layout_is_refused(version: int) -> None:
    with pytest.raises(UnsupportedVersion, match=f"version {version} of PRODUCE is unknown; known are 3 to 13"):
        produce_request_size(version, "app", ORDERS_PRODUCED)


@pytest.mark.parametrize("version", [3, 19])
def test_a_fetch_version_without_a_known_layout_is_refused(version: int) -> None:
    with pytest.raises(UnsupportedVersion, match=f"version {version} of FETCH is unknown; known are 4 to 18"):
        fetch_response_size(version, EMPTY_FETCH)


def encoded_bytes(message: Any, version: int) -> int:
    return len(message.encode(version=version))


names = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), min_size=1, max_size=40)
record_sizes = st.sampled_from([0, 1, 126, 127, 128, 16_382, 16_383, 20_000])
topics_of_sizes = st.lists(st.tuples(names, st.lists(record_sizes, max_size=130)), max_size=4)


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
@settings(max_examples=30)
@given(
    client_id=st.one_of(st.none(), names),
    transactional_id=st.one_of(st.none(), names),
    topics=topics_of_sizes,
)
def test_produce_size_is_the_encoded_length(
    version: int, client_id: str | None, transactional_id: str | None, topics: list[tuple[str, list[int]]]
) -> None:
    topic_data, partition_data = (
        ProduceRequest.TopicProduceData,
        ProduceRequest.TopicProduceData.PartitionProduceData,
    )
    request = ProduceRequest(
        transactional_id=transactional_id,
        acks=-1,
        timeout_ms=1000,
        topic_data=[
            topic_data(
                name=name,
                topic_id=uuid.UUID(int=7),
                partition_data=[partition_data(index=i, records=bytes(size)) for i, size in enumerate(records)],
            )
            for name, records in topics
        ],
    )
    logged = {
        "transactionalId": transactional_id,
        "topicData": [
            {"name": name, "partitionData": [{"recordsSizeInBytes": size} for size in records]}
            for name, records in topics
        ],
    }

    header_bytes = 10 + len((client_id or "").encode()) + (version >= 9)

    assert produce_request_size(version, client_id, logged) == header_bytes + encoded_bytes(request, version)


@pytest.mark.parametrize("version", FETCH_VERSIONS)
@settings(max_examples=30)
@given(
    topics=topics_of_sizes,
    aborted=st.one_of(st.none(), st.lists(st.integers(0, 2**40), max_size=130)),
    leader=st.booleans(),
    diverging=st.booleans(),
    endpoints=st.lists(st.tuples(names, st.one_of(st.none(), names)), max_size=3),
)
def test_fetch_size_is_the_encoded_length_and_four(
    version: int,
    topics: list[tuple[str, list[int]]],
    aborted: list[int] | None,
    leader: bool,
    diverging: bool,
    endpoints: list[tuple[str, str | None]],
) -> None:
    topic_type = FetchResponse.FetchableTopicResponse
    partition_type = topic_type.PartitionData
    tags: dict[str, Any] = {}
    logged_tags: dict[str, Any] = {}
    if leader and version >= 12:
        tags["current_leader"] = partition_type.LeaderIdAndEpoch(leader_id=3, leader_epoch=4)
        logged_tags["currentLeader"] = {"leaderId": 3, "leaderEpoch": 4}
    if diverging and version >= 12:
        tags["diverging_epoch"] = partition_type.EpochEndOffset(epoch=3, end_offset=9)
        logged_tags["divergingEpoch"] = {"epoch": 3, "endOffset": 9}
    aborted_logged = None if aborted is None else [{"producerId": p, "firstOffset": 1} for p in aborted]
    aborted_sent = (
        None if aborted is None else [partition_type.AbortedTransaction(producer_id=p, first_offset=1) for p in aborted]
    )
    response = FetchResponse(
        throttle_time_ms=0,
        error_code=0,
        session_id=0,
        responses=[
            topic_type(
                topic=name,
                topic_id=uuid.UUID(int=7),
                partitions=[
                    partition_type(
                        partition_index=i,
                        error_code=0,
                        high_watermark=1,
                        last_stable_offset=1,
                        log_start_offset=0,
                        aborted_transactions=aborted_sent,
                        preferred_read_replica=-1,
                        records=bytes(size),
                        **tags,
                    )
                    for i, size in enumerate(records)
                ],
            )
            for name, records in topics
        ],
    )
    logged: dict[str, Any] = {
        "responses": [
            {
                "topic": name,
                "partitions": [
                    {"abortedTransactions": aborted_logged, "recordsSizeInBytes": size} | logged_tags
                    for size in records
                ],
            }
            for name, records in topics
        ]
    }
    if endpoints and version >= 16:
        response.node_endpoints = [
            FetchResponse.NodeEndpoint(node_id=i, host=host, port=9092, rack=rack)
            for i, (host, rack) in enumerate(endpoints)
        ]
        logged["nodeEndpoints"] = [{"host": host, "rack": rack} for host, rack in endpoints]

    assert fetch_response_size(version, logged) == 4 + encoded_bytes(response, version)
