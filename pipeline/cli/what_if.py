"""`kquota what-if`: stored usage replayed with other quotas; `kquota simulate`: usage and quotas from files."""

import math
import time
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from pipeline.cli.options import Output, Source, TablesSource, covered_text, parse_range
from pipeline.cli.output import Layout, Row, is_table, print_rows, progress_bar, remark, say
from pipeline.clock import clock_time
from pipeline.documents import read_text_file
from pipeline.settings.model import Settings
from pipeline.tables.quotas.files import Declared, from_text, read_declared
from quota.snapshot import QuotaSnapshot
from schemas.names import ClientKey

if TYPE_CHECKING:
    import pyarrow as pa

    from pipeline.replay.request import ReplayRequest
    from pipeline.replay.simulation import ClientStory
    from pipeline.replay.usage_batches import ReplayResult
    from pipeline.replay.usage_batches import Source as UsageTable
    from pipeline.replay.what_if import Totals
    from pipeline.throttle.shapes import Row as Record


_SOURCES = {"usage_by_second": "one evaluation per second", "usage": "the exact batches"}
_CANDIDATE_VERSION = 0
_LAYOUT: Final = Layout(
    (
        *("client", "change", "baseline_s", "candidate_s", "replay", "happened_s"),
        *("windows_baseline", "windows_candidate", "bytes_deferred_candidate"),
    ),
    dropped_first=("bytes_deferred_candidate", "windows_baseline", "windows_candidate", "happened_s"),
)


def what_if(
    quotas: Annotated[
        Path, typer.Option("-f", "--file", "--quotas", help="A file with all quotas of the candidate, JSON or YAML.")
    ],
    *,
    since: Annotated[str, typer.Option(help="Begin of the range: 24h (ago), ISO 8601 in UTC, or epoch ms.")] = "24h",
    until: Annotated[str, typer.Option(help="End of the range, in the same formats.")] = "0s",
    fail_if: Annotated[
        list[str] | None, typer.Option("--fail-if", help="metric>number: exit with 1 if it is true. May be repeated.")
    ] = None,
    limit: Annotated[int, typer.Option(help="How many clients the table shows.", min=1)] = 50,
    source: TablesSource,
    output: Output = "table",
) -> None:
    """Replay stored usage with candidate quotas, and print who would be throttled and for how long.

    The result is compared with a replay of the same usage with today's quotas. Each line says how far a replay of what
    happened is from what happened; above 5 % it is unsure. Usage is replayed as it was stored: clients that were
    throttled at the time sent less than they wanted to.
    """
    from pipeline.replay.usage_batches import recorded_outcomes
    from pipeline.replay.what_if import FailCondition, compare, failures, to_document, totals_of

    conditions = [FailCondition.parse(text) for text in fail_if or ()]
    settings = source.settings()
    candidate = read_declared(quotas)
    since_ms, until_ms = parse_range(since, until)
    request = _request(settings, since_ms, until_ms, candidate)
    began = time.perf_counter()
    results = _replay(request)
    # Without an edit in the range today's quotas are those that were in force.
    again, with_baseline, with_candidate = results[0], results[-2], results[-1]
    happened = recorded_outcomes(request, again.outcomes)
    comparisons = compare(again, with_baseline, with_candidate, happened)
    totals = totals_of(comparisons)
    about = {
        "candidate": str(quotas),
        "since_ms": since_ms,
        "until_ms": until_ms,
        "usage_since_ms": request.since_ms,
        "usage_until_ms": request.until_ms,
        "replayed": f"{request.source}, {_SOURCES[request.source]}",
        "evaluations": with_candidate.evaluations,
        "usage_rows": with_candidate.rows,
        "seconds": round(time.perf_counter() - began, 1),
    }
    _print(to_document(comparisons, totals, about), totals, limit, output)
    broken = failures(conditions, totals)
    for sentence in broken:
        remark(f"failed: {sentence}")
    if broken:
        raise typer.Exit(1)


def _request(settings: "Settings", since_ms: int, until_ms: int, candidate: Declared) -> "ReplayRequest":
    """The replays: of what happened, with today's quotas if these are others, and of the candidate."""
    from pipeline.replay.request import (
        Coverage,
        ReplayRequest,
        Timeline,
        begin_ms,
        exact_batches_kept,
        live_timeline,
        newest_start,
        old_batches,
    )
    from pipeline.tables.quotas.source import QuotaSource
    from pipeline.tables.quotas.table import QuotaTable

    table = QuotaTable(settings.tables.root)
    live = QuotaSource(table)
    root = settings.tables.root
    source: UsageTable = "usage" if exact_batches_kept(root, since_ms) else "usage_by_second"
    covered = Coverage.of(root, source, since_ms, until_ms)
    start = newest_start(root, settings.engine, covered.since_ms) if source == "usage" else None
    from_ms = begin_ms(settings.engine, covered.since_ms, start)
    # What is not there needs no quotas: a job that began in the range has often one version of them.
    happened = live_timeline(table, live, from_ms if covered.since_ms == since_ms else covered.since_ms)
    today, old = happened.snapshots[-1], frozenset[tuple[str, int]]()
    if source == "usage":
        old, versions = old_batches(root, from_ms, covered.until_ms, settings.stream.max_decision_age_ms)
        happened = happened.of_versions(versions)
    others = () if happened.snapshots == (today,) else (Timeline((0,), (today,)),)
    return ReplayRequest(
        root=root,
        source=source,
        scope=settings.scope or live.scope,
        settings=settings,
        since_ms=covered.since_ms,
        until_ms=covered.until_ms,
        time_epoch=covered.time_epoch,
        quotas=(happened, *others, Timeline((0,), (candidate.snapshot(_CANDIDATE_VERSION, today),))),
        old=old,
        start=start,
    )


def _replay(request: "ReplayRequest") -> "list[ReplayResult]":
    from pipeline.replay.what_if import run

    with progress_bar("replaying usage") as progress:
        return run(request, progress)


def _print(document: dict[str, Any], totals: "Totals", limit: int, output: str) -> None:
    rows = document["clients"]
    print_rows(rows[:limit] if is_table(output) else rows, output, _LAYOUT, shown=_shown, document=[document])
    if not is_table(output):
        return
    if len(rows) > limit:
        say(f"{len(rows) - limit} of {len(rows)} clients are not shown: --limit {len(rows)}")
    about = document["about"]
    say(
        f"{totals.throttled} of {totals.clients} clients throttled; against the usage with today's quotas "
        f"{totals.newly_throttled} newly, {totals.no_longer_throttled} no longer; held {totals.throttle_seconds:.1f} s "
        f"({totals.throttle_seconds_change:+.1f} s), {totals.bytes_deferred} bytes deferred "
        f"({totals.bytes_deferred_change:+d})"
    )
    wanted, found = (about["since_ms"], about["until_ms"]), (about["usage_since_ms"], about["usage_until_ms"])
    remark(
        covered_text(wanted, found, ": the report leaves out the rest"),
        f"{about['replayed']}: {about['evaluations']} evaluations, {about['usage_rows']} rows; {about['seconds']} s",
    )


def _shown(row: Row) -> Row:
    """A row with short headers: the names of the data do not fit a terminal."""
    held = {f"{name}_s": f"{row[f'throttle_seconds_{name}']:.1f}" for name in ("baseline", "candidate", "happened")}
    who = f"{row['user']}/{row['client_id']}" + (f"@{row['broker_id']}" if row.get("broker_id") else "")
    return {**row, "client": who, **held, "replay": _off_text(row["replay_off_percent"], row["is_off"])}


def _shown_client(row: Row) -> Row:
    return {name.replace("_kB_per_s", " kB/s"): value for name, value in row.items()}


# `kquota simulate`, with the job's own engine and purgatory.

_SHOWN_REFUSALS = 10
_CLIENTS: Final = Layout(dropped_first=("requests", "releases", "renewals"))


def simulate(
    files: Annotated[
        list[Path] | None, typer.Argument(help="Usage events (JSON lines, as on the topic) and quotas (JSON or YAML).")
    ] = None,
    *,
    trigger_ms: Annotated[
        int | None, typer.Option(help="How much event time a micro-batch covers, in ms.", min=1)
    ] = None,
    scope: Annotated[
        str,
        typer.Option(
            help="Whether a quota bounds a client in the whole cluster, or at each broker: cluster or broker."
        ),
    ] = "cluster",
    config: Annotated[Path | None, typer.Option(help="TOML settings file.", show_default=False)] = None,
    output: Output = "table",
) -> None:
    """Print which throttles usage events would lead to: every throttle, renewal and release, then each client.

    Needs no broker, no Spark and no tables. Events are put into micro-batches by their own times. The simulated clients
    ignore throttles: usage is what the files contain. Settings are those of --config; KQUOTA_CONFIG is not used, so the
    same files give the same answer everywhere.
    """
    from pipeline.replay.simulation import Simulation, batches_of_usage
    from pipeline.throttle.shapes import line_of

    if scope not in {"cluster", "broker"}:
        message = f"unknown scope {scope}; use cluster or broker"
        raise typer.BadParameter(message)
    settings = Source(config).settings()
    trigger, sample_window_ms = trigger_ms or settings.stream.trigger_ms, settings.engine.sample_window_ms
    usage, quotas, events = _read(files or [], math.gcd(trigger, sample_window_ms))
    records: list[dict[str, Any]] = []

    def show(now_ms: int, record: "Record") -> None:
        if is_table(output):
            say(f"{clock_time(now_ms)}  {line_of(record, quotas.version)}")
        else:
            records.append(_record_row(now_ms, record))

    simulation = Simulation(settings, trigger, quotas, scope, show)  # type: ignore[arg-type]
    count = simulation.run(batches_of_usage(usage, trigger, sample_window_ms))
    clients = _client_rows(usage, simulation.clients, scope == "broker")
    if is_table(output):
        say("")
    print_rows(clients, output, _CLIENTS, shown=_shown_client, document=[{"records": records, "clients": clients}])
    remark(f"{events} events in {count} micro-batches of {trigger} ms, {len(quotas.quotas)} quotas")


def _read(files: list[Path], slot_ms: int) -> "tuple[pa.Table, QuotaSnapshot, int]":
    """The usage of all files with events, see `read_events`; the quotas; and the number of events."""
    import pyarrow as pa

    from pipeline.replay.simulation import holds_events, read_events

    usage: list[pa.Table] = []
    events, snapshot = 0, None
    for path in files:
        text = read_text_file("FILE", path)
        if not holds_events(text):
            if snapshot is not None:
                message = f"{path} is a second file with quotas; give one"
                raise typer.BadParameter(message)
            snapshot = from_text(text, str(path)).snapshot(1)
            continue
        found = read_events(text, slot_ms)
        usage.append(found.usage)
        events += found.good_count
        for row in found.dead_letters.slice(0, _SHOWN_REFUSALS).to_pylist():
            element = "" if row["element_index"] is None else f", element {row['element_index']}"
            remark(f"refused: {path}, line {row['offset']}{element}: {row['cause']}")
        if found.dead_count > _SHOWN_REFUSALS:
            remark(f"refused: {path}, {found.dead_count - _SHOWN_REFUSALS} more")
    if not events or snapshot is None:
        message = "give at least one file with usage events, and one with quotas"
        raise typer.BadParameter(message)
    return pa.concat_tables(usage), snapshot, events


def _client_rows(usage: "pa.Table", stories: "dict[ClientKey, ClientStory]", by_broker: bool) -> list[Row]:
    used: dict[ClientKey, list[int]] = defaultdict(lambda: [0, 0, 0])
    sums = ("request_count", "produced_bytes", "fetched_bytes")
    for row in usage.select([*ClientKey._fields, *sums]).to_pylist():
        of_client = used[ClientKey.of(row if by_broker else {**row, "broker_id": ""})]
        for at, name in enumerate(sums):
            of_client[at] += row[name] or 0
    times_ms = usage["last_event_ms"].to_pylist()
    seconds = max(max(times_ms) - min(times_ms), 1_000) / 1000
    rows: list[Row] = []
    for key in sorted(used):
        story, (requests, produced, fetched) = stories[key], used[key]
        rows.append(
            {
                **({"broker_id": key.broker_id} if by_broker else {}),
                "user": key.user,
                "client_id": key.client_id,
                "requests": requests,
                "produced_kB_per_s": round(produced / seconds / 1000, 1),
                "fetched_kB_per_s": round(fetched / seconds / 1000, 1),
                "throttles": story.violations,
                "renewals": story.renewals,
                "releases": story.releases,
                "throttled_s": round(story.throttle_ms / 1000, 1),
                "shadowed": story.shadowed,
            }
        )
    return rows


def _record_row(now_ms: int, record: "Record") -> dict[str, Any]:
    names = ("action", "cause", "broker_id", "user", "client_id", "throttle_time_ms", "throttled_until_ms")
    figures = ("quota_type", "observed", "bound", "window_ms", "owed_ms", "decision_id")
    return {"written_at_ms": now_ms, **{name: record[name] for name in (*names, *figures)}}


def _off_text(off_percent: float, is_off: bool) -> str:
    """How far the replay of what happened is off, in words: `exact`, `off by 3 %`, `unsure: off by 99 %`."""
    if off_percent < 1:
        return "exact"
    return f"{'unsure: ' if is_off else ''}off by {off_percent:.0f} %"
