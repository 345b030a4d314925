"""`kquota throttles list`: who is throttled now, or was since an instant."""

import sys
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from pipeline.cli.options import ConfigFile, Output, TablesRoot, flags
from pipeline.cli.quota_type import QuotaTypeOption, quota_type_of
from pipeline.cli.quotas.entity_flags import ClientNames, for_client
from pipeline.cli.table_layout import Layout
from pipeline.clock import wall_ms
from quota.units import rate_text

if TYPE_CHECKING:
    from pipeline.cli.output import Row

_COLUMNS: Final = ("user", "client_id", "type", "O", "T", "W", "for", "until", "cause", "decision")
_RUNNING: Final = Layout(_COLUMNS, dropped_first=("W", "cause", "for"))
_RECENT: Final = Layout(("at", "action", *_COLUMNS), dropped_first=("W", "for", "until", "cause", "T"))


@for_client
def list_(
    client: ClientNames,
    quota_type: QuotaTypeOption = None,
    since: Annotated[
        str | None,
        typer.Option(
            help="As --all, from this instant on: 2h (ago), ISO 8601 in UTC, or epoch ms.",
            show_default=False,
        ),
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Also throttles that have ended, and releases; newest first.")
    ] = False,
    limit: Annotated[int, typer.Option(help="How many records --all and --since show.", min=1)] = 50,
    watch: Annotated[
        bool, typer.Option("--watch", help="Print again whenever something has changed, until Ctrl-C.")
    ] = False,
    config: ConfigFile = None,
    tables: TablesRoot = None,
    output: Output = "table",
) -> None:
    """List the clients that are throttled now; exits with 3 if there are none.

    With --watch it does not exit before Ctrl-C or SIGTERM, and then with 0.
    """
    from pipeline.cli.instants import parse_instant
    from pipeline.settings.loading import load_settings
    from pipeline.tables.throttles.listed import Wanted, recent_events, running_throttles

    since_ms = None if since is None else parse_instant("--since", since, wall_ms())
    wanted = Wanted(client.user, client.client_id, quota_type_of(quota_type), since_ms)
    root = load_settings(config, flags(tables=tables)).tables.root
    is_recent = everything or since is not None

    def read() -> list[dict[str, Any]]:
        # One more than is shown, to know whether there are more.
        return recent_events(root, limit + 1, wanted) if is_recent else running_throttles(root, wall_ms(), wanted)

    def show(rows: list[dict[str, Any]]) -> None:
        _print(rows, output, limit if is_recent else None)

    if watch:
        _watch(read, show, output)
        return
    rows = read()
    show(rows)
    if not rows:
        raise typer.Exit(3)


def _watch(read: Any, show: Any, output: str) -> None:
    from pipeline.cli.closed_pipe import until_reader_goes
    from pipeline.cli.output import is_table
    from pipeline.cli.signals import wait_until_stopped
    from pipeline.cli.watch import watch
    from pipeline.throttle.shown import clock_time

    prints = 0

    def show_again(rows: list[dict[str, Any]]) -> None:
        nonlocal prints
        if prints:
            sys.stdout.write("\n" if is_table(output) else "---\n" if output == "yaml" else "")
        sys.stderr.write(f"{clock_time(wall_ms())} UTC, throttles: {len(rows)}\n")
        show(rows)
        sys.stdout.flush()
        prints += 1

    with until_reader_goes(), wait_until_stopped() as wait:
        watch(read, show_again, wait)


def _print(rows: list[dict[str, Any]], output: str, limit: int | None) -> None:
    """Print records; `limit` is that of recent ones, None for running throttles."""
    from pipeline.cli.output import print_rows

    print_rows(rows[:limit], output, _RUNNING if limit is None else _RECENT, shown=_shown)
    if limit is not None and len(rows) > limit:
        sys.stderr.write(f"the newest {limit} records; see more with --limit\n")
    if not rows:
        sys.stderr.write("no throttles\n")


def _shown(row: "Row") -> "Row":
    from pipeline.throttle.shown import SHOWN_DIGITS, clock_time, seconds
    from schemas.throttle_record import is_extension

    bound, quota_type = row["bound"], row["quota_type"]
    extends = is_extension(row)
    shown = {
        "at": clock_time(row["evaluated_at_ms"]),
        "action": "extend" if extends else row["action"],
        "user": row["user"],
        "client_id": row["client_id"],
        "type": quota_type.partition("_")[0],
        "O": rate_text(quota_type, row["observed"]),
        "T": "none" if bound is None else rate_text(quota_type, bound),
        "W": seconds(row["window_ms"]),
        "for": seconds(row["throttle_time_ms"]),
        "until": clock_time(row["throttled_until_ms"]),
        "cause": "extended" if extends else row["cause"],
        "decision": row["decision_id"][:SHOWN_DIGITS],
    }
    return shown | {name: value for name, value in row.items() if name not in shown}
