"""The rules Spark applies are those of the model."""

from pipeline.stream.reading.event_rules import EVENT_STRUCT
from pipeline.stream.reading.field_rules import FIELD_RULES
from schemas.usage import LARGEST_MEASURE, UsageEvent

RULES = {rule.name: rule for rule in FIELD_RULES}


def test_every_field_of_the_model_has_a_rule_in_its_place() -> None:
    assert list(RULES) == list(UsageEvent.model_fields)


def test_measures_are_optional_and_bounded_on_both_sides() -> None:
    for name in ("produced_bytes", "fetched_bytes", "io_time_ns", "network_time_ns"):
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


def test_the_struct_has_the_types_of_the_model() -> None:
    assert EVENT_STRUCT.startswith("STRUCT<event_time_ms: BIGINT, user: STRING, client_id: STRING, broker_id: STRING,")
