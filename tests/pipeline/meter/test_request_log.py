"""Request lines as Kafka 4.3.1 wrote them, and the usage event of each."""

import json
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pipeline.meter.request_log import MalformedLine, RequestLogParser
from schemas.usage import UsageEvent
from tests.pipeline.meter.logged_requests import FETCH, LINE_TIME_MS, PRODUCE, api, event_of, line_of, parser


def parsed(logged: dict[str, Any]) -> UsageEvent:
    event = event_of(parser(), line_of(logged))
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
    berlin = event_of(RequestLogParser("1", time_zone=ZoneInfo("Europe/Berlin")), line_of(PRODUCE))

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

    event = event_of(reader, line_of(logged))

    assert event is not None
    assert (event.produced_bytes, event.fetched_bytes, event.io_time_ns) == (None, None, 1_204_000)
    assert reader.counts.unsized == 1


OTHERS = "not of the form '.time. DEBUG Completed request:.*pattern .%d. %p %m .%c.%n"


def with_json(text: str) -> bytes:
    return f"[2026-11-21 07:33:33,391] DEBUG Completed request:{text} (kafka.request.logger)".encode()


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (with_json("{"), "EOF while parsing"),
        (with_json("[]"), "indices"),
        (with_json("{}"), "field 'requestHeader' is missing"),
        (with_json(json.dumps(PRODUCE) + " {}"), "trailing characters"),
        (line_of(PRODUCE, time="2026-13-41 07:33:33,391"), "month must be in"),
        (line_of(PRODUCE | {"principal": "User:"}), "user"),
        (line_of(PRODUCE | {"localTimeMs": -1.0}), "io_time_ns"),
        (line_of(PRODUCE | {"localTimeMs": None}), "NoneType"),
        (line_of(PRODUCE | {"localTimeMs": float("inf")}), "expected value"),
        (line_of(PRODUCE | {"sendTimeMs": float("nan")}), "expected value"),
        (line_of(PRODUCE | {"request": {"acks": -1}}), "field 'transactionalId' is missing"),
        (with_json(json.dumps(PRODUCE).replace("1.204", "1e999")), "infinity"),
        (with_json(json.dumps(PRODUCE).replace("72", "9" * 5_000)), "number out of range"),
        (with_json('{"a":' * 100_000), "recursion limit"),
        (with_json(json.dumps(PRODUCE).replace('[{"name"', "[" * 100_000 + '{"name"')), "recursion limit"),
    ],
)
def test_a_malformed_line_is_counted_and_says_why(line: bytes, reason: str) -> None:
    reader = parser()

    with pytest.raises(MalformedLine, match=reason):
        event_of(reader, line)

    assert (reader.counts.lines, reader.counts.malformed, reader.counts.events) == (1, 1, 0)
    assert reader.counts.uncharged_bytes == len(line)


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(st.sampled_from(sorted(PRODUCE)), ANYTHING)
@example("localTimeMs", float("inf"))
@example("response", json.loads("[" * 300 + "]" * 300))
def test_whatever_a_line_has_in_a_field_the_next_one_is_read(field: str, value: Any) -> None:
    reader, refused = parser(), list[str]()

    events = list(
        reader.elements(
            [line_of(PRODUCE | {field: value}), line_of(FETCH)], lambda error, _: refused.append(str(error))
        )
    )

    assert reader.counts.events == len(events) >= 1
    assert reader.counts.malformed == len(refused)
    assert reader.counts.events + reader.counts.own + reader.counts.malformed == 2


@given(st.binary())
def test_no_bytes_behind_the_layout_are_more_than_a_malformed_line(text: bytes) -> None:
    reader, refused = parser(), list[str]()

    assert list(reader.elements([with_json(text.decode("latin-1"))], lambda error, _: refused.append(str(error)))) == []
    assert len(refused) == reader.counts.malformed == 1


@pytest.mark.parametrize(
    ("text", "client_id"),
    [
        (b'"clientId": "app-1"', "app-1"),
        (b'"clientId": "a\xff"', "a\N{REPLACEMENT CHARACTER}"),
        (b'"clientId": "a}b{"', "a}b{"),
        (b'"clientId": " (kafka.request.logger)"', " (kafka.request.logger)"),
        (b'"clientId": "Completed request:{}"', "Completed request:{}"),
    ],
)
@pytest.mark.parametrize("end", [b"", b"\r"])
def test_bytes_that_are_no_utf_8_and_a_carriage_return_do_not_matter(text: bytes, client_id: str, end: bytes) -> None:
    event = event_of(parser(), line_of(PRODUCE).replace(b'"clientId": "app-1"', text) + end)

    assert event is not None
    assert event.client_id == client_id


FORGED = f"Completed request:{json.dumps(PRODUCE)}"


@pytest.mark.parametrize(
    "line",
    [
        "[2026-11-21 07:33:33,391] INFO something else (kafka.server)",
        "java.lang.IllegalStateException: something else",
        "",
        f"[2026-11-21 07:33:33,391] ERROR [KafkaApi-1] Error: clientId={FORGED}, api=FETCH (kafka.server.KafkaApis)",
        f"[2026-11-21 07:33:33,391] DEBUG clientId={FORGED} (kafka.request.logger), version=13 (kafka.server.Api)",
    ],
)
def test_lines_of_other_loggers_are_skipped_whatever_clients_put_there(line: str) -> None:
    reader = parser()

    assert event_of(reader, line.encode()) is None
    assert reader.counts.other == 1


@pytest.mark.parametrize(
    "line",
    [
        f"2026-11-21 07:33:33,391 DEBUG {FORGED}",
        f"[2026-11-21 07:33:33,391] DEBUG {FORGED}",
        f"[2026-11-21 07:33:33,391] DEBUG [data-plane-1] {FORGED} (kafka.request.logger)",
        f"[2026-11-21 07:33:33,391] DEBUG kafka.request.logger - {FORGED}",
        f"[2026-11-21 07:33:33,391] DEBUG {FORGED} (logger)",
        f"[2026-11-21 07:33:33,391] DEBUG {FORGED} (kafka.request.logger) {{thread=x}}",
        f"[2026-11-21T07:33:33,391Z] DEBUG {FORGED} (kafka.request.logger)",
        f"[07:33] DEBUG {FORGED} (kafka.request.logger)",
        json.dumps({"level": "DEBUG", "message": FORGED}),
    ],
)
def test_requests_in_another_layout_charge_no_client_and_say_which_is_needed(line: str) -> None:
    reader = parser()

    with pytest.raises(MalformedLine, match=OTHERS):
        event_of(reader, line.encode())

    assert (reader.counts.malformed, reader.counts.uncharged_bytes) == (1, len(line))
