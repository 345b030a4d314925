"""The JSON of a usage event, which is put together by hand: it says what the event of the same line would."""

import json
from typing import Any

import pytest

from pipeline.meter.request_log import MalformedLine
from schemas.usage import UsageEvent
from tests.pipeline.meter.logged_requests import FETCH, PRODUCE, api, event_of, line_of, parser

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
    PRODUCE | {"localTimeMs": 0, "sendTimeMs": 12.9},
]


@pytest.mark.parametrize("logged", EVERY_KIND)
def test_the_json_of_an_event_says_what_the_event_says(logged: dict[str, Any]) -> None:
    line = line_of(logged)
    ((_, value),) = parser().elements([line], lambda *_: pytest.fail("it can be read"))
    event = event_of(parser(), line)

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

    found = list(reader.elements(lines, lambda error, line: told.append((str(error), line))))

    assert len(found) == 2
    assert [line for _, line in told] == [lines[1]]
    assert (reader.counts.lines, reader.counts.events, reader.counts.malformed) == (3, 2, 1)
    with pytest.raises(MalformedLine):
        event_of(parser(), lines[1])


def test_a_client_is_one_number_whatever_it_asks_for() -> None:
    lines = [line_of(PRODUCE), line_of(FETCH), line_of(PRODUCE | {"principal": "User:bob"})]
    alice, again, bob = (number for number, _ in parser().elements(lines, lambda *_: None))

    assert alice == again != bob
