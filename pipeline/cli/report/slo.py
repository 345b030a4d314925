"""`kquota report slo`: minutes throttled per client and period, against a target."""

import sys
from typing import TYPE_CHECKING, Annotated, Final

import typer

from pipeline.cli.options import ConfigFile, Output, TablesRoot, flags
from pipeline.cli.report.reported_range import Html, Since, Until
from pipeline.cli.table_layout import Layout

if TYPE_CHECKING:
    from pipeline.cli.output import Row

_LAYOUT: Final = Layout(
    ("period", "user", "client_id", "owner", "minutes", "target", "held", "throttles", "renewals"),
    dropped_first=("renewals", "throttles", "held"),
)


def slo(
    target: Annotated[
        str, typer.Option(help="Most time throttled in a period (30m, 2h), or least share not throttled (99.9%).")
    ],
    since: Since = "28d",
    until: Until = "0s",
    by: Annotated[str, typer.Option(help="day, week (from Monday on) or month; in UTC.")] = "week",
    html: Html = None,
    config: ConfigFile = None,
    tables: TablesRoot = None,
    output: Output = "table",
) -> None:
    """Print in how many minutes each client was throttled, and whether that meets the target.

    A minute counts if the client was held in it for any time. Clients that were never throttled are left out.
    """
    from pipeline.cli.output import is_table, print_rows
    from pipeline.cli.report.reported_range import asked_range, kept_range, write_page
    from pipeline.reports.periods import known_period, periods
    from pipeline.reports.service_level import Target, held_by_period
    from pipeline.reports.service_level_page import service_level_page
    from pipeline.settings.loading import load_settings
    from pipeline.tables.from_settings import open_quota_table
    from pipeline.tables.reading.minute_sums import Minutes
    from pipeline.text_file import refuse_unwritable
    from quota.owners import Owners

    known_period(by)
    wanted = Target.parse(target)
    if html is not None:
        refuse_unwritable("--html", html)
    settings = load_settings(config, flags(tables=tables)).tables
    root, owners = settings.root, Owners(open_quota_table(settings).read().rows)
    usage, throttles = Minutes(root, "usage_by_minute"), Minutes(root, "throttle_by_minute")
    span_ms = kept_range(asked_range(since, until), usage)
    found = held_by_period(throttles, by, periods(by, *span_ms), wanted, owners.of)
    print_rows([one.to_row() for one in found], output, _LAYOUT, shown=_shown)
    if is_table(output):
        missed = [one for one in found if not one.is_met]
        clients = {(one.user, one.client_id) for one in missed}
        sys.stdout.write(
            f"{len({(one.user, one.client_id) for one in found})} of {usage.clients(*span_ms).num_rows} clients were "
            f"throttled; the target {target} a {by} was missed by {len(clients)}\n"
        )
    if html is not None:
        write_page(html, service_level_page(found, wanted, by, usage, throttles, span_ms))


def _shown(row: "Row") -> "Row":
    from quota.units import age_text, exact_text

    shown = {name: value for name, value in row.items() if name not in ("target_minutes", "held_seconds")}
    allowed = exact_text(round(row["target_minutes"], 1))
    return shown | {"target": f"{row['target']} ({allowed})", "held": age_text(row["held_seconds"] * 1000)}
