"""What the panels of Grafana and the widgets of Databricks add up to, against the raw rows."""

from collections.abc import Callable
from typing import Final

import pytest

from schemas.throttle_record import verb
from tests.deploy.raw_rows import complete_usage, used
from tests.deploy.sql_texts import panel_queries, widget_queries
from tests.deploy.written_tables import SCHEMA, Written

pytestmark = pytest.mark.spark

Total = Callable[[Written], float]


def of_table(name: str, column: str) -> Total:
    """The sum of a column over all rows of a table."""
    return lambda written: sum(row[column] or 0 for row in written.rows(name))


def of_usage(measure: str) -> Total:
    """The sum of a measure over the usage that is rolled up."""
    return lambda written: sum(used(row)[measure] for row in complete_usage(written))


def begun(written: Written) -> float:
    """The number of throttles that began."""
    return sum(verb(row) == "throttle" for row in written.rows("throttle_events"))


def ages_ms(written: Written) -> float:
    """The ages of all micro-batches."""
    return float(sum(row["processed_at_ms"] - row["evaluated_at_ms"] for row in written.rows("batches")))


def count_of(name: str) -> Total:
    """The number of rows of a table."""
    return lambda written: len(written.rows(name))


HELD_MS: Final = of_table("throttle_by_minute", "held_ms")
TEXTS: Final = {**panel_queries(SCHEMA, "1970-01-01 00:00:00", "2999-01-01 00:00:00"), **widget_queries()}


@pytest.mark.parametrize(
    ("name", "column", "unit", "total"),
    [
        ("Dead letters", "dead", 1, of_table("batches", "dead_count")),
        ("Held in all", "held_seconds", 1_000, HELD_MS),
        ("Time held, by client", "held_seconds", 1_000, HELD_MS),
        ("Throttles begun, by owner", "throttles", 1, begun),
        ("Produced, by owner", "bytes_per_second", 60, of_usage("produced_bytes")),
        ("Fetched, by owner", "bytes_per_second", 60, of_usage("fetched_bytes")),
        ("Chargeback by month", "produced_bytes", 1, of_usage("produced_bytes")),
        ("Chargeback by month", "fetched_bytes", 1, of_usage("fetched_bytes")),
        ("Chargeback by month", "request_seconds", 1e9, of_usage("request_time_ns")),
        ("Held by day", "held_seconds", 1_000, HELD_MS),
        ("Held by day", "throttles", 1, begun),
        ("Versions of the quotas that decided", "batches", 1, count_of("batches")),
        ("Dead letters, by cause", "letters", 1, count_of("dead_letters")),
        ("Events by micro-batch", "good_count", 1, of_table("batches", "good_count")),
        ("Events by micro-batch", "dead_count", 1, of_table("batches", "dead_count")),
        ("Age of usage when it is collected", "age_seconds", 1_000, ages_ms),
        ("held_chart", "sum(held_seconds)", 1_000, HELD_MS),
        ("held_clients", "sum(held_seconds)", 1_000, HELD_MS),
        ("produced", "sum(produced_bytes)", 1, of_usage("produced_bytes")),
        ("fetched", "sum(fetched_bytes)", 1, of_usage("fetched_bytes")),
        ("chargeback_table", "request_seconds", 1e9, of_usage("request_time_ns")),
        ("chargeback_table", "request_count", 1, of_usage("request_count")),
        ("events_chart", "sum(good_count)", 1, of_table("batches", "good_count")),
        ("dead_table", "letters", 1, count_of("dead_letters")),
        ("versions_table", "batches", 1, count_of("batches")),
    ],
)
def test_a_panel_or_widget_adds_up_to_the_raw_rows(
    written: Written, name: str, column: str, unit: float, total: Total
) -> None:
    expected = total(written)
    assert expected > 0
    assert sum(float(row[column] or 0) for row in written.answer(TEXTS[name])) * unit == pytest.approx(expected)


def test_how_many_are_throttled_is_how_many_rows_say_why(written: Written) -> None:
    counts = [*written.sql(TEXTS["Clients throttled now"]), *written.sql(TEXTS["throttled_count"])]
    told = {value for row in counts for value in row.values()}
    rows = {len(written.sql(TEXTS[name])) for name in ("Throttled now, and why", "throttled_table")}
    assert told == rows != {0}
    assert (len(counts), len(rows)) == (2, 1)
