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
@pytest.mark.parametrize("value", [0, 1, LARGEST_MEASURE])
def test_a_measure_may_be_zero_and_up_to_the_largest(measure: str, value: int) -> None:
    assert getattr(read(**{measure: value}), measure) == value


@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize("value", [-1, LARGEST_MEASURE + 1, 5.0, 5.5, "5", True, [5]], ids=repr)
def test_a_measure_that_is_no_integer_in_range_is_refused(measure: str, value: object) -> None:
    with pytest.raises(ValidationError):
        read(**{measure: value})


def test_no_measure_is_not_a_measure_of_zero() -> None:
    assert (read().produced_bytes, read(produced_bytes=None).produced_bytes, read(produced_bytes=0).produced_bytes) == (
        None,
        None,
        0,
    )


def test_null_means_the_default_where_there_is_one() -> None:
    assert read(broker_id=None, request_count=None, throttle_exempt=None, schema_version=None) == read()
    assert (read().broker_id, read().request_count, read().throttle_exempt, read().schema_version) == ("", 1, False, 1)


@pytest.mark.parametrize("value", [42, 1.5, True, {}, [], "\ud83d"], ids=ascii)
@pytest.mark.parametrize("name", ["user", "client_id", "broker_id"])
def test_a_name_that_is_no_text_is_refused(name: str, value: object) -> None:
    with pytest.raises(ValidationError, match=name):
        UsageEvent.model_validate({"event_time_ms": 1, "user": "alice", "client_id": "", name: value})


@pytest.mark.parametrize("value", ["", None], ids=repr)
def test_a_user_that_is_missing_or_empty_is_refused(value: object) -> None:
    with pytest.raises(ValidationError):
        read(user=value)


@pytest.mark.parametrize(("text", "bytes_each"), [("x", 1), ("é", 2), ("用", 3), ("😀", 4)])
@pytest.mark.parametrize("name", ["user", "client_id", "broker_id"])
def test_a_name_has_at_most_32767_bytes_of_utf_8(name: str, text: str, bytes_each: int) -> None:
    longest = text * (32_767 // bytes_each)
    longest += "x" * (32_767 - len(longest.encode()))
    assert getattr(read(**{name: longest}), name) == longest
    with pytest.raises(ValidationError, match="at most 32767 bytes of UTF-8"):
        read(**{name: longest[1:] + "é" * bytes_each})


@pytest.mark.parametrize("missing", ["event_time_ms", "user", "client_id"])
def test_a_missing_field_is_refused(missing: str) -> None:
    fields = {"event_time_ms": 1, "user": "alice", "client_id": ""}
    del fields[missing]
    with pytest.raises(ValidationError, match=missing):
        UsageEvent.model_validate_json(json.dumps(fields))


@pytest.mark.parametrize("value", [-1, 2**63, 1.0, "1"], ids=repr)
def test_an_event_time_outside_the_epoch_milliseconds_is_refused(value: object) -> None:
    with pytest.raises(ValidationError):
        read(event_time_ms=value)


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
    assert {json.loads(path.read_text(encoding="utf-8"))["model"] for path in GOLDEN} == set(MODELS)
