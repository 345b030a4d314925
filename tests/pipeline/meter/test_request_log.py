"""Request lines as Kafka 4.3.1 wrote them, and the usage event of each."""

from typing import Any
from zoneinfo import ZoneInfo

import pytest

from pipeline.meter.request_log import MalformedLine, RequestLogParser
from schemas.usage import UsageEvent
from tests.pipeline.meter.logged_requests import FETCH, LINE_TIME_MS, PRODUCE, api, line_of, parser


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


def test_lines_of_other_loggers_are_skipped() -> None:
    reader = parser()

    assert reader.parse(b"[2026-11-21 07:33:33,391] INFO something else (kafka.server)") is None
    assert reader.counts.other == 1
