"""Request lines as Kafka 4.3.1 wrote them, and the usage event of each."""

import json
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from pipeline.meter.own_traffic import OwnTraffic
from pipeline.meter.request_log import MalformedLine, RequestLogParser
from pipeline.meter.usage_topic import UsageTopic
from pipeline.meter.wire_size import produce_request_size
from schemas.usage_event import UsageEvent

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


def parsed(logged: dict[str, Any]) -> UsageEvent:
    event = parser().parse(line_of(logged))
    assert event is not None
    return event


def test_a_produce_becomes_an_event_of_its_user_and_client() -> None:
    assert parsed(PRODUCE) == UsageEvent(
        event_time_ms=LINE_TIME_MS - 1,
        user="alice",
        client_id="app-1",
        broker_id="1",
        produced_bytes=112,
        io_time_ns=1_204_000,
    )


def test_a_fetch_has_fetched_bytes_and_no_produced_ones() -> None:
    event = parsed(FETCH)

    assert (event.produced_bytes, event.fetched_bytes) == (None, 143)


def test_another_request_has_its_io_time_only() -> None:
    event = parsed(api("METADATA"))

    assert (event.produced_bytes, event.fetched_bytes, event.io_time_ns) == (None, None, 1_204_000)
    assert not event.throttle_exempt


def test_the_network_time_is_unknown_and_not_zero() -> None:
    assert parsed(PRODUCE).network_time_ns is None


@pytest.mark.parametrize(
    ("queued_ms", "sending_ms", "before_ms"), [(0.0, 0.0, 0), (0.02, 0.348, 1), (2.5, 3.5, 6), (0, 250, 250)]
)
def test_event_time_is_before_the_response_was_queued(queued_ms: float, sending_ms: float, before_ms: int) -> None:
    event = parsed(PRODUCE | {"responseQueueTimeMs": queued_ms, "sendTimeMs": sending_ms})

    assert event.event_time_ms == LINE_TIME_MS - before_ms


def test_line_times_are_read_in_the_zone_of_the_log() -> None:
    berlin = RequestLogParser("1", time_zone=ZoneInfo("Europe/Berlin")).parse(line_of(PRODUCE))

    assert berlin is not None
    assert berlin.event_time_ms == LINE_TIME_MS - 1 - 3_600_000


def test_the_user_is_everything_after_the_first_colon() -> None:
    assert parsed(PRODUCE | {"principal": "User:CN=a:b,O=shop"}).user == "CN=a:b,O=shop"


def test_a_null_client_id_is_the_empty_one() -> None:
    header = PRODUCE["requestHeader"] | {"clientId": None}

    assert parsed(PRODUCE | {"requestHeader": header}).client_id == ""


def test_a_produce_without_acknowledgement_is_exempt_from_request_time_alone() -> None:
    event = parsed(PRODUCE | {"request": PRODUCE["request"] | {"acks": 0}, "response": ""})

    assert event.throttle_exempt
    assert event.produced_bytes == 112


@pytest.mark.parametrize("name", ["CONTROLLED_SHUTDOWN", "ALTER_PARTITION", "VOTE"])
def test_cluster_apis_are_exempt(name: str) -> None:
    assert parsed(api(name)).throttle_exempt


def test_a_quorum_request_is_charged_by_the_broker_and_exempt_at_the_controller() -> None:
    assert not parsed(api("DESCRIBE_QUORUM")).throttle_exempt
    assert parsed(api("DESCRIBE_QUORUM", isForwarded=True)).throttle_exempt


def test_a_forwarded_request_is_the_same_request_with_more_time() -> None:
    event = parsed(api("CREATE_TOPICS", isForwarded=True))

    assert (event.request_count, event.io_time_ns) == (0, 1_204_000)


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

    event = reader.parse(line_of(PRODUCE | {"listener": listener, "principal": principal}))

    assert (event is None) is is_own
    assert reader.counts.own == is_own


def test_other_requests_of_a_meter_are_reported_like_those_of_any_client() -> None:
    header = PRODUCE["requestHeader"] | {"clientId": "kquota-meter-1"}

    assert parser().parse(line_of(PRODUCE | {"requestHeader": header})) is not None
    assert parser().parse(line_of(api("METADATA"))) is not None


@pytest.mark.parametrize(
    ("topic_id", "is_reported"), [("ZpT0Tx2bQWmR6nFxWm8t3A", False), ("AAAAAAAAAAAAAAAAAAAAAQ", True)]
)
def test_a_request_that_names_the_usage_topic_by_its_id_is_not_reported(topic_id: str, is_reported: bool) -> None:
    own = OwnTraffic(usage_topic=UsageTopic("quota.usage.v1", "ZpT0Tx2bQWmR6nFxWm8t3A"))
    header = PRODUCE["requestHeader"] | {"requestApiVersion": 13}
    sent = line_of(produce_to({"topicId": topic_id}, requestHeader=header))

    assert (parser(own_traffic=own).parse(sent) is not None) is is_reported
    assert parser().parse(sent) is not None  # an id that is not known


def test_a_meter_of_another_usage_topic_knows_its_own_alone() -> None:
    reader = parser(own_traffic=OwnTraffic(usage_topic=UsageTopic("usage.test")))

    assert reader.parse(line_of(produce_to({"name": "usage.test"}))) is None
    assert reader.parse(line_of(produce_to({"name": "quota.usage.v1"}))) is not None


def produce_to(*topics: dict[str, str], **changes: Any) -> dict[str, Any]:
    written = [{**topic, "partitionData": [{"index": 0, "recordsSizeInBytes": 300}]} for topic in topics]
    return PRODUCE | {"request": PRODUCE["request"] | {"topicData": written}} | changes


@pytest.mark.parametrize("principal", ["User:ANONYMOUS", "User:CN=kquota", "User:meters"])
@pytest.mark.parametrize("client_id", ["kquota-meter-1", "kquota-meter-2", "another-make-of-meter"])
def test_what_any_meter_sends_to_the_usage_topic_is_not_reported(principal: str, client_id: str) -> None:
    reader = parser()
    header = PRODUCE["requestHeader"] | {"clientId": client_id}
    sent = produce_to({"name": "quota.usage.v1"}, principal=principal, requestHeader=header)

    assert reader.parse(line_of(sent)) is None
    assert reader.counts.own == 1


def test_a_request_that_also_writes_elsewhere_is_reported_whole() -> None:
    both = produce_to({"name": "quota.usage.v1"}, {"name": "orders"})

    event = parser().parse(line_of(both))

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
    assert (parser().parse(line_of(FETCH | {"request": request_body})) is None) is is_follower


@pytest.mark.parametrize(
    "logged",
    [
        FETCH | {"response": ""},
        PRODUCE | {"request": ""},
        PRODUCE | {"requestHeader": PRODUCE["requestHeader"] | {"requestApiVersion": 99}},
        api("SHARE_FETCH"),
    ],
    ids=["never sent", "logging began", "unknown version", "share fetch"],
)
def test_bytes_that_cannot_be_known_are_null_and_counted(logged: dict[str, Any]) -> None:
    reader = parser()

    event = reader.parse(line_of(logged))

    assert event is not None
    assert (event.produced_bytes, event.fetched_bytes, event.io_time_ns) == (None, None, 1_204_000)
    assert reader.counts.unsized == 1


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"[2026-11-21 07:33:33,391] DEBUG Completed request:{", "Expecting"),
        (b"[2026-11-21 07:33:33,391] DEBUG Completed request:[]", "indices"),
        (b"[2026-11-21 07:33:33,391] DEBUG Completed request:{}", "field 'requestHeader' is missing"),
        (line_of(PRODUCE, time="07:33"), "must begin with"),
        (line_of(PRODUCE, time="2026-13-41 07:33:33,391"), "month must be in"),
        (line_of(PRODUCE | {"principal": "User:"}), "user"),
        (line_of(PRODUCE | {"localTimeMs": -1.0}), "io_time_ns"),
        (line_of(PRODUCE | {"localTimeMs": None}), "NoneType"),
        (line_of(PRODUCE | {"request": {"acks": -1}}), "field 'transactionalId' is missing"),
    ],
)
def test_a_malformed_line_is_counted_and_says_why(line: bytes, reason: str) -> None:
    reader = parser()

    with pytest.raises(MalformedLine, match=reason):
        reader.parse(line)

    assert (reader.counts.lines, reader.counts.malformed, reader.counts.events) == (1, 1, 0)


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
    assert (parser().parse(line_of(logged)) is None) is is_own


EVERY_KIND: list[dict[str, Any]] = [
    PRODUCE,
    FETCH,
    api("METADATA"),
    api("CREATE_TOPICS", isForwarded=True),
    api("VOTE"),
    PRODUCE | {"request": PRODUCE["request"] | {"acks": 0}},
    PRODUCE | {"request": ""},
    PRODUCE | {"principal": 'User:CN="a\\\\b",O=\u00e9\u2028\U0001f600'},
    PRODUCE | {"requestHeader": PRODUCE["requestHeader"] | {"clientId": None}},
    api("METADATA") | {"requestHeader": api("METADATA")["requestHeader"] | {"clientId": 42}},
    PRODUCE | {"localTimeMs": 0, "sendTimeMs": 12.9},
]


@pytest.mark.parametrize("logged", EVERY_KIND)
def test_the_json_of_an_event_says_what_the_event_says(logged: dict[str, Any]) -> None:
    line = line_of(logged)
    event = parser().parse(line)
    ((_, value),) = parser().elements([line], lambda *_: pytest.fail("it can be read"))

    assert UsageEvent.model_validate_json(value) == event
    assert json.loads(value)["broker_id"] == "1"


MALFORMED: list[dict[str, Any]] = [
    PRODUCE | {"principal": "User:"},
    PRODUCE | {"principal": "User:" + "x" * 32_768},
    PRODUCE | {"localTimeMs": -1.0},
    PRODUCE | {"localTimeMs": 2**40},
    PRODUCE | {"sendTimeMs": 1e15},
    PRODUCE | {"request": PRODUCE["request"] | {"topicData": [{"name": "x", "partitionData": [
        {"index": 0, "recordsSizeInBytes": 2**40},
    ]}]}},
]  # fmt: skip


@pytest.mark.parametrize("logged", MALFORMED)
def test_what_no_event_can_say_is_reported_and_the_other_lines_go_on(logged: dict[str, Any]) -> None:
    reader = parser()
    told: list[tuple[str, bytes]] = []
    lines = [line_of(PRODUCE), line_of(logged), line_of(FETCH)]

    found = list(reader.elements(lines, lambda error, line: told.append((error.reason, line))))

    assert len(found) == 2
    assert [line for _, line in told] == [lines[1]]
    assert (reader.counts.lines, reader.counts.events, reader.counts.malformed) == (3, 2, 1)
    with pytest.raises(MalformedLine):
        parser().parse(lines[1])


@pytest.mark.parametrize(
    ("text", "client_id"),
    [
        (b'"clientId": "app-1"', "app-1"),
        (b'"clientId": "a\xff"', "a\N{REPLACEMENT CHARACTER}"),
        (b'"clientId": "a}b{"', "a}b{"),
    ],
)
@pytest.mark.parametrize("layout", [b" (kafka.request.logger)", b"", b" {thread=x}", b" }\r"])
def test_what_stands_behind_the_json_and_bytes_that_are_no_utf_8_do_not_matter(
    text: bytes, client_id: str, layout: bytes
) -> None:
    line = line_of(PRODUCE).removesuffix(b" (kafka.request.logger)") + layout
    event = parser().parse(line.replace(b'"clientId": "app-1"', text))

    assert event is not None
    assert event.client_id == client_id


def test_a_client_is_one_number_whatever_it_asks_for() -> None:
    lines = [line_of(PRODUCE), line_of(FETCH), line_of(PRODUCE | {"principal": "User:bob"})]
    alice, again, bob = (number for number, _ in parser().elements(lines, lambda *_: None))

    assert alice == again != bob


def test_lines_of_other_loggers_are_skipped() -> None:
    reader = parser()

    assert reader.parse(b"[2026-11-21 07:33:33,391] INFO something else (kafka.server)") is None
    assert reader.counts.other == 1
