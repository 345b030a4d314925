"""The shape of the dashboards in deploy/, without what shows them: Grafana and Databricks cannot be run here.

That of the AI/BI dashboard is what Databricks exports: https://github.com/databricks/bundle-examples has such files.
"""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.commands import DEPLOY
from tests.deploy.sql_texts import AI_BI_BOARD, SQL_BOARD, read_board, widgets

GRAFANA_BOARDS = (DEPLOY / "grafana" / "kquota.json", SQL_BOARD)
GRAFANA_COLUMNS = 24
AI_BI_COLUMNS = 6
VERSIONS = {"counter": 2, "table": 2, "bar": 3, "line": 3}


def cells(place: dict[str, int], width: str, height: str) -> list[tuple[int, int]]:
    return [(place["x"] + column, place["y"] + row) for column in range(place[width]) for row in range(place[height])]


def assert_no_overlap(places: list[list[tuple[int, int]]], columns: int) -> None:
    taken = Counter(cell for place in places for cell in place)
    assert max(taken.values()) == 1
    assert max(column for column, _ in taken) < columns


@pytest.mark.parametrize("path", GRAFANA_BOARDS, ids=lambda path: path.name)
def test_panels_of_grafana_have_places_ids_and_descriptions_of_their_own(path: Path) -> None:
    board = read_board(path)
    panels = board["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert_no_overlap([cells(panel["gridPos"], "w", "h") for panel in panels], GRAFANA_COLUMNS)
    for panel in panels:
        if panel["type"] != "row":
            assert panel["description"] or path != SQL_BOARD
            assert panel["fieldConfig"]["defaults"]["unit"]
            assert panel["datasource"]["uid"] == "${datasource}"
            assert all(target["datasource"] == panel["datasource"] for target in panel["targets"])
    source = next(variable for variable in board["templating"]["list"] if variable["name"] == "datasource")
    assert {panel["datasource"]["type"] for panel in panels if panel["type"] != "row"} == {
        "prometheus" if path != SQL_BOARD else source["query"]
    }


def test_pages_are_grids_of_widgets_that_do_not_overlap() -> None:
    pages = read_board(AI_BI_BOARD)["pages"]
    items = [item for page in pages for item in page["layout"]]
    assert len({item["widget"]["name"] for item in items}) == len(items)
    for page in pages:
        assert (page["pageType"], page["layoutVersion"]) == ("PAGE_TYPE_CANVAS", "GRID_V1")
        assert_no_overlap([cells(item["position"], "width", "height") for item in page["layout"]], AI_BI_COLUMNS)
    texts = [item["widget"] for item in items if "queries" not in item["widget"]]
    assert all(set(text) == {"name", "multilineTextboxSpec"} for text in texts)


def shown_fields(encodings: dict[str, Any]) -> list[str]:
    columns = encodings.get("columns", list(encodings.values()))
    return [column["fieldName"] for column in columns]


@pytest.mark.parametrize("widget", list(widgets()), ids=lambda widget: widget["name"])
def test_a_widget_shows_the_fields_that_it_asks_for(widget: dict[str, Any]) -> None:
    spec = widget["spec"]
    (query,) = widget["queries"]
    assert query["name"] == "main_query"
    assert spec["version"] == VERSIONS[spec["widgetType"]]
    assert spec["frame"]["showTitle"]
    assert spec["frame"]["title"]
    assert sorted(shown_fields(spec["encodings"])) == sorted(field["name"] for field in query["query"]["fields"])
