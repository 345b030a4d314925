"""A throttle record: its key, value and headers, and the stored row it is made of."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.names import UnreadableRecord
from schemas.throttle_record import ThrottleRecord
from tests import throttle_records
from tests.pages.blocks import ROOT, blocks_of
from tests.throttle_records import message, row_of, stored_record

FIELDS: dict[str, Any] = {
    **dict(throttle_records.record(12, 1_700_000_001_500, throttle_time_ms=1500)),
    "cluster": "c 1",
    "user": "älice",
    "decision_id": "7f3a000000000000",
}


def record(**fields: Any) -> ThrottleRecord:
    return ThrottleRecord(**{**FIELDS, **fields})


def test_the_record_that_readers_copy_from_the_page_is_one() -> None:
    (shown,) = (
        block.text for block in blocks_of((ROOT / "docs/gate.md").read_text("utf-8")) if block.language == "json"
    )
    assert dict(ThrottleRecord.from_value(shown.encode())).keys() == json.loads(shown).keys()


def test_the_key_is_a_compact_json_array_in_utf8() -> None:
    assert message(record()).key == '["c 1","","älice","etl"]'.encode()


def test_a_reader_drops_fields_of_a_newer_writer() -> None:
    value = json.dumps({**json.loads(message(record()).value), "added_later": 1, "schema_version": 2}).encode()
    assert ThrottleRecord.from_value(value) == record(schema_version=2)


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
    assert dict(message(record(), "nightly").headers) == {
        "ce_specversion": b"1.0",
        "ce_id": b"7f3a000000000000/12",
        "ce_type": b"kquota.throttle.v2",
        "ce_source": b"/kquota/c%201",
        "ce_kquotajob": b"nightly",
        "ce_time": b"2023-11-14T22:13:20.000Z",
        "content-type": b"application/json",
    }


NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=6) | st.sampled_from(
    ['"', "\\", "\\n", "\n\t\b\f\r", "\x00\x1f\x7f", '",', "é✓\u2028😀", '"},{"']
)
FLOATS = st.floats(0, allow_nan=False, allow_infinity=False) | st.sampled_from([-0.0, 1e16, 1e-7, 5e-324, 0.1 + 0.2])


@given(NAMES, NAMES, FLOATS, st.integers(-(2**63), 2**63 - 1))
def test_a_record_is_read_back_from_its_message(user: str, cluster: str, observed: float, batch_id: int) -> None:
    given_record = stored_record({**row_of(record()), "user": user, "cluster": cluster})
    given_record = given_record.model_copy(
        update={"observed": observed, "tokens": -observed, "bound": None, "batch_id": batch_id}
    )
    sent = message(given_record)
    assert json.loads(sent.key) == [cluster, "", user, "etl"]
    expected = json.loads(given_record.model_dump_json())
    assert json.loads(sent.value) == expected
    assert ThrottleRecord.model_construct(**expected | {"sensor": tuple(expected["sensor"])}) == given_record
