"""`kquota report chargeback`: bytes and request time by owner and period."""

import sys
from typing import TYPE_CHECKING, Annotated, Final

import typer

from pipeline.cli.options import ConfigFile, Output, TablesRoot, flags
from pipeline.cli.report.reported_range import Html, Since, Until
from pipeline.cli.table_layout import Layout

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pipeline.cli.output import Row
    from pipeline.reports.chargeback import Charge

_BY_OWNER: Final = Layout(
    ("period", "owner", "clients", "produced", "fetched", "request_time", "requests"),
    dropped_first=("requests", "clients", "request_time"),
)
_BY_CLIENT: Final = Layout(
    ("period", "owner", "user", "client_id", "produced", "fetched", "request_time", "requests"),
    dropped_first=("requests", "request_time"),
)
_NOBODY: Final = "no owner"


def chargeback(
    since: Since = "30d",
    until: Until = "0s",
    by: Annotated[str, typer.Option(help="day, week (from Monday on) or month; in UTC.")] = "month",
    clients: Annotated[bool, typer.Option("--clients", help="A row for each client of an owner.")] = False,
    html: Html = None,
    config: ConfigFile = None,
    tables: TablesRoot = None,
    output: Output = "table",
) -> None:
    """Print what the clients of each owner used: bytes produced and fetched, and request time.

    The owner is that of the most specific quota row that covers the client and names one, at the time of the usage; or
    the first one named later.
    """
    from pipeline.cli.output import is_table, print_rows
    from pipeline.cli.report.reported_range import asked_range, kept_range, write_page
    from pipeline.reports.chargeback import charges
    from pipeline.reports.chargeback_page import chargeback_page
    from pipeline.reports.owner_times import OwnerTimes
    from pipeline.reports.periods import known_period, periods
    from pipeline.settings.loading import load_settings
    from pipeline.tables.from_settings import open_quota_table
    from pipeline.tables.reading.minute_sums import Minutes
    from pipeline.text_file import refuse_unwritable

    known_period(by)
    if html is not None:
        refuse_unwritable("--html", html)
    settings = load_settings(config, flags(tables=tables)).tables
    asked = asked_range(since, until)
    owners = OwnerTimes.of(open_quota_table(settings), asked[0])
    minutes = Minutes(settings.root, "usage_by_minute")
    span_ms = kept_range(asked, minutes)
    found = charges(minutes, owners, periods(by, *span_ms))
    rows = [row for one in found for row in one.client_rows()] if clients else [one.to_row() for one in found]
    print_rows(rows, output, _BY_CLIENT if clients else _BY_OWNER, shown=_shown)
    if is_table(output):
        _tell_unowned(found)
    if html is not None:
        write_page(html, chargeback_page(found, minutes, span_ms))


def _tell_unowned(found: "Sequence[Charge]") -> None:
    unowned = {client for one in found if one.owner is None for client in one.clients}
    if not unowned:
        return
    from pipeline.command_line import command_text
    from pipeline.errors import printable

    user, client_id = min(unowned)
    command = command_text("quotas", "effective", user, *([client_id] if client_id else []))
    sys.stderr.write(
        f"clients without owner: {len(unowned)}; see them with --clients, and which quotas could name one: "
        f"{printable(command)}\n"
    )


def _shown(row: "Row") -> "Row":
    from quota.units import rate_text, seconds_text

    shown = dict(row) | {"owner": _NOBODY if row["owner"] is None else row["owner"]}
    for name in ("produced", "fetched"):
        shown[name] = rate_text("producer_byte_rate", shown.pop(f"{name}_bytes")).removesuffix("/s")
    shown["request_time"] = seconds_text(shown.pop("request_time_ns") / 1e9)
    shown["exempt_time"] = seconds_text(shown.pop("exempt_time_ns") / 1e9)
    shown["requests"] = shown.pop("request_count")
    return shown
