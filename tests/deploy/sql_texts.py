"""The SQL of deploy/: statements of the files, queries of the panels and of the widgets."""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from tests.deploy.commands import DEPLOY

VIEWS: Final = DEPLOY / "sql" / "views.sql"
QUOTA_HISTORY: Final = DEPLOY / "sql" / "quota_history.sql"
SQL_BOARD: Final = DEPLOY / "grafana" / "kquota-sql.json"
AI_BI_BOARD: Final = DEPLOY / "databricks" / "kquota.lvdash.json"

_TIME_FILTER = re.compile(r"\$__timeFilter\(([a-zA-Z0-9_-]+)\)")
_VIEW = re.compile(r"CREATE OR REPLACE VIEW (\w+)")
_AGGREGATE = re.compile(r"^(SUM|MAX|COUNT)\(")


def statements(text: str) -> Iterator[str]:
    """The statements of a file, without comments. A semicolon is only where a statement ends."""
    bare = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("--"))
    yield from (statement.strip() for statement in bare.split(";") if statement.strip())


def view_of(statement: str) -> str | None:
    """The view that a statement makes."""
    found = _VIEW.match(statement)
    return found[1] if found else None


def read_board(path: Path) -> dict[str, Any]:
    """A dashboard's JSON."""
    loaded: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return loaded


def panel_queries(schema: str, begin: str, end: str) -> Mapping[str, str]:
    """Title of each Grafana panel -> its SQL, with variables and macros filled in as Grafana and the plugin do.

    Args:
        schema: What the variable `schema` is set to.
        begin: Begin of the dashboard's time range, as `2026-11-23 00:00:00`.
        end: End of it.
    """
    found = {}
    for panel in read_board(SQL_BOARD)["panels"]:
        for target in panel.get("targets", ()):
            text = target["rawSqlQuery"].replace("${schema}", schema)
            found[panel["title"]] = _TIME_FILTER.sub(rf"\1 BETWEEN '{begin}' AND '{end}'", text)
    return found


def widgets() -> Iterator[dict[str, Any]]:
    """The widgets of the AI/BI dashboard that show data."""
    for page in read_board(AI_BI_BOARD)["pages"]:
        yield from (item["widget"] for item in page["layout"] if "queries" in item["widget"])


def widget_queries() -> Mapping[str, str]:
    """Name of each widget -> the SQL that it comes to: its fields over its dataset, grouped where it sums."""
    datasets = {dataset["name"]: "".join(dataset["queryLines"]) for dataset in read_board(AI_BI_BOARD)["datasets"]}
    found = {}
    for widget in widgets():
        (query,) = (one["query"] for one in widget["queries"])
        # COUNT(`*`) is how these dashboards write COUNT(*).
        fields = [(field["expression"].replace("`*`", "*"), field["name"]) for field in query["fields"]]
        columns = ", ".join(f"{expression} AS `{name}`" for expression, name in fields)
        is_grouped = not query["disaggregated"] and not all(_AGGREGATE.match(expression) for expression, _ in fields)
        text = f"SELECT {columns} FROM ({datasets[query['datasetName']]})"  # noqa: S608
        found[widget["name"]] = text + (" GROUP BY ALL" if is_grouped else "")
    return found
