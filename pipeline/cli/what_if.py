"""`kquota what-if`: kept usage under a candidate quota table."""

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipeline.cli.options import ConfigFile, Output, TablesRoot, flags

if TYPE_CHECKING:
    from collections.abc import Collection

    from pipeline.replay.outcome import ReplayResult
    from pipeline.replay.replay_request import ReplayOrder
    from pipeline.replay.report import Totals
    from pipeline.settings.model import Settings, SparkSettings
    from quota.snapshot import QuotaSnapshot

_SOURCES = {"usage_by_second": "one evaluation a second", "usage": "the exact batches"}
_PLACES = ("local", "spark")
_CANDIDATE_VERSION = 0
# Batches of the warm-up, and those that lag behind a commit, were decided with earlier versions.
_EARLIER_VERSIONS_MS = 600_000
_COLUMNS = (
    "user",
    "client_id",
    "change",
    "windows_live",
    "windows_candidate",
    "throttle_seconds_live",
    "throttle_seconds_candidate",
    "bytes_deferred_candidate",
    "throttle_seconds_happened",
)


def what_if(
    quotas: Annotated[Path, typer.Option("--quotas", help="The candidate: all its quotas, JSON or YAML.")],
    since: Annotated[str, typer.Option(help="Begin: 24h (ago), ISO 8601 in UTC, or epoch ms.")] = "24h",
    until: Annotated[str, typer.Option(help="End, in the same ways.")] = "0s",
    source: Annotated[
        str, typer.Option("--from", help="usage_by_second (one evaluation a second) or usage (the exact batches).")
    ] = "usage_by_second",
    on: Annotated[
        str,
        typer.Option(
            "--on",
            help="local: a process for each core; or spark: the executors of `spark.master`, for ranges of many days.",
        ),
    ] = "local",
    fail_if: Annotated[
        list[str] | None, typer.Option("--fail-if", help="metric>number; exits with 1 if it holds. May be repeated.")
    ] = None,
    html: Annotated[Path | None, typer.Option("--html", help="Write the report to a page, with charts.")] = None,
    limit: Annotated[int, typer.Option(help="How many clients the table shows.", min=1)] = 50,
    config: ConfigFile = None,
    tables: TablesRoot = None,
    output: Output = "table",
) -> None:
    """Replay kept usage with candidate quotas and say who would be throttled, and for how long.

    It is compared with a replay of the quotas that were live, and shown beside what really happened. Usage is what it
    was: clients that were held back then sent less than they would have.
    """
    from pipeline.replay.budget import Budget, failures
    from pipeline.replay.candidate import read_snapshot
    from pipeline.replay.page import html_page
    from pipeline.replay.recorded_throttles import happened
    from pipeline.replay.report import report_lines, to_document, totals_of
    from pipeline.settings.loading import load_settings

    _refuse_unknown("--from", source, _SOURCES)
    _refuse_unknown("--on", on, _PLACES)
    budgets = [Budget.parse(text) for text in fail_if or ()]
    settings = load_settings(config, flags(tables=tables))
    candidate = read_snapshot(quotas, _CANDIDATE_VERSION)
    order = _order(settings, source, since, until, candidate)
    span_ms = order.since_ms, order.until_ms
    began = time.perf_counter()
    (with_live, with_candidate), ran_on = _replay(order, settings.spark if on == "spark" else None)
    lines = report_lines(with_live, with_candidate, happened(order.root, *span_ms, order.settings.sample_window_ms))
    totals = totals_of(lines)
    about = {
        "candidate": str(quotas),
        "since_ms": order.since_ms,
        "until_ms": order.until_ms,
        "replayed": f"{source}, {_SOURCES[source]}",
        "evaluations": with_candidate.evaluations,
        "usage_rows": with_candidate.rows,
        "ran_on": ran_on,
        "seconds": round(time.perf_counter() - began, 1),
    }
    document = to_document(lines, totals, about)
    _print(document, totals, limit, output)
    if html is not None:
        page = html_page(about, totals, lines, with_live, with_candidate, span_ms)
        html.write_text(page, encoding="utf-8")
        sys.stderr.write(f"written: {html}\n")
    broken = failures(budgets, totals)
    for sentence in broken:
        sys.stderr.write(f"failed: {sentence}\n")
    if broken:
        raise typer.Exit(1)


def _refuse_unknown(name: str, given: str, known: "Collection[str]") -> None:
    if given not in known:
        message = f"'{name}' must be one of {', '.join(known)}; got {given}"
        raise typer.BadParameter(message)


def _order(settings: "Settings", source: str, since: str, until: str, candidate: "QuotaSnapshot") -> "ReplayOrder":
    """Two replays of the range: with the quotas that were live, and with the candidate."""
    from pipeline.cli.instants import parse_instant
    from pipeline.replay.replay_request import ReplayOrder
    from pipeline.replay.timeline import Timeline, live_timeline
    from pipeline.tables.from_settings import open_quota_table
    from pipeline.tables.quota_source import QuotaSource

    now_ms = time.time_ns() // 1_000_000
    since_ms, until_ms = parse_instant("--since", since, now_ms), parse_instant("--until", until, now_ms)
    table = open_quota_table(settings.tables)
    live = QuotaSource(table)
    return ReplayOrder(
        root=settings.tables.root,
        source=source,  # type: ignore[arg-type] # one of _SOURCES
        scope=settings.scope or live.scope,
        settings=settings.engine,
        since_ms=since_ms,
        until_ms=until_ms,
        quotas=(live_timeline(table, live, since_ms - _EARLIER_VERSIONS_MS), Timeline((0,), (candidate,))),
    )


def _replay(order: "ReplayOrder", spark: "SparkSettings | None") -> "tuple[list[ReplayResult], str]":
    """What live quotas and candidate come to, and what that ran on; on Spark if there are settings for it."""
    from pipeline.replay.plan import Plan

    if spark is None:
        from pipeline.cli.progress import progress_bar
        from pipeline.replay.what_if import run

        with progress_bar("replaying usage") as progress:
            return run(Plan.of(order), progress)
    from pipeline.replay.on_spark import replay_session, run_on_spark

    plan = Plan.of(order)
    with replay_session(spark) as session:
        return run_on_spark(plan, session)


def _print(document: dict[str, Any], totals: "Totals", limit: int, output: str) -> None:
    from pipeline.cli.output import print_rows

    if output != "table":
        print_rows([document], output)
        return
    rows = document["clients"]
    print_rows(rows[:limit], output, [name for name in _COLUMNS if rows])
    if len(rows) > limit:
        sys.stdout.write(f"… and {len(rows) - limit} more\n")
    about = document["about"]
    sys.stdout.write(
        f"{totals.throttled} of {totals.clients} clients throttled, {totals.newly_throttled} newly, "
        f"{totals.no_longer_throttled} no longer; held {totals.throttle_seconds:.1f} s "
        f"({totals.throttle_seconds_change:+.1f} s), {totals.bytes_deferred} bytes deferred "
        f"({totals.bytes_deferred_change:+d})\n"
    )
    sys.stderr.write(
        f"{about['replayed']}: {about['evaluations']} evaluations, {about['usage_rows']} rows; "
        f"{about['seconds']} s on {about['ran_on']}\n"
    )
