"""`kquota throttles`: who is throttled now, and why."""

import sys
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from pipeline.cli.options import ConfigFile, Output, TablesRoot, flags
from pipeline.cli.quotas.entity_flags import ClientNames, for_client
from pipeline.cli.quotas.errors import QuotaUsage
from pipeline.cli.table_layout import Layout
from pipeline.cli.throttles import listing, tail
from pipeline.clock import wall_ms
from pipeline.errors import printable

if TYPE_CHECKING:
    from pipeline.cli.output import Row
    from pipeline.settings.model import Settings

app = typer.Typer(help="See who is throttled, and why.", no_args_is_help=True)

_MISMATCHES: Final = Layout(dropped_first=("query_id", "mode"), texts=("difference",))


app.command("list")(listing.list_)
app.command("tail")(tail.tail)


@app.command("explain")
@for_client
def explain(
    user: Annotated[
        str | None,
        typer.Argument(
            metavar="DECISION|USER",
            help="The beginning of a decision_id; or a user, with a client-id after it.",
            show_default=False,
        ),
    ] = None,
    client_id: Annotated[
        str | None,
        typer.Argument(metavar="CLIENT_ID", help="The client-id, where the first is a user.", show_default=False),
    ] = None,
    *,
    client: ClientNames,
    verify: Annotated[
        bool, typer.Option("--verify", help="Recompute the row from the usage of its sensor; 1 if it differs.")
    ] = False,
    config: ConfigFile = None,
    tables: TablesRoot = None,
    output: Output = "table",
) -> None:
    """Say why a client was throttled: O, T, W, X, the samples behind them, the edit that set T, and what followed."""
    from pipeline.cli.output import is_table, print_rows
    from pipeline.cli.throttles.explain import print_story
    from pipeline.settings.loading import load_settings
    from pipeline.story.decision import origin_line
    from pipeline.story.on_brokers import on_brokers_row
    from pipeline.story.records import why_nothing
    from pipeline.tables.brokers.enforced import enforced_for
    from pipeline.tables.from_settings import open_quota_table
    from pipeline.tables.throttles.history import origin_of_bound, story_of
    from pipeline.tables.throttles.unpublished import why_unpublished

    settings = load_settings(config, flags(tables=tables))
    story = story_of(settings.tables.root, _decision(settings.tables.root, client, user, client_id))
    quotas = open_quota_table(settings.tables)
    origin = origin_of_bound(quotas, story.decision)
    max_age_ms = settings.stream.max_decision_age_ms
    limits = (max_age_ms, settings.purgatory.min_hold_ms)
    unpublished = None if story.events else why_unpublished(settings.tables.root, quotas, story.decision, *limits)
    decision = story.decision
    on_brokers = enforced_for(settings.tables.root, decision["user"], decision["client_id"], [decision["quota_type"]])
    if is_table(output):
        print_story(story, settings, origin, unpublished, on_brokers)
    else:
        document = {
            "decision": story.decision,
            "bound_set": origin_line(story.decision, origin),
            "unpublished": None if unpublished is None else why_nothing(unpublished, max_age_ms),
            "on_brokers": [on_brokers_row(one) for one in on_brokers],
        }
        print_rows([{**document, "events": story.events, "samples": story.samples}], output)
    if verify:
        _verify_one(settings, story.decision)


@app.command("averages")
def averages(
    at: Annotated[str, typer.Option("--at", help="The end of the minute: 5m (ago), ISO 8601, or epoch ms.")] = "0s",
    config: ConfigFile = None,
    tables: TablesRoot = None,
    output: Output = "table",
) -> None:
    """Print the average throttle time of each sensor over one minute, and the share of exempt requests.

    These are the throttle-time and exempt-request-time of a broker's own metrics, for the whole cluster.
    """
    from pipeline.cli.instants import parse_instant
    from pipeline.cli.output import is_table, print_rows
    from pipeline.settings.loading import load_settings
    from pipeline.tables.reading.last_minute import last_minute

    root = load_settings(config, flags(tables=tables)).tables.root
    found = last_minute(root, parse_instant("--at", at, wall_ms()))
    rows = found.throttle_times.to_pylist()
    document = {"throttle_times": rows, "exempt_request_percentage": found.exempt_percentage}
    print_rows(rows, output, shown=_shown_average, document=document)
    if is_table(output):
        sys.stderr.write(f"exempt requests took {found.exempt_percentage:.2f} % of one thread\n")


@app.command("verify")
def verify(
    since: Annotated[
        str | None,
        typer.Option(help="First instant: 2h (ago), ISO 8601 in UTC, or epoch ms. Default: all that is kept."),
    ] = None,
    until: Annotated[str, typer.Option(help="Last instant, in the same formats.")] = "0s",
    limit: Annotated[int, typer.Option(help="How many mismatches are shown.", min=0)] = 20,
    config: ConfigFile = None,
    tables: TablesRoot = None,
    output: Output = "table",
) -> None:
    """Repeat all decisions of a range from the kept usage and compare them; exits with 1 if a stored one differs."""
    from pipeline.cli.instants import parse_instant
    from pipeline.cli.output import is_table, print_rows
    from pipeline.cli.progress import progress_bar
    from pipeline.cli.throttles.verification import difference_row, summary
    from pipeline.replay.verification import verify as verify_range
    from pipeline.settings.loading import load_settings
    from pipeline.tables.from_settings import open_quota_table
    from pipeline.tables.quotas.source import QuotaSource

    settings = load_settings(config, flags(tables=tables))
    now_ms = wall_ms()
    ends = parse_instant("--since", since, now_ms) if since else 0, parse_instant("--until", until, now_ms)
    quotas = QuotaSource(open_quota_table(settings.tables), settings.share)
    with progress_bar("replaying usage") as progress:
        found = verify_range(settings.tables.root, settings.scope or quotas.scope, quotas.at, *ends, progress)
    rows = [difference_row(mismatch) for mismatch in found.mismatches[:limit]]
    print_rows(rows, output, _MISMATCHES)
    stream = sys.stdout if is_table(output) else sys.stderr
    stream.write(summary(found) + "\n")
    if found.mismatches:
        raise typer.Exit(1)


def _verify_one(settings: "Settings", decision: dict[str, Any]) -> None:
    from pipeline.cli.throttles.verification import verdict
    from pipeline.replay.verification import verify_decision
    from pipeline.tables.from_settings import open_quota_table
    from pipeline.tables.quotas.source import QuotaSource

    quotas = QuotaSource(open_quota_table(settings.tables), settings.share)
    found = verify_decision(settings.tables.root, settings.scope or quotas.scope, quotas.at, decision)
    sys.stderr.write(f"{printable(verdict(found))}\n")
    if found.difference is not None:
        raise typer.Exit(1)


def _decision(root: str, client: ClientNames, first: str | None, client_id: str | None) -> "Row":
    """The row of `decisions` that is meant: by the beginning of its id, or the newest one of a client."""
    from pipeline.tables.throttles.history import decision_with_id, newest_decision

    if first and client_id is None and client == (None, None):
        return decision_with_id(root, first)
    user, client_id = client.or_arguments(first, client_id)
    if user is None and client_id is None:
        message = "'DECISION' must be given; got none"
        raise QuotaUsage(message, "write the beginning of a decision_id, or a user and a client-id")
    return newest_decision(root, user, client_id)


def _shown_average(row: "Row") -> "Row":
    return {**row, "throttle_time_avg_ms": f"{row['throttle_time_avg_ms']:.1f}"}
