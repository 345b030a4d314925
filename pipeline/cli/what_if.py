"""`kquota what-if`: stored usage replayed with other quotas."""

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from pipeline.cli.options import ConfigFile, Output, TablesRoot, flags
from pipeline.cli.table_layout import Layout
from pipeline.clock import wall_ms

if TYPE_CHECKING:
    from collections.abc import Collection

    from pipeline.cli.output import Row
    from pipeline.replay.outcome import ReplayResult
    from pipeline.replay.report import Totals
    from pipeline.replay.request import ReplayRequest
    from pipeline.settings.model import Settings, SparkSettings
    from quota.snapshot import QuotaSnapshot

_SOURCES = {"usage_by_second": "one evaluation per second", "usage": "the exact batches"}
_PLACES = ("local", "spark")
_CANDIDATE_VERSION = 0
_LAYOUT: Final = Layout(
    (
        "user",
        "client_id",
        "change",
        "held_s_live",
        "held_s_candidate",
        "held_s_happened",
        "windows_live",
        "windows_candidate",
        "bytes_deferred_candidate",
    ),
    dropped_first=("bytes_deferred_candidate", "windows_live", "windows_candidate", "held_s_happened"),
)


def what_if(
    quotas: Annotated[
        Path, typer.Option("-f", "--file", "--quotas", help="A file with all quotas of the candidate, JSON or YAML.")
    ],
    since: Annotated[str, typer.Option(help="Begin of the range: 24h (ago), ISO 8601 in UTC, or epoch ms.")] = "24h",
    until: Annotated[str, typer.Option(help="End of the range, in the same formats.")] = "0s",
    source: Annotated[
        str, typer.Option("--from", help="usage_by_second (one evaluation per second) or usage (the exact batches).")
    ] = "usage_by_second",
    on: Annotated[
        str,
        typer.Option(
            "--on",
            help="local: one process per core; spark: the executors of `spark.master`, for ranges of many days.",
        ),
    ] = "local",
    fail_if: Annotated[
        list[str] | None, typer.Option("--fail-if", help="metric>number: exit with 1 if it is true. May be repeated.")
    ] = None,
    html: Annotated[
        Path | None, typer.Option("--html", help="Also write the report to this file, as a page with charts.")
    ] = None,
    limit: Annotated[int, typer.Option(help="How many clients the table shows.", min=1)] = 50,
    config: ConfigFile = None,
    tables: TablesRoot = None,
    output: Output = "table",
) -> None:
    """Replay stored usage with candidate quotas, and print who would be throttled and for how long.

    The result is compared with a replay of the quotas that were live, and shown next to what really happened. Usage is
    replayed as it was stored: clients that were throttled at the time sent less than they wanted to.
    """
    from pipeline.replay.fail_if import FailCondition, failures
    from pipeline.replay.quotas import read_snapshot
    from pipeline.replay.recorded_throttles import recorded_outcomes
    from pipeline.replay.report import compare, to_document, totals_of
    from pipeline.reports.what_if_page import what_if_page
    from pipeline.settings.loading import load_settings
    from pipeline.text_file import refuse_unwritable

    _refuse_unknown("--from", source, _SOURCES)
    _refuse_unknown("--on", on, _PLACES)
    conditions = [FailCondition.parse(text) for text in fail_if or ()]
    if html is not None:
        refuse_unwritable("--html", html)
    settings = load_settings(config, flags(tables=tables))
    candidate = read_snapshot(quotas, _CANDIDATE_VERSION)
    since_ms, until_ms = _range(since, until)
    request = _request(settings, source, since_ms, until_ms, candidate)
    began = time.perf_counter()
    (with_live, with_candidate), ran_on = _replay(request, settings.spark if on == "spark" else None)
    span_ms = request.since_ms, request.until_ms
    happened = recorded_outcomes(request.root, *span_ms, request.settings.sample_window_ms)
    comparisons = compare(with_live, with_candidate, happened)
    totals = totals_of(comparisons)
    about = {
        "candidate": str(quotas),
        "since_ms": since_ms,
        "until_ms": until_ms,
        "usage_since_ms": request.since_ms,
        "usage_until_ms": request.until_ms,
        "replayed": f"{source}, {_SOURCES[source]}",
        "evaluations": with_candidate.evaluations,
        "usage_rows": with_candidate.rows,
        "ran_on": ran_on,
        "seconds": round(time.perf_counter() - began, 1),
    }
    _print(to_document(comparisons, totals, about), totals, limit, output)
    if html is not None:
        page = what_if_page(_readable(about), totals, comparisons, with_live, with_candidate, span_ms)
        html.write_text(page, encoding="utf-8")
        sys.stderr.write(f"written: {html}\n")
    broken = failures(conditions, totals)
    for sentence in broken:
        sys.stderr.write(f"failed: {sentence}\n")
    if broken:
        raise typer.Exit(1)


def _refuse_unknown(name: str, given: str, known: "Collection[str]") -> None:
    if given not in known:
        message = f"'{name}' must be one of {', '.join(known)}; got {given}"
        raise typer.BadParameter(message)


def _range(since: str, until: str) -> tuple[int, int]:
    from pipeline.cli.instants import parse_instant

    now_ms = wall_ms()
    return parse_instant("--since", since, now_ms), parse_instant("--until", until, now_ms)


def _request(
    settings: "Settings", source: str, since_ms: int, until_ms: int, candidate: "QuotaSnapshot"
) -> "ReplayRequest":
    """A request for two replays of what is covered of a range: with the quotas that were live, and the candidate."""
    from pipeline.replay.coverage import Coverage
    from pipeline.replay.quotas import Timeline, live_timeline
    from pipeline.replay.request import ReplayRequest, warm_up_ms
    from pipeline.tables.from_settings import open_quota_table
    from pipeline.tables.quotas.source import QuotaSource
    from pipeline.throttle.assembly import nominal_slicing

    table = open_quota_table(settings.tables)
    live = QuotaSource(table)
    covered = Coverage.of(settings.tables.root, source, since_ms, until_ms)  # type: ignore[arg-type] # one of _SOURCES
    begin_ms = covered.since_ms - warm_up_ms(settings.engine)
    return ReplayRequest(
        root=settings.tables.root,
        source=source,  # type: ignore[arg-type] # one of _SOURCES
        scope=settings.scope or live.scope,
        settings=settings.engine,
        slicing=nominal_slicing(settings),
        since_ms=covered.since_ms,
        until_ms=covered.until_ms,
        quotas=(live_timeline(table, live, begin_ms), Timeline((0,), (candidate,))),
    )


def _replay(request: "ReplayRequest", spark: "SparkSettings | None") -> "tuple[list[ReplayResult], str]":
    """The results of both replays, and a description of where they ran; on Spark if its settings are given."""
    from pipeline.replay.request import Plan

    if spark is None:
        from pipeline.cli.progress import progress_bar
        from pipeline.replay.local_run import run

        with progress_bar("replaying usage") as progress:
            return run(Plan.of(request), progress)
    from pipeline.replay.spark_run import replay_session, run_on_spark

    plan = Plan.of(request)
    with replay_session(spark) as session:
        return run_on_spark(plan, session)


def _print(document: dict[str, Any], totals: "Totals", limit: int, output: str) -> None:
    from pipeline.cli.output import is_table, print_rows

    rows = document["clients"]
    print_rows(rows[:limit] if is_table(output) else rows, output, _LAYOUT, shown=_shown, document=[document])
    if not is_table(output):
        return
    if len(rows) > limit:
        sys.stdout.write(f"… and {len(rows) - limit} more\n")
    about = document["about"]
    sys.stdout.write(
        f"{totals.throttled} of {totals.clients} clients throttled, {totals.newly_throttled} newly, "
        f"{totals.no_longer_throttled} no longer; held {totals.throttle_seconds:.1f} s "
        f"({totals.throttle_seconds_change:+.1f} s), {totals.bytes_deferred} bytes deferred "
        f"({totals.bytes_deferred_change:+d})\n"
    )
    sys.stderr.write(f"{_covered(about)}\n")
    sys.stderr.write(
        f"{about['replayed']}: {about['evaluations']} evaluations, {about['usage_rows']} rows; "
        f"{about['seconds']} s on {about['ran_on']}\n"
    )


def _shown(row: "Row") -> "Row":
    """A row with short headers: the names of the data do not fit a terminal."""
    return {name.replace("throttle_seconds", "held_s"): value for name, value in row.items()}


def _covered(about: dict[str, Any]) -> str:
    """Which range the report is about, and what of the range that was asked for has no usage."""
    from pipeline.cli.instants import as_iso
    from quota.units import age_text

    missing = []
    if about["usage_since_ms"] > about["since_ms"]:
        missing.append(f"begins {age_text(about['usage_since_ms'] - about['since_ms'])} after --since")
    if about["usage_until_ms"] < about["until_ms"]:
        missing.append(f"ends {age_text(about['until_ms'] - about['usage_until_ms'])} before --until")
    told = f"; it {' and '.join(missing)}: the report leaves out the rest" if missing else ""
    return f"usage from {as_iso(about['usage_since_ms'])} to {as_iso(about['usage_until_ms'])} UTC{told}"


def _readable(about: dict[str, Any]) -> dict[str, Any]:
    """The facts for the page: instants as ISO 8601, names without underscores."""
    from pipeline.cli.instants import as_iso

    return {
        name.removesuffix("_ms").replace("_", " "): f"{as_iso(value)} UTC" if name.endswith("_ms") else value
        for name, value in about.items()
    }
