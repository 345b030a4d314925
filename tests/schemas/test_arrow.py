from datetime import UTC, date, datetime

import pyarrow as pa
import pytest

from schemas.arrow import arrow_schema, conform
from schemas.errors import RowsDoNotFit
from schemas.usage import UsageRow


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


def test_no_rows_conform_too() -> None:
    assert usage().slice(0, 0).schema == arrow_schema(UsageRow)
