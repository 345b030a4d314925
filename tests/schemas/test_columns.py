"""The forms of a model, rows made of them, and the files that are generated."""

from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, get_args

import pyarrow as pa
import pytest

import schemas.asyncapi
from schemas.arrow import arrow_schema, conform
from schemas.asyncapi import MODELS, generated_files
from schemas.columns import columns, json_schema
from schemas.names import RowsDoNotFit
from schemas.usage import UsageRow


@pytest.mark.parametrize("name", list(MODELS))
def test_all_forms_of_a_model_have_the_same_columns_and_nulls_where_it_takes_none(name: str) -> None:
    model, schema = MODELS[name], arrow_schema(MODELS[name])
    assert schema.names == list(json_schema(model)["properties"]) == list(model.model_fields)
    for field, column in zip(schema, columns(model), strict=True):
        takes_none = type(None) in get_args(model.model_fields[field.name].annotation)
        assert (field.nullable, column.nullable) == (takes_none, takes_none)


def usage(evaluated_at_ms: int = 1, **columns: object) -> pa.Table:
    given: dict[str, object] = {"sample_start_ms": [1_700_000_000_123], "last_event_ms": [1_700_000_000_500]}
    given |= {"broker_id": [""], "user": ["alice"], "client_id": ["etl"], "request_count": [1], **columns}
    about: dict[str, Any] = {"cluster": "c1", "query_id": "q1", "batch_id": 0, "quota_version": 0}
    return conform(pa.table(given), UsageRow, **about, evaluated_at_ms=evaluated_at_ms)


@pytest.mark.parametrize(
    ("evaluated_at_ms", "day"),
    [
        (0, date(1970, 1, 1)),
        (86_399_999, date(1970, 1, 1)),
        (86_400_000, date(1970, 1, 2)),
        (1_700_086_399_999, date(2023, 11, 15)),
    ],
)
def test_a_timestamp_is_that_of_its_milliseconds_and_the_day_that_of_the_evaluation(
    evaluated_at_ms: int, day: date
) -> None:
    (row,) = usage(evaluated_at_ms).to_pylist()
    assert (row["sample_start"], row["date"]) == (datetime(2023, 11, 14, 22, 13, 20, 123000, tzinfo=UTC), day)


@pytest.mark.parametrize("string_type", [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())])
def test_strings_of_every_layout_are_taken_and_a_missing_measure_is_null(string_type: pa.DataType) -> None:
    rows = usage(user=pa.array(["alice"]).cast(string_type), surplus=[1])
    assert rows.schema == arrow_schema(UsageRow)
    assert rows["produced_bytes"].to_pylist() == [None]


def test_what_may_not_be_null_is_refused_by_name() -> None:
    with pytest.raises(RowsDoNotFit, match="cannot be made into rows of UsageRow: no column 'sample_start_ms'"):
        conform(pa.table({"user": ["alice"]}), UsageRow, cluster="c1", query_id="q1", batch_id=0)
    with pytest.raises(RowsDoNotFit):
        usage(user=pa.array([None], pa.string()))


PACKAGE = Path(schemas.asyncapi.__file__).parent


@pytest.mark.parametrize("path", list(generated_files()))
def test_a_committed_file_is_what_the_models_say(path: str) -> None:
    assert (PACKAGE / path).read_text(encoding="utf-8") == generated_files()[path], "run python -m schemas.asyncapi"
