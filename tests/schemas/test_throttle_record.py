"""A throttle record: key, value, headers and stored row, one by one and by columns."""

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import ValidationError

from schemas.errors import UnreadableRecord, UnsupportedFieldType
from schemas.throttle_messages import ThrottleRecords, json_texts
from schemas.throttle_record import ThrottleEventRow, ThrottleRecord, stored_record

FIELDS: dict[str, Any] = {
    "action": "throttle",
    "cluster": "c 1",
    "broker_id": "",
    "user": "älice",
    "client_id": "etl",
    "throttle_time_ms": 1500,
    "throttled_until_ms": 1_700_000_001_500,
    "quota_type": "producer_byte_rate",
    "sensor": ("älice", ""),
    "observed": 5.2e6,
    "bound": 1e6,
    "window_ms": 10_400,
    "tokens": -1.5,
    "owed_ms": 1500,
    "cause": "violation",
    "decision_id": "7f3a000000000000",
    "publish_seq": 12,
    "batch_id": 3,
    "quota_version": 7,
}


def record(**fields: Any) -> ThrottleRecord:
    return ThrottleRecord(**{**FIELDS, **fields})


def test_the_key_is_a_compact_json_array_in_utf8() -> None:
    assert record().key() == '["c 1","","älice","etl"]'.encode()


def test_a_value_is_read_back_as_it_was() -> None:
    release = record(action="release", bound=None, tokens=None, throttle_time_ms=0)
    assert ThrottleRecord.from_value(record().to_value()) == record()
    assert ThrottleRecord.from_value(release.to_value()) == release


def test_nulls_are_written_out() -> None:
    assert json.loads(record(bound=None).to_value())["bound"] is None


def test_a_reader_drops_fields_of_a_newer_writer() -> None:
    value = json.dumps({**json.loads(record().to_value()), "added_later": 1, "schema_version": 2}).encode()
    assert ThrottleRecord.from_value(value) == record(schema_version=2)


def test_a_writer_may_not_make_up_fields() -> None:
    with pytest.raises(ValidationError):
        record(added_later=1)


@pytest.mark.parametrize(
    ("value", "cause"),
    [
        (b"", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[]", "Input should be"),
        (b"{}", "action: Field required"),
        (json.dumps({**FIELDS, "action": "wait"}).encode(), "action: Input should be 'throttle' or 'release'"),
        (json.dumps({**FIELDS, "throttle_time_ms": -1}).encode(), "throttle_time_ms: .* greater than or equal to 0"),
        (json.dumps({**FIELDS, "observed": float("nan")}).encode(), "observed: .* finite"),
    ],
)
def test_what_can_not_be_read_is_refused_with_its_cause(value: bytes, cause: str) -> None:
    with pytest.raises(UnreadableRecord, match=f"the value is not a ThrottleRecord: .*{cause}") as unreadable:
        ThrottleRecord.from_value(value)
    assert unreadable.value.value == value


def test_the_headers_are_cloud_events() -> None:
    assert dict(record().headers("nightly")) == {
        "ce_specversion": b"1.0",
        "ce_id": b"7f3a000000000000/12",
        "ce_type": b"kquota.throttle.v1",
        "ce_source": b"/kquota/c%201",
        "ce_kquotajob": b"nightly",
        "ce_time": b"2023-11-14T22:13:20.000Z",
        "content-type": b"application/json",
    }


def test_a_stored_row_is_the_record_it_was_made_from() -> None:
    sensor_user, sensor_client_id = FIELDS["sensor"]
    stored = {
        **{name: value for name, value in FIELDS.items() if name != "sensor"},
        "sensor_user": sensor_user,
        "sensor_client_id": sensor_client_id,
        "schema_version": 1,
    }
    assert stored_record(stored) == record()
    assert stored_record(stored).to_value() == record().to_value()
    assert set(ThrottleRecord.model_fields) - {"sensor"} <= set(ThrottleEventRow.model_fields)


NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=6) | st.sampled_from(
    ['"', "\\", "\\n", "\n\t\b\f\r", "\x00\x1f\x7f", '",', "é✓\u2028😀", '"},{"']
)
INT64 = st.integers(-(2**63), 2**63 - 1)
FLOATS = st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from(
    [0.0, -0.0, 1e15, 1e16, 1e17, 1e-4, 1e-5, 1e-6, 1e-7, 5e-324, 1.7976931348623157e308, 0.1 + 0.2, 1e21, 123456.0]
)
LATEST_MS = 253_402_300_799_999


def records() -> st.SearchStrategy[ThrottleRecord]:
    return st.builds(
        ThrottleRecord.model_construct,
        action=st.sampled_from(["throttle", "release"]),
        cluster=NAMES,
        broker_id=NAMES,
        user=NAMES,
        client_id=NAMES,
        throttle_time_ms=st.integers(0, 10**6),
        throttled_until_ms=st.integers(10**6, LATEST_MS),
        quota_type=st.sampled_from(["producer_byte_rate", "consumer_byte_rate", "request_percentage"]),
        sensor=st.tuples(NAMES, NAMES),
        observed=FLOATS,
        bound=st.none() | FLOATS,
        window_ms=INT64,
        tokens=st.none() | FLOATS,
        owed_ms=INT64,
        cause=st.sampled_from(["violation", "renewed", "expired", "quota_changed"]),
        decision_id=NAMES,
        publish_seq=INT64,
        batch_id=INT64,
        quota_version=INT64,
        schema_version=st.integers(1, 3),
    )


@given(st.lists(records(), max_size=5), st.sampled_from([1, 30]), NAMES)
@example([record(user='a","b', client_id="a\\"), record(user='b"')], 30, "nightly")
@example([record(tokens=0.0), record(tokens=-0.0)], 30, "nightly")
def test_records_by_columns_are_the_bytes_of_the_records_one_by_one(
    some: list[ThrottleRecord], times: int, job: str
) -> None:
    messages = ThrottleRecords.of(some * times).messages(job)
    expected = [(one.key(), one.to_value(), one.headers(job)) for one in some]
    assert [tuple(one) for one in messages] == expected * times


@given(st.lists(records(), max_size=5))
def test_records_by_columns_are_the_records(some: list[ThrottleRecord]) -> None:
    by_columns = ThrottleRecords.of(some)
    assert ThrottleRecords.of(by_columns) is by_columns
    assert (list(by_columns), len(by_columns)) == (some, len(some))
    assert [by_columns[place] for place in range(-len(some), len(some))] == some * 2
    assert list(by_columns[1:3]) == some[1:3]
    assert list(by_columns[::-2]) == some[::-2]


def test_a_place_outside_the_records_is_an_error() -> None:
    with pytest.raises(IndexError):
        ThrottleRecords.of([record()])[1]


@given(st.lists(st.none() | NAMES))
def test_texts_are_quoted_as_json_does(texts: list[str | None]) -> None:
    written = json_texts("Record", "name", pa.array(texts, pa.string())).to_pylist()
    assert [json.loads(one) for one in written] == texts


def test_a_column_of_another_type_is_refused() -> None:
    with pytest.raises(UnsupportedFieldType, match=r"Record\.flag"):
        json_texts("Record", "flag", pa.array([True]))
