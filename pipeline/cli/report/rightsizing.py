"""`kquota report rightsizing`: bounds against what is used of them, and a candidate with bounds that fit."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from pipeline.cli.options import ConfigFile, Output, TablesRoot, flags
from pipeline.cli.report.reported_range import Html, Since, Until
from pipeline.cli.table_layout import Layout

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pipeline.cli.output import Row
    from pipeline.reports.rightsizing import Sized
    from pipeline.tables.quotas.table import QuotaTableState

_LAYOUT: Final = Layout(
    ("user", "client_id", "type", "T", "p95", "p99", "advice", "suggested", "throttled", "sensors"),
    dropped_first=("sensors", "throttled", "p95"),
)


def rightsizing(
    since: Since = "7d",
    until: Until = "0s",
    headroom: Annotated[float, typer.Option(help="How far above p99 a bound should be, in percent.", min=0)] = 20,
    candidate: Annotated[
        Path | None,
        typer.Option("--candidate", help="Write all quotas, with the bounds suggested, to this file: for what-if -f."),
    ] = None,
    html: Html = None,
    config: ConfigFile = None,
    tables: TablesRoot = None,
    output: Output = "table",
) -> None:
    """Compare each bound T with the 95th and 99th percentile of the rate per minute, and suggest bounds that fit.

    Only minutes in which the bound was used count. The bound of a client that was throttled is never lowered, because
    it sent less than it wanted to. Bounds of default entities are compared, and not changed in the candidate.
    """
    from pipeline.cli.output import is_table, print_rows
    from pipeline.cli.report.reported_range import asked_range, kept_range, write_page
    from pipeline.reports.rightsizing import Question, sized
    from pipeline.reports.rightsizing_page import rightsizing_page
    from pipeline.settings.loading import load_settings
    from pipeline.tables.from_settings import open_quota_table
    from pipeline.tables.quotas.source import QuotaSource
    from pipeline.tables.reading.minute_sums import Minutes
    from pipeline.text_file import refuse_unwritable

    for option, path in (("--html", html), ("--candidate", candidate)):
        if path is not None:
            refuse_unwritable(option, path)
    settings = load_settings(config, flags(tables=tables))
    table = open_quota_table(settings.tables)
    in_force = QuotaSource(table)
    snapshot, root = in_force.pin(), settings.tables.root
    usage = Minutes(root, "usage_by_minute")
    span_ms = kept_range(asked_range(since, until), usage)
    held = Minutes(root, "throttle_by_minute").held_by_client(*span_ms).to_pylist()
    throttled = frozenset((row["user"], row["client_id"]) for row in held if row["minutes"])
    per_broker = (settings.scope or in_force.scope) == "broker"
    found = sized(usage, Question(snapshot, per_broker, span_ms, throttled, headroom))
    print_rows([one.to_row() for one in found], output, _LAYOUT, shown=_shown)
    if is_table(output):
        _tell_defaults(found)
    if candidate is not None:
        _write_candidate(candidate, table.read(snapshot.version), found)
    if html is not None:
        write_page(html, rightsizing_page(found, headroom, snapshot.version, span_ms))


def _tell_defaults(found: "Sequence[Sized]") -> None:
    if any(one.is_default and one.advice in ("raise", "lower") for one in found):
        sys.stderr.write("p95 and p99 of a default are those of its busiest sensor; a candidate keeps its bound\n")


def _write_candidate(path: Path, quotas: "QuotaTableState", found: "Sequence[Sized]") -> None:
    from pipeline.cli.output import document_text
    from pipeline.command_line import command_text
    from pipeline.reports.rightsizing import candidate_rows
    from pipeline.tables.quotas.file import to_document

    rows = candidate_rows(quotas.rows, found)
    path.write_text(document_text(to_document(rows), "yaml"), encoding="utf-8")
    changed = sum(one.new_bound != one.bound for one in found)
    sys.stderr.write(f"written: {path}, {changed} bounds changed; try it: {command_text('what-if', '-f', str(path))}\n")


def _shown(row: "Row") -> "Row":
    from quota.units import rate_text

    def rate(value: float | None) -> str | None:
        return None if value is None else rate_text(row["quota_type"], value)

    shown: dict[str, Any] = {
        "user": row["user"],
        "client_id": row["client_id"],
        "type": row["quota_type"].partition("_")[0],
        "T": rate(row["bound"]),
        **{name: rate(row[name]) for name in ("p95", "p99", "suggested")},
        "advice": row["advice"],
        "throttled": "yes" if row["throttled"] else "no",
        "sensors": row["sensors"],
    }
    return shown
