"""Usage events, and messages of every model as earlier versions wrote them: they keep their meaning."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from schemas.asyncapi import MODELS
from schemas.throttle_record import ThrottleRecord
from schemas.usage import LARGEST_MEASURE, UsageEvent

MEASURES = ["produced_bytes", "fetched_bytes", "io_time_ns", "network_time_ns", "request_count"]


def read(**fields: Any) -> UsageEvent:
    return UsageEvent.model_validate_json(json.dumps({"event_time_ms": 1, "user": "alice", "client_id": "", **fields}))


@pytest.mark.parametrize("measure", MEASURES)
def test_a_measure_is_an_integer_in_range(measure: str) -> None:
    for value in (0, 1, LARGEST_MEASURE):
        assert getattr(read(**{measure: value}), measure) == value
    for refused in (-1, LARGEST_MEASURE + 1, 5.0, 5.5, "5", True, [5]):
        with pytest.raises(ValidationError):
            read(**{measure: refused})


def test_null_means_the_default_where_there_is_one_and_no_measure_is_not_one_of_zero() -> None:
    assert read(broker_id=None, request_count=None, throttle_exempt=None, schema_version=None) == read()
    assert (read().broker_id, read().request_count, read().throttle_exempt, read().schema_version) == ("", 1, False, 1)
    assert [read(**given).produced_bytes for given in ({}, {"produced_bytes": 0})] == [None, 0]


@pytest.mark.parametrize("name", ["user", "client_id", "broker_id"])
def test_a_name_that_is_no_text_is_refused(name: str) -> None:
    refused: tuple[object, ...] = (42, 1.5, True, {}, [], "\ud83d")
    for value in refused:
        with pytest.raises(ValidationError, match=name):
            UsageEvent.model_validate({"event_time_ms": 1, "user": "alice", "client_id": "", name: value})


@pytest.mark.parametrize(("text", "bytes_each"), [("x", 1), ("é", 2), ("用", 3), ("😀", 4)])
@pytest.mark.parametrize("name", ["user", "client_id", "broker_id"])
def test_a_name_has_at_most_32767_bytes_of_utf_8(name: str, text: str, bytes_each: int) -> None:
    longest = text * (32_767 // bytes_each)
    longest += "x" * (32_767 - len(longest.encode()))
    assert getattr(read(**{name: longest}), name) == longest
    with pytest.raises(ValidationError, match="at most 32767 bytes of UTF-8"):
        read(**{name: longest[1:] + "é" * bytes_each})


@pytest.mark.parametrize(
    ("name", "values"),
    [("event_time_ms", [None, -1, 2**63, 1.0, "1"]), ("user", [None, ""]), ("client_id", [None])],
)
def test_a_field_that_must_be_there_is_refused_without_its_value(name: str, values: list[object]) -> None:
    for value in values:
        with pytest.raises(ValidationError, match=name):
            read(**{name: value})
    fields = {"event_time_ms": 1, "user": "alice", "client_id": ""}
    del fields[name]
    with pytest.raises(ValidationError, match=name):
        UsageEvent.model_validate_json(json.dumps(fields))


def test_unknown_fields_are_ignored() -> None:
    assert read(colour="blue", schema_version=9).schema_version == 9


@given(
    st.builds(
        UsageEvent,
        event_time_ms=st.integers(0, 2**63 - 1),
        user=st.text(st.characters(codec="utf-8"), min_size=1),
        client_id=st.text(st.characters(codec="utf-8")),
        produced_bytes=st.none() | st.integers(0, LARGEST_MEASURE),
        throttle_exempt=st.booleans(),
    )
)
def test_what_is_written_is_read_back(event: UsageEvent) -> None:
    assert UsageEvent.model_validate_json(event.to_value()) == event


GOLDEN = sorted(Path(__file__).parent.joinpath("golden").glob("*.json"))


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_an_old_message_is_read_as_ever(path: Path) -> None:
    golden: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    value = json.dumps(golden["message"]).encode()
    read = (
        ThrottleRecord.from_value(value)
        if golden["model"] == "throttle_record"
        else MODELS[golden["model"]].model_validate_json(value)
    )
    assert json.loads(read.model_dump_json()) == golden["read_as"]


def test_there_is_a_message_of_every_model() -> None:
    there = {json.loads(path.read_text(encoding="utf-8"))["model"] for path in GOLDEN}
    assert there == set(MODELS), "add tests/schemas/golden/NAME.json: model, message, and what it is read as"
