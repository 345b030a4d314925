"""The rules of fields are those of the model; sums and counts of several parts of a batch."""

import pyarrow as pa

from pipeline.stream.usage_columns import FIELD_RULES, LARGEST_SUM, USAGE_SCHEMA, merge_batches, merge_usage
from schemas.usage import LARGEST_MEASURE, UsageEvent
from tests.pipeline.stream.messages import array, counts, event, message, read, usage

RULES = {rule.name: rule for rule in FIELD_RULES}


def test_every_field_of_the_model_has_a_rule_in_its_place() -> None:
    assert list(RULES) == list(UsageEvent.model_fields)


def test_measures_are_optional_and_bounded_on_both_sides() -> None:
    for name in ("produced_bytes", "fetched_bytes", "io_time_ns", "network_time_ns", "broker_throttle_ms"):
        rule = RULES[name]
        assert (rule.spark_type, rule.required, rule.default) == ("BIGINT", False, None)
        assert (rule.at_least, rule.at_most) == (0, LARGEST_MEASURE)


def test_the_event_time_has_no_upper_bound_but_the_type() -> None:
    assert (RULES["event_time_ms"].at_least, RULES["event_time_ms"].at_most) == (0, None)


def test_only_user_and_client_id_and_event_time_are_required_and_only_user_not_empty() -> None:
    assert [name for name, rule in RULES.items() if rule.required] == ["event_time_ms", "user", "client_id"]
    assert [name for name, rule in RULES.items() if not rule.may_be_empty] == ["user"]


def test_a_name_may_have_as_many_bytes_as_a_client_id_in_kafkas_protocol() -> None:
    assert {name: rule.max_utf8_bytes for name, rule in RULES.items() if rule.spark_type == "STRING"} == dict.fromkeys(
        ("user", "client_id", "broker_id"), 32_767
    )


def test_absent_optional_fields_count_as_the_models_defaults() -> None:
    assert {name: rule.default for name, rule in RULES.items() if rule.default is not None} == {
        "broker_id": "",
        "request_count": 1,
        "throttle_exempt": False,
        "schema_version": 1,
    }


def row(**columns: int | None) -> dict[str, object]:
    keys = {"sample_start_ms": 1, "broker_id": "", "user": "a", "client_id": ""}
    return dict.fromkeys(USAGE_SCHEMA.names) | keys | columns


def test_a_merged_sum_is_null_only_if_it_is_null_in_every_row_and_stops_at_the_largest() -> None:
    tables = [
        pa.Table.from_pylist([row(produced_bytes=LARGEST_SUM, fetched_bytes=None, last_event_ms=5)], USAGE_SCHEMA),
        pa.Table.from_pylist([row(produced_bytes=LARGEST_SUM, io_time_ns=0, last_event_ms=3)] * 3, USAGE_SCHEMA),
    ]
    assert merge_usage(tables).to_pylist() == [row(produced_bytes=LARGEST_SUM, io_time_ns=0, last_event_ms=5)]


def test_nothing_merged_is_an_empty_batch() -> None:
    assert merge_usage([]) == USAGE_SCHEMA.empty_table()
    assert counts(merge_batches([])) == counts(read())


def test_parts_merged_are_the_batch_read_at_once() -> None:
    values = [message(), array(event(), 7), None, b"no JSON", message(user="bob")]
    parts = [read(value) for value in values]
    whole = read(*values)
    assert (usage(merge_batches(parts)), counts(merge_batches(parts))) == (usage(whole), counts(whole))
