"""Every SQL text of deploy/ and of the pages, run by Spark on tables that a job has written."""

import re

import pytest

from tests.deploy.sql_texts import QUOTA_HISTORY, VIEWS, panel_queries, statements, widget_queries
from tests.deploy.written_tables import SCHEMA, Row, Written
from tests.pages.blocks import PAGES, blocks_of

pytestmark = pytest.mark.spark

FILES = (VIEWS, QUOTA_HISTORY)
VIEW_NAMES = [name for path in FILES for name in re.findall(r"CREATE OR REPLACE VIEW (\w+)", path.read_text("utf-8"))]
PANELS = panel_queries(SCHEMA, "1970-01-01 00:00:00", "2999-01-01 00:00:00")
WIDGETS = widget_queries()


def shows_something(rows: list[Row]) -> bool:
    return bool(rows) and all(any(row[name] is not None for row in rows) for name in rows[0])


# Columns that are null in every row of such tables: nothing in them has this value.
NEVER_HERE = {"quota_edits": {"consumer_byte_rate_before", "request_percentage_before"}}


@pytest.mark.parametrize("name", VIEW_NAMES)
def test_a_view_has_rows_and_a_comment(written: Written, name: str) -> None:
    rows = written.view(name)
    assert rows
    empty = {column for column in rows[0] if all(row[column] is None for row in rows)}
    assert empty <= NEVER_HERE.get(name, set())
    described = written.sql(f"DESCRIBE TABLE EXTENDED {name}")
    assert next(row["data_type"] for row in described if row["col_name"] == "Comment")


@pytest.mark.parametrize("title", PANELS)
def test_a_panel_of_grafana_shows_something(written: Written, title: str) -> None:
    assert shows_something(written.answer(PANELS[title]))


@pytest.mark.parametrize("name", WIDGETS)
def test_a_widget_of_databricks_shows_something(written: Written, name: str) -> None:
    assert shows_something(written.answer(WIDGETS[name]))


EXAMPLES = [
    statement
    for page in PAGES
    for block in blocks_of(page.read_text("utf-8"))
    if block.language == "sql"
    for statement in statements(block.text)
]


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_of_the_pages_shows_something(written: Written, example: str) -> None:
    assert shows_something(written.answer(example))
