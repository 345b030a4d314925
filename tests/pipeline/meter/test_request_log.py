"""The judge of the reporter: sizes as Kafka's own serializer has them, and a line as Kafka 4.3.1 wrote it."""

from typing import Any

import pytest

from tests.pipeline.meter.request_log import LoggedRequest, fetch_response_size, produce_request_size, requests_in

PARTITION = {"partitionIndex": 0, "abortedTransactions": [], "recordsSizeInBytes": 72}
FETCHED = {"responses": [{"topic": "orders", "topicId": "AAAAAAAAAAAAAAAAAAAAAQ", "partitions": [PARTITION]}]}
PRODUCED: dict[str, Any] = {
    "transactionalId": None,
    "acks": -1,
    "topicData": [{"name": "orders", "partitionData": [{"index": 0, "recordsSizeInBytes": 72}]}],
}
LINE = (
    b'[2026-11-21 07:33:33,391] DEBUG Completed request:{"isForwarded":false,"requestHeader":{"requestApiKey":0,'
    b'"requestApiVersion":11,"correlationId":7,"clientId":"app-1","requestApiKeyName":"PRODUCE"},"request":{'
    b'"transactionalId":null,"acks":0,"timeoutMs":30000,"topicData":[{"name":"orders","partitionData":[{"index":0,'
    b'"recordsSizeInBytes":72}]}]},"response":"","connection":"127.0.0.1:29094-127.0.0.1:58800-2-1",'
    b'"totalTimeMs":5.123,"requestQueueTimeMs":0.051,"localTimeMs":1.204,"remoteTimeMs":3.5,"throttleTimeMs":0,'
    b'"responseQueueTimeMs":0.02,"sendTimeMs":0.348,"securityProtocol":"SASL_PLAINTEXT","principal":"User:a:b",'
    b'"listener":"SASL_PLAINTEXT","clientInformation":{"softwareName":"kafka-python","softwareVersion":"3.0.12"}} '
    b"(kafka.request.logger)\n"
)


@pytest.mark.parametrize(
    ("size_bytes", "wanted"),
    [
        (produce_request_size(11, "app-1", PRODUCED), 112),
        (fetch_response_size(17, FETCHED), 143),
        (fetch_response_size(17, {"responses": []}), 16),
    ],
)
def test_the_sizes_are_those_of_kafkas_serializer(size_bytes: int, wanted: int) -> None:
    assert size_bytes == wanted


def test_a_line_is_one_request_and_an_unfinished_one_is_none() -> None:
    found = LoggedRequest("a:b", "app-1", 0, 112, None, 1_204_000, throttle_exempt=True)
    assert [one._replace(logged_ms=0) for one in requests_in([LINE, LINE[:-1], b"another line\n"])] == [found]
