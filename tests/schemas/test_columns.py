"""The forms of a model, rows made of them, and the files that are generated."""

from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, get_args

import pyarrow as pa
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

import schemas.asyncapi
from schemas.arrow import arrow_schema, conform
from schemas.asyncapi import MODELS, generated_files
from schemas.columns import columns, json_schema
from schemas.names import RowsDoNotFit, UnsupportedFieldType
from schemas.rows import decision_ids
from schemas.throttle_record import ThrottleRecord
from schemas.usage import UsageEvent, UsageRow

PIPELINE_TABLES = ["usage", "batches", "decisions", "throttle_events", "sensor_state", "dead_letters"]


@pytest.mark.parametrize("name", list(MODELS))
def test_all_forms_of_a_model_have_the_same_columns(name: str) -> None:
    names = list(MODELS[name].model_fields)
    assert arrow_schema(MODELS[name]).names == names
    assert list(json_schema(MODELS[name])["properties"]) == names


@pytest.mark.parametrize("name", list(MODELS))
def test_null_is_allowed_exactly_where_the_model_takes_none(name: str) -> None:
    for field, column in zip(arrow_schema(MODELS[name]), columns(MODELS[name]), strict=True):
        takes_none = type(None) in get_args(MODELS[name].model_fields[field.name].annotation)
        assert (field.nullable, column.nullable) == (takes_none, takes_none)


@pytest.mark.parametrize("name", PIPELINE_TABLES)
def test_pipeline_tables_carry_cluster_query_a_timestamp_and_the_day(name: str) -> None:
    schema = arrow_schema(MODELS[name])
    leading_ms = next(column for column in schema.names if column.endswith("_ms"))
    assert schema.names[:2] == ["cluster", "query_id"]
    assert schema.field(leading_ms.removesuffix("_ms")).type == pa.timestamp("us", "UTC")
    assert (schema.names[-1], schema.field("date").type) == ("date", pa.date32())


def test_a_type_outside_the_table_is_refused_by_name() -> None:
    class Odd(BaseModel):
        sums: dict[str, int] = Field(description="Sums.")

    with pytest.raises(UnsupportedFieldType, match=r"Odd\.sums has the type .*, which is not in the type table"):
        columns(Odd)


def usage(evaluated_at_ms: int = 1, **columns: object) -> pa.Table:
    given = {
        "sample_start_ms": [1_700_000_000_123],
        "broker_id": [""],
        "user": ["alice"],
        "client_id": ["etl"],
        "request_count": [1],
        "last_event_ms": [1_700_000_000_500],
        **columns,
    }
    return conform(
        pa.table(given),
        UsageRow,
        cluster="c1",
        query_id="q1",
        batch_id=0,
        evaluated_at_ms=evaluated_at_ms,
        quota_version=0,
    )


def test_a_timestamp_is_that_of_its_milliseconds_and_the_day_that_of_the_evaluation() -> None:
    (row,) = usage(1_699_999_999_999 + 86_400_000).to_pylist()
    assert row["sample_start"] == datetime(2023, 11, 14, 22, 13, 20, 123000, tzinfo=UTC)
    assert row["date"] == date(2023, 11, 15)


@pytest.mark.parametrize(
    ("epoch_ms", "day"), [(86_399_999, date(1970, 1, 1)), (86_400_000, date(1970, 1, 2)), (0, date(1970, 1, 1))]
)
def test_a_day_begins_at_midnight_utc(epoch_ms: int, day: date) -> None:
    assert usage(epoch_ms)["date"].to_pylist() == [day]


@pytest.mark.parametrize("string_type", [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())])
def test_strings_of_every_layout_are_taken(string_type: pa.DataType) -> None:
    rows = usage(user=pa.array(["alice"]).cast(string_type), surplus=[1])
    assert rows.schema == arrow_schema(UsageRow)


def test_a_missing_measure_is_null() -> None:
    assert usage()["produced_bytes"].to_pylist() == [None]


def test_a_missing_column_that_may_not_be_null_is_named() -> None:
    with pytest.raises(
        RowsDoNotFit, match="the table cannot be made into rows of UsageRow: no column 'sample_start_ms'"
    ):
        conform(pa.table({"user": ["alice"]}), UsageRow, cluster="c1", query_id="q1", batch_id=0)


def test_a_null_where_none_may_be_is_refused() -> None:
    with pytest.raises(RowsDoNotFit):
        usage(user=pa.array([None], pa.string()))


PACKAGE = Path(schemas.asyncapi.__file__).parent


@pytest.mark.parametrize("path", list(generated_files()))
def test_a_committed_file_is_what_the_models_say(path: str) -> None:
    assert (PACKAGE / path).read_text(encoding="utf-8") == generated_files()[path], "run python -m schemas.asyncapi"


def test_the_asyncapi_document_embeds_the_schemas_of_the_topics() -> None:
    document = yaml.safe_load((PACKAGE / "asyncapi.yaml").read_text(encoding="utf-8"))
    assert document["components"]["schemas"] == {
        "UsageEvent": json_schema(UsageEvent),
        "ThrottleRecord": json_schema(ThrottleRecord),
    }
    assert {channel["address"] for channel in document["channels"].values()} == {
        "quota.usage.v1",
        "quota.throttle.v1",
        "quota.marker.v1",
    }


PARTS: dict[str, Any] = {
    "cluster": "c1",
    "query_id": "q1",
    "batch_id": 7,
    "broker_id": "",
    "user": "alice",
    "client_id": "etl",
    "quota_type": "producer_byte_rate",
}


def decision_id(*, cluster: str, query_id: str, batch_id: int, **decision: str | None) -> str:
    return decision_ids([tuple(decision.values())], cluster=cluster, query_id=query_id, batch_id=batch_id)[0]


def test_the_id_of_a_decision_never_changes() -> None:
    # Stored rows and published records have this id. Another value here would be a breaking change.
    assert decision_id(**PARTS) == "fc0835ce8d967edc"


@pytest.mark.parametrize("part", list(PARTS))
def test_every_part_counts(part: str) -> None:
    other = 8 if part == "batch_id" else PARTS[part] + "x"
    assert decision_id(**{**PARTS, part: other}) != decision_id(**PARTS)


@given(st.text(max_size=4), st.text(max_size=4), st.text(max_size=4), st.text(max_size=4))
def test_different_parts_never_run_together(user: str, client_id: str, other_user: str, other_client_id: str) -> None:
    one = decision_id(**{**PARTS, "user": user, "client_id": client_id})
    other = decision_id(**{**PARTS, "user": other_user, "client_id": other_client_id})
    assert (one == other) == ((user, client_id) == (other_user, other_client_id))


def test_a_name_with_a_lone_surrogate_has_an_id() -> None:
    assert len(decision_id(**{**PARTS, "user": "\ud800"})) == 16


def test_ids_of_a_sensor_and_of_a_client_without_a_client_id_differ() -> None:
    assert decision_id(**{**PARTS, "client_id": None}) != decision_id(**{**PARTS, "client_id": ""})
