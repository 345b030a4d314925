"""`kquota throttles`: who is held now, and why."""

import sys
import time
from typing import Annotated, Any

import typer

from pipeline.cli.options import ConfigFile, Output, TablesRoot, flags

app = typer.Typer(help="See who is throttled, and why.", no_args_is_help=True)

_COLUMNS = ("user", "client_id", "quota_type", "O", "T", "W", "for", "until", "cause", "decision")


@app.command("list")
def list_(
    config: ConfigFile = None,
    tables: TablesRoot = None,
    everything: Annotated[bool, typer.Option("--all", help="Also ended throttles and releases, newest first.")] = False,
    limit: Annotated[int, typer.Option(help="How many records --all shows.", min=1)] = 50,
    output: Output = "table",
) -> None:
    """List the clients that are throttled now; exits with 3 if there are none."""
    from pipeline.cli.output import print_rows
    from pipeline.settings.loading import load_settings
    from pipeline.throttle.history import recent_events, running_throttles

    root = load_settings(config, flags(tables=tables)).tables.root
    rows = recent_events(root, limit) if everything else running_throttles(root, time.time_ns() // 1_000_000)
    columns = (("action", *_COLUMNS) if everything else _COLUMNS) if output == "table" else None
    print_rows([_shown(row) for row in rows] if output == "table" else rows, output, columns)
    if not rows:
        sys.stderr.write("no throttles\n")
        raise typer.Exit(3)


@app.command("explain")
def explain(
    decision: Annotated[str, typer.Argument(help="Beginning of a decision_id; or a user, with a client-id after it.")],
    client_id: Annotated[str | None, typer.Argument(help="The client-id, where the first is a user.")] = None,
    config: ConfigFile = None,
    tables: TablesRoot = None,
    output: Output = "table",
) -> None:
    """Say why a client was throttled: O, T, W, X, the samples behind them, the quota, and what followed."""
    from pipeline.cli.explain import print_story
    from pipeline.cli.output import print_rows
    from pipeline.settings.loading import load_settings
    from pipeline.throttle.history import story_of

    settings = load_settings(config, flags(tables=tables))
    story = story_of(settings.tables.root, decision, client_id)
    if output == "table":
        print_story(story, settings.engine.sample_window_ms)
    else:
        print_rows([{"decision": story.decision, "events": story.events, "samples": story.samples}], output)


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    from pipeline.throttle.line import clock_time, seconds

    bound = row["bound"]
    return {
        "action": row["action"],
        "user": row["user"],
        "client_id": row["client_id"],
        "quota_type": row["quota_type"],
        "O": f"{row['observed']:.1f}",
        "T": "none" if bound is None else f"{bound:.1f}",
        "W": seconds(row["window_ms"]),
        "for": seconds(row["throttle_time_ms"]),
        "until": clock_time(row["throttled_until_ms"]),
        "cause": row["cause"],
        "decision": row["decision_id"],
    }
