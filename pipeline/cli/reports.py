"""`kquota report chargeback`, `rightsizing` and `slo`."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from pipeline.cli.options import Html, Output, TablesSource, as_iso, covered_text, parse_range, writable, write_page
from pipeline.cli.output import Layout, Row, is_table, print_rows
from pipeline.command_line import command_text
from pipeline.documents import yaml_text
from pipeline.errors import NotFound, printable
from quota.units import age_text, exact_text, rate_text, seconds_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pipeline.reports.chargeback import Charge
    from pipeline.reports.rightsizing import Sized
    from pipeline.tables.minute_sums import Minutes
    from pipeline.tables.quotas.table import QuotaTableState


Since = Annotated[str, typer.Option(help="Begin of the range: 30d (ago), ISO 8601 in UTC, or epoch ms.")]
Until = Annotated[str, typer.Option(help="End of the range, in the same formats.")]


def _kept_range(wanted: tuple[int, int], usage: "Minutes") -> tuple[int, int]:
    """What of a range `usage_by_minute` has. Prints that range on stderr."""
    from pipeline.reports.periods import whole_minutes

    since_ms, until_ms = whole_minutes(*wanted)
    kept = usage.span()
    begin_ms, end_ms = (max(since_ms, kept[0]), min(until_ms, kept[1])) if kept else (0, 0)
    if begin_ms >= end_ms:
        have = f"usage_by_minute has {as_iso(kept[0])} to {as_iso(kept[1])} UTC" if kept else "usage_by_minute is empty"
        msg = f"no usage from {as_iso(wanted[0])} to {as_iso(wanted[1])} UTC: {have}"
        fix = "give another range with --since and --until; a running job writes a minute some 10 s after its end, "
        raise NotFound(msg, fix + "every `stream.rollup_interval_ms`")
    sys.stderr.write(f"{covered_text((since_ms, until_ms), (begin_ms, end_ms))}\n")
    return begin_ms, end_ms


# `kquota report chargeback`: bytes and request time by owner and period.

_BY_OWNER: Final = Layout(
    ("period", "owner", "clients", "produced", "fetched", "request_time", "requests"),
    dropped_first=("requests", "clients", "request_time"),
)
_BY_CLIENT: Final = Layout(
    ("period", "owner", "user", "client_id", "produced", "fetched", "request_time", "requests"),
    dropped_first=("requests", "request_time"),
)


def chargeback(
    *,
    since: Since = "30d",
    until: Until = "0s",
    by: Annotated[str, typer.Option(help="day, week (from Monday on) or month; in UTC.")] = "month",
    clients: Annotated[bool, typer.Option("--clients", help="A row for each client of an owner.")] = False,
    html: Html = None,
    source: TablesSource,
    output: Output = "table",
) -> None:
    """Print what the clients of each owner used: bytes produced and fetched, and request time.

    The owner is that of the most specific quota row that covers the client and names one, at the time of the usage; or
    the first one named later.
    """
    from pipeline.reports.chargeback import chargeback_page, charges
    from pipeline.reports.periods import OwnerTimes, known_period, periods
    from pipeline.tables.from_settings import open_quota_table
    from pipeline.tables.minute_sums import Minutes

    known_period(by)
    settings = source.settings().tables
    wanted = parse_range(since, until)
    owners = OwnerTimes.of(open_quota_table(settings), wanted[0])
    minutes = Minutes(settings.root, "usage_by_minute")
    span_ms = _kept_range(wanted, minutes)
    found = charges(minutes, owners, periods(by, *span_ms))
    rows = [row for one in found for row in one.client_rows()] if clients else [one.to_row() for one in found]
    print_rows(rows, output, _BY_CLIENT if clients else _BY_OWNER, shown=_shown)
    if is_table(output):
        _note_unowned(found)
    if html is not None:
        write_page(html, chargeback_page(found, minutes, span_ms))


def _note_unowned(found: "Sequence[Charge]") -> None:
    unowned = {client for one in found if one.owner is None for client in one.clients}
    if not unowned:
        return
    user, client_id = min(unowned)
    command = command_text("quotas", "effective", user, *([client_id] if client_id else []))
    sys.stderr.write(
        f"clients without owner: {len(unowned)}; see them with --clients, and which quotas could name one: "
        f"{printable(command)}\n"
    )


def _shown(row: Row) -> Row:
    from pipeline.reports.chargeback import NO_OWNER

    shown = dict(row) | {"owner": NO_OWNER if row["owner"] is None else row["owner"]}
    for name in ("produced", "fetched"):
        shown[name] = rate_text("producer_byte_rate", shown.pop(f"{name}_bytes")).removesuffix("/s")
    shown["request_time"] = seconds_text(shown.pop("request_time_ns") / 1e9)
    shown["exempt_time"] = seconds_text(shown.pop("exempt_time_ns") / 1e9)
    shown["requests"] = shown.pop("request_count")
    return shown


# `kquota report rightsizing`: bounds against their use, and a candidate with recommended bounds.

_LAYOUT: Final = Layout(
    ("user", "client_id", "type", "T", "minutes", "p95", "p99", "advice", "suggested", "throttled", "sensors"),
    dropped_first=("sensors", "throttled", "p95", "minutes"),
)


def rightsizing(
    *,
    since: Since = "7d",
    until: Until = "0s",
    headroom: Annotated[float, typer.Option(help="How far above p99 a bound should be, in percent.", min=0)] = 20,
    candidate: Annotated[
        Path | None,
        typer.Option(
            help="Write all quotas, with the bounds suggested, to this file: for what-if -f.", callback=writable
        ),
    ] = None,
    html: Html = None,
    source: TablesSource,
    output: Output = "table",
) -> None:
    """Compare each bound T with the 95th and 99th percentile of the rate per minute, and suggest bounds that fit.

    Only whole minutes in which the bound was used count, and from less than an hour of them nothing is suggested. The
    bound of a client that was throttled is never lowered, because it sent less than it wanted to; nor is any below the
    largest rate of the last ten minutes. Bounds of default entities are compared, and not changed in the candidate.
    """
    from pipeline.reports.rightsizing import LEAST_MINUTES, Question, rightsizing_page, sized, whole_part
    from pipeline.tables.from_settings import open_quota_table
    from pipeline.tables.minute_sums import Minutes
    from pipeline.tables.quotas.source import QuotaSource

    settings = source.settings()
    table = open_quota_table(settings.tables)
    in_force = QuotaSource(table)
    snapshot, root = in_force.pin(), settings.tables.root
    usage = Minutes(root, "usage_by_minute")
    span_ms = _kept_range(parse_range(since, until), usage)
    held = Minutes(root, "throttle_by_minute").held_by_client(*span_ms).to_pylist()
    throttled = frozenset((row["user"], row["client_id"]) for row in held if row["minutes"])
    per_broker = (settings.scope or in_force.scope) == "broker"
    whole_ms = whole_part(span_ms, usage.span() or span_ms)
    found = sized(usage, Question(snapshot, per_broker, whole_ms, throttled, headroom))
    print_rows([one.to_row() for one in found], output, _LAYOUT, shown=_shown_of_rightsizing)
    if is_table(output):
        if any(one.is_default and one.advice in ("raise", "lower") for one in found):
            sys.stderr.write("p95 and p99 of a default are those of its busiest sensor; a candidate keeps its bound\n")
        if any(one.advice == "too little data" for one in found):
            seen = max(whole_ms[1] - whole_ms[0], 0) // 60_000
            sys.stderr.write(f"{seen} whole minutes seen; nothing is suggested from less than {LEAST_MINUTES} of use\n")
        sys.stderr.write("".join(f"{one.advice}: {printable(one.command() or '')}\n" for one in found if one.command()))
    if candidate is not None:
        _write_candidate(candidate, table.read(snapshot.version), found)
    if html is not None:
        write_page(html, rightsizing_page(found, headroom, snapshot.version, span_ms))


def _write_candidate(path: Path, quotas: "QuotaTableState", found: "Sequence[Sized]") -> None:
    from pipeline.reports.rightsizing import candidate_rows
    from pipeline.tables.quotas.files import to_document

    rows = candidate_rows(quotas.rows, found)
    path.write_text(yaml_text(to_document(rows)), encoding="utf-8")
    changed = sum(one.new_bound != one.bound for one in found)
    sys.stderr.write(f"written: {path}, {changed} bounds changed; try it: {command_text('what-if', '-f', str(path))}\n")


def _shown_of_rightsizing(row: Row) -> Row:
    from pipeline.reports.rightsizing import readable

    shown = readable(row)
    return {"type": shown.pop("quota_type").partition("_")[0], "T": shown.pop("bound"), **shown}


# `kquota report slo`: minutes throttled per client and period, against a target.

_LAYOUT_SLO: Final = Layout(
    ("period", "user", "client_id", "owner", "minutes", "on course for", "target", "held", "throttles", "renewals"),
    dropped_first=("renewals", "throttles", "held", "owner"),
)


def slo(
    target: Annotated[
        str, typer.Option(help="Most time throttled in a period (30m, 2h), or least share not throttled (99.9%).")
    ],
    *,
    since: Since = "28d",
    until: Until = "0s",
    by: Annotated[str, typer.Option(help="day, week (from Monday on) or month; in UTC.")] = "week",
    html: Html = None,
    source: TablesSource,
    output: Output = "table",
) -> None:
    """Print in how many minutes each client was throttled, and whether that meets the target.

    A minute counts if the client was held in it for any time. Of a period that is not over, or of which a part is not
    kept, what was seen is projected to the whole. Clients that were never throttled are left out.
    """
    from pipeline.reports.periods import known_period, periods
    from pipeline.reports.service_level import Target, held_by_period, knows_enough, service_level_page
    from pipeline.tables.from_settings import open_quota_table
    from pipeline.tables.minute_sums import Minutes
    from quota.entity import Owners

    known_period(by)
    wanted = Target.parse(target)
    settings = source.settings().tables
    root, owners = settings.root, Owners(open_quota_table(settings).read().rows)
    usage, throttles = Minutes(root, "usage_by_minute"), Minutes(root, "throttle_by_minute")
    span_ms = _kept_range(parse_range(since, until), usage)
    found = held_by_period(throttles, by, periods(by, *span_ms), wanted, owners.of)
    print_rows([one.to_row() for one in found], output, _LAYOUT_SLO, shown=_shown_of_slo)
    if is_table(output):
        throttled, clients = {(one.user, one.client_id) for one in found}, usage.clients(*span_ms).num_rows
        missed = {(one.user, one.client_id) for one in found if one.standing == "missed"}
        is_known = knows_enough(found, by, periods(by, *span_ms))
        verdict = f"{len(missed)} missed" if missed else "all clients met" if is_known else "too little data for"
        sys.stdout.write(
            f"{len(throttled)} of {clients} clients were throttled; {verdict} the target {target} a {by}\n"
        )
    if html is not None:
        write_page(html, service_level_page(found, wanted, by, usage, throttles, span_ms))


def _shown_of_slo(row: Row) -> Row:
    allowed = exact_text(round(row["target_minutes"], 1))
    left_out = ("observed_minutes", "projected_minutes", "target_minutes", "held_seconds")
    return {name: value for name, value in row.items() if name not in left_out} | {
        "minutes": f"{row['minutes']} of {row['observed_minutes']}",
        "on course for": f"{row['projected_minutes']:,.0f} of {allowed}",
        "held": age_text(row["held_seconds"] * 1000),
    }
