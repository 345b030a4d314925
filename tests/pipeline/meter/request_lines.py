"""Made-up lines of a request log in the form of Kafka 4.3.1, and what each of them used, from arithmetic of its own."""

import json
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

TOPICS = ("orders", "clicks", "payments.v2")
START_MS = 1_795_000_000_000


@dataclass(slots=True)
class Used:
    """What the clients have used. Bytes and time by (user, client-id)."""

    produced_bytes: Counter[tuple[str, str]] = field(default_factory=Counter)
    fetched_bytes: Counter[tuple[str, str]] = field(default_factory=Counter)
    io_time_us: Counter[tuple[str, str]] = field(default_factory=Counter)
    requests: Counter[tuple[str, str]] = field(default_factory=Counter)


class RequestLines:
    """Writes lines, and keeps the books.

    Args:
        seed: The same one gives the same lines.
        clients: How many clients take turns.
    """

    def __init__(self, seed: int = 1, clients: int = 200) -> None:
        self.used = Used()
        self._chance = random.Random(seed)
        self._clients = [(f"team-{number % 37}", f"service-{number}") for number in range(clients)]
        self._written = 0

    def take(self, count: int) -> Iterator[str]:
        """The next lines, each with its line end."""
        for _ in range(count):
            yield self._line()

    def _line(self) -> str:
        user, client_id = client = self._chance.choice(self._clients)
        io_time_us, records_bytes = self._chance.randrange(20, 3_000), self._chance.randrange(70, 40_000)
        topic, kind = self._chance.choice(TOPICS), self._chance.random()
        if kind < 0.45:
            api, body = "PRODUCE", produce(topic, records_bytes)
            # Key, version, correlation id, client-id; null id, acks, time-out; topics, name, partitions; index.
            head = 2 + 2 + 4 + 2 + len(client_id) + 1 + 1 + 2 + 4 + 1 + 1 + len(topic) + 1 + 4
            self.used.produced_bytes[client] += head + varint(records_bytes + 1) + records_bytes + 3
        elif kind < 0.85:
            api, body = "FETCH", fetch(records_bytes)
            # Throttle time, error, session; topics, id, partitions; index, error, three offsets, aborted, replica.
            head = 4 + 4 + 2 + 4 + 1 + 16 + 1 + 4 + 2 + 8 + 8 + 8 + 1 + 4
            self.used.fetched_bytes[client] += head + varint(records_bytes + 1) + records_bytes + 3
        else:
            api, body = "METADATA", METADATA
        self.used.io_time_us[client] += io_time_us
        self.used.requests[client] += 1
        self._written += 1
        header = {
            "requestApiKey": 0, "requestApiVersion": {"PRODUCE": 12, "FETCH": 17, "METADATA": 13}[api],
            "correlationId": self._written, "clientId": client_id, "requestApiKeyName": api,
        }  # fmt: skip
        logged = {
            "isForwarded": False, "requestHeader": header, **body,
            "connection": "10.0.0.17:9092-10.0.3.41:58800-2-1204", "totalTimeMs": io_time_us / 1000 + 0.4,
            "requestQueueTimeMs": 0.051, "localTimeMs": io_time_us / 1000, "remoteTimeMs": 0.0, "throttleTimeMs": 0,
            "responseQueueTimeMs": 0.021, "sendTimeMs": 0.348, "securityProtocol": "SASL_SSL",
            "principal": f"User:{user}", "listener": "CLIENTS",
            "clientInformation": {"softwareName": "apache-kafka-java", "softwareVersion": "4.1.0"},
        }  # fmt: skip
        at = datetime.fromtimestamp((START_MS + self._written // 20) / 1000, UTC)
        text = json.dumps(logged, separators=(",", ":"))
        return (
            f"[{at:%Y-%m-%d %H:%M:%S},{at.microsecond // 1000:03}] DEBUG Completed request:{text} "
            "(kafka.request.logger)\n"
        )


def produce(topic: str, records_bytes: int) -> dict[str, Any]:
    """Bodies of a produce request of version 12 and its response."""
    partition = {
        "index": 0, "errorCode": 0, "baseOffset": 1_204_881, "logAppendTimeMs": -1, "logStartOffset": 0,
        "recordErrors": [], "errorMessage": None,
    }  # fmt: skip
    sent = {"name": topic, "partitionData": [{"index": 0, "recordsSizeInBytes": records_bytes}]}
    return {
        "request": {"transactionalId": None, "acks": -1, "timeoutMs": 30_000, "topicData": [sent]},
        "response": {"responses": [{"name": topic, "partitionResponses": [partition]}], "throttleTimeMs": 0},
    }


def fetch(records_bytes: int) -> dict[str, Any]:
    """Bodies of a fetch request of version 17 and its response."""
    topic_id = "ZpT0Tx2bQWmR6nFxWm8t3A"
    asked = {
        "partition": 0, "currentLeaderEpoch": 3, "fetchOffset": 1_204_881, "lastFetchedEpoch": -1,
        "logStartOffset": -1, "partitionMaxBytes": 1_048_576,
    }  # fmt: skip
    answered = {
        "partitionIndex": 0, "errorCode": 0, "highWatermark": 1_204_999, "lastStableOffset": 1_204_999,
        "logStartOffset": 0, "abortedTransactions": [], "preferredReadReplica": -1,
        "recordsSizeInBytes": records_bytes,
    }  # fmt: skip
    return {
        "request": {
            "clusterId": None, "maxWaitMs": 500, "minBytes": 1, "maxBytes": 52_428_800, "isolationLevel": 1,
            "sessionId": 91_223_004, "sessionEpoch": 77, "topics": [{"topicId": topic_id, "partitions": [asked]}],
            "forgottenTopicsData": [], "rackId": "",
        },
        "response": {
            "throttleTimeMs": 0, "errorCode": 0, "sessionId": 91_223_004,
            "responses": [{"topicId": topic_id, "partitions": [answered]}],
        },
    }  # fmt: skip


METADATA: dict[str, Any] = {
    "request": {"topics": [], "allowAutoTopicCreation": False, "includeTopicAuthorizedOperations": False},
    "response": {"throttleTimeMs": 0, "brokers": [], "clusterId": "x", "controllerId": 1, "topics": []},
}


def varint(value: int) -> int:
    """Bytes of an unsigned varint."""
    return 1 if value < 128 else 2 if value < 16_384 else 3
