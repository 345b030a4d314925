"""Request lines as Kafka 4.3.1 wrote them, and a parser of them."""

import json
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

from pipeline.meter.long_line import Line
from pipeline.meter.request_log import MalformedLine, RequestLogParser
from schemas.usage import UsageEvent

LINE_TIME_MS = int(datetime(2026, 11, 21, 7, 33, 33, 391_000, UTC).timestamp() * 1000)

PRODUCE: dict[str, Any] = {
    "isForwarded": False,
    "requestHeader": {
        "requestApiKey": 0, "requestApiVersion": 11, "correlationId": 7, "clientId": "app-1",
        "requestApiKeyName": "PRODUCE",
    },
    "request": {
        "transactionalId": None, "acks": -1, "timeoutMs": 30000,
        "topicData": [{"name": "orders", "partitionData": [{"index": 0, "recordsSizeInBytes": 72}]}],
    },
    "response": {"responses": [], "throttleTimeMs": 0},
    "connection": "127.0.0.1:29094-127.0.0.1:58800-2-1",
    "totalTimeMs": 5.123, "requestQueueTimeMs": 0.051, "localTimeMs": 1.204, "remoteTimeMs": 3.5,
    "throttleTimeMs": 0, "responseQueueTimeMs": 0.02, "sendTimeMs": 0.348,
    "securityProtocol": "SASL_PLAINTEXT", "principal": "User:alice", "listener": "SASL_PLAINTEXT",
    "clientInformation": {"softwareName": "kafka-python", "softwareVersion": "3.0.12"},
}  # fmt: skip
FETCHED_PARTITION = {
    "partitionIndex": 0, "errorCode": 0, "highWatermark": 43, "abortedTransactions": [],
    "recordsSizeInBytes": 72,
}  # fmt: skip
FETCH: dict[str, Any] = PRODUCE | {
    "requestHeader": PRODUCE["requestHeader"] | {"requestApiVersion": 17, "requestApiKeyName": "FETCH"},
    "request": {"maxWaitMs": 500, "sessionId": 0, "topics": []},
    "response": {
        "throttleTimeMs": 0, "errorCode": 0, "sessionId": 0,
        "responses": [{"topicId": "AAAAAAAAAAAAAAAAAAAAAQ", "partitions": [FETCHED_PARTITION]}],
    },
}  # fmt: skip


def line_of(logged: dict[str, Any], time: str = "2026-11-21 07:33:33,391") -> bytes:
    return f"[{time}] DEBUG Completed request:{json.dumps(logged)} (kafka.request.logger)".encode()


def api(name: str, **changes: Any) -> dict[str, Any]:
    return PRODUCE | {"requestHeader": PRODUCE["requestHeader"] | {"requestApiKeyName": name}} | changes


def parser(**settings: Any) -> RequestLogParser:
    return RequestLogParser("1", time_zone=ZoneInfo("UTC"), **settings)


def event_of(reader: RequestLogParser, line: Line) -> UsageEvent | None:
    """The event in JSON that a line becomes; None if the request is not a client's. Raises `MalformedLine`."""

    def refuse(error: MalformedLine, _line: bytes) -> None:
        raise error

    found = [value for _, value in reader.elements([line], refuse)]
    return UsageEvent.model_validate_json(found[0]) if found else None
