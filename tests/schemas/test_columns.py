from typing import get_args

import pyarrow as pa
import pytest
from pydantic import BaseModel, Field

from schemas.arrow import arrow_schema
from schemas.asyncapi import MODELS
from schemas.columns import TYPES, columns, json_schema, spark_ddl
from schemas.errors import UnsupportedFieldType

PIPELINE_TABLES = ["usage", "batches", "decisions", "throttle_events", "sensor_state", "dead_letters"]


@pytest.mark.parametrize("name", list(MODELS))
def test_every_field_says_what_it_means_and_in_which_unit(name: str) -> None:
    for column in columns(MODELS[name]):
        assert column.description.endswith("."), column.name
        assert column.unit, column.name


@pytest.mark.parametrize("name", list(MODELS))
def test_all_forms_of_a_model_have_the_same_columns(name: str) -> None:
    names = list(MODELS[name].model_fields)
    ddl = [part.split("`")[1] for part in spark_ddl(MODELS[name]).split(", `") if part.startswith("`")] or None
    assert arrow_schema(MODELS[name]).names == names
    assert list(json_schema(MODELS[name])["properties"]) == names
    assert ddl is None or ddl[0] == names[0]
    assert spark_ddl(MODELS[name]).count("`") == 2 * len(names)


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


@pytest.mark.parametrize("name", list(MODELS))
def test_numbers_are_64_bits_wide(name: str) -> None:
    for field in arrow_schema(MODELS[name]):
        assert not field.name.endswith(("_ms", "_ns", "_bytes", "_count")) or field.type == pa.int64(), field.name


def test_a_type_outside_the_table_is_refused_by_name() -> None:
    class Odd(BaseModel):
        sums: dict[str, int] = Field(description="Sums.")

    with pytest.raises(UnsupportedFieldType, match=r"Odd\.sums has the type .*, which is not in the type table"):
        columns(Odd)


def test_the_type_table_is_this_one() -> None:
    assert {t.spark: t.arrow for t in TYPES.values()} == {
        "STRING": "string",
        "BIGINT": "int64",
        "DOUBLE": "float64",
        "BOOLEAN": "bool",
        "BINARY": "binary",
        "TIMESTAMP": "timestamp[us, tz=UTC]",
        "DATE": "date32",
        "ARRAY<STRING>": "list<string>",
        "MAP<STRING, DOUBLE>": "map<string, double>",
    }
