"""`kquota throttles`: who is throttled now or was, the records as they come, why, and whether that can be repeated."""

import re
import sys
from collections.abc import Callable
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from pipeline.cli.entity import Client, refuse_empty
from pipeline.cli.options import (
    ClusterSource,
    NamedOutput,
    Output,
    QuotaTypeOption,
    TablesSource,
    as_iso,
    parse_instant,
    watched,
)
from pipeline.cli.output import (
    Layout,
    Row,
    format_option,
    is_table,
    print_document,
    print_rows,
    progress_bar,
    reader_has_gone,
    remark,
    say,
    until_reader_goes,
)
from pipeline.clock import SHOWN_DIGITS, clock_time, seconds, wall_ms
from pipeline.command_line import command_text
from pipeline.errors import NotFound, Refused, UsageError
from pipeline.log import set_up_logging
from pipeline.process import wait_until_stopped
from quota.entity import DEFAULT
from quota.units import counted, rate_text
from schemas.throttle_record import Target, ThrottleRecord, verb

if TYPE_CHECKING:
    from pipeline.gate.follower import ThrottleTail
    from pipeline.replay.verification import Difference
    from pipeline.settings.model import Settings
    from pipeline.tables.quotas.table import QuotaTable
    from pipeline.tables.throttles import Story


_COLUMNS: Final = ("user", "client_id", "type", "O", "T", "W", "for", "until", "cause", "decision")
_RUNNING: Final = Layout(
    (*_COLUMNS, "held_by_brokers"), dropped_first=("W", "cause", "for", "O", "T"), texts=("held_by_brokers",)
)
_RECENT: Final = Layout(
    ("at", "action", "client", *_COLUMNS[2:]), dropped_first=("W", "for", "decision", "O", "action")
)


@watched
def list_(
    client: Client,
    *,
    quota_type: QuotaTypeOption = None,
    since: Annotated[
        str | None, typer.Option(help="As --all, from this instant on: 2h (ago), ISO 8601 in UTC, or epoch ms.")
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Also throttles that have ended, and releases; newest first.")
    ] = False,
    limit: Annotated[int, typer.Option(help="How many records --all and --since show.", min=1)] = 50,
    source: TablesSource,
    output: NamedOutput = "table",
) -> None:
    """List who is held now, by kquota or by its brokers; exits with 3 if there are none.

    A throttle of all client-ids of a user has the client-id `*`; `-o wide` shows which are excepted. With --user and
    --client-id it is listed, too, if it holds that client. A client that only its brokers hold has no end and no
    decision, and is left out with --type: they do not say for which quota. `kquota throttles tail` follows the records.
    """
    from pipeline.tables.throttles import Wanted, all_holds, recent_events

    since_ms = None if since is None else parse_instant("--since", since, wall_ms())
    wanted = Wanted(client.user, client.client_id, quota_type, since_ms)
    settings = source.settings()
    root, min_hold_ms = settings.tables.root, settings.purgatory.min_hold_ms
    is_recent = everything or since is not None

    # One record more than is shown, to know whether there are more.
    rows = recent_events(root, limit + 1, wanted) if is_recent else all_holds(root, wall_ms(), wanted, min_hold_ms)
    _print(rows, output, limit if is_recent else None)
    if not rows:
        raise typer.Exit(NotFound.exit_code)


def _print(rows: list[dict[str, Any]], output: str, limit: int | None) -> None:
    """Print records; `limit` is that of recent ones, None for those of `all_holds`."""
    print_rows(rows[:limit], output, _RUNNING if limit is None else _RECENT, shown=_shown, name=_name)
    if limit is not None and len(rows) > limit:
        remark(f"the newest {limit} records; see more with --limit")
    if not rows:
        remark("no throttles")


def shown_client_id(client_id: str | None) -> str:
    """The client-id in a table: `*` for all client-ids of a user."""
    return "*" if client_id is None else client_id


def _name(row: "Row") -> str:
    return f"{row['user']}/{shown_client_id(row['client_id'])}"


def _shown(row: "Row") -> "Row":
    if row["decision_id"] is None:  # only its brokers hold it
        return {**dict.fromkeys((*_COLUMNS, *_RECENT.columns)), **row}
    bound, quota_type = row["bound"], row["quota_type"]
    shown = {
        "at": clock_time(row["evaluated_at_ms"]),
        "action": verb(row),
        "user": row["user"],
        "client_id": shown_client_id(row["client_id"]),
        "except_client_ids": None if row["client_id"] else ", ".join(row["except_client_ids"] or ()),
        "client": str(Target.of(row)),
        "type": quota_type.partition("_")[0],
        "O": rate_text(quota_type, row["observed"]),
        "T": "none" if bound is None else rate_text(quota_type, bound),
        "W": seconds(row["window_ms"]),
        "for": seconds(row["throttle_time_ms"]),
        "until": clock_time(row["throttled_until_ms"]),
        "cause": row["cause"],
        "decision": row["decision_id"][:SHOWN_DIGITS],
    }
    return shown | {name: value for name, value in row.items() if name not in shown}


_POLL_MS: Final = 200


def tail(
    client: Client,
    *,
    quota_type: QuotaTypeOption = None,
    since: Annotated[
        str | None,
        typer.Option(
            help="Begin with records written at this instant: 2h (ago), ISO 8601 in UTC, or epoch ms.",
            show_default="now",
        ),
    ] = None,
    source: ClusterSource,
    output: Annotated[str, format_option("table or json, one line per record.", ("table", "json"))] = "table",
) -> None:
    """Follow the throttle topic: one line for each throttle, extension, renewal and release, as clients read them.

    Reads committed records only, and needs no tables. -o json prints each record as it was published. Of a target the
    topic keeps the newest record, and older ones for a time. A broker that goes away is waited for. Ends with 0 on
    Ctrl-C, on SIGTERM, and when its output is closed.
    """
    from pipeline.cluster.connecting import ClusterAccess
    from pipeline.gate.follower import ThrottleTail, ThrottleTopicReader

    since_ms = None if since is None else parse_instant("--since", since, wall_ms())
    settings = source.settings()
    set_up_logging(settings.log_level)

    def show(record: "ThrottleRecord") -> None:
        user, client_id = client.user or record.user, client.client_id
        is_wanted = user == record.user and quota_type in {None, record.quota_type}
        if is_wanted and (client_id is None or record.holds(user, client_id)):
            if output == "json":
                print_document(record.model_dump(mode="json"), output, indent=None)
            else:
                say(_line(record))

    access = ClusterAccess.from_settings(settings.kafka)
    name = settings.kafka.throttle_topic
    with closing(ThrottleTopicReader(access.bootstrap_servers, name, access.client_options())) as reader:
        try:
            reader.open()
            with until_reader_goes():
                _follow(ThrottleTail(reader, since_ms), show)
        except Exception as exc:
            known = reader.as_pipeline_error(exc)
            if known is None or known is exc:
                raise
            raise known from exc


def _follow(topic: "ThrottleTail", show: "Callable[[ThrottleRecord], None]") -> None:
    with wait_until_stopped() as wait:
        while not (wait(0) or reader_has_gone()):
            for record in topic.step(_POLL_MS):
                show(record)
            sys.stdout.flush()


def _line(record: "ThrottleRecord") -> str:
    from pipeline.throttle.shapes import line_of_record

    return f"{clock_time(record.written_ms)}  {line_of_record(record)}"


_ID: Final = re.compile("[0-9a-f]{1,64}")


def explain(
    first: Annotated[
        str,
        typer.Argument(
            metavar="DECISION|CLIENT|USER",
            help="The beginning of a decision_id; a client as USER/CLIENT_ID, all client-ids as USER/*; or a "
            "user, with a client-id after it.",
        ),
    ],
    client_id: Annotated[
        str | None, typer.Argument(metavar="CLIENT_ID", help="The client-id, where the first is a user.")
    ] = None,
    *,
    source: TablesSource,
    output: Output = "table",
) -> None:
    """Say why a client was throttled: O, T, W, X, the samples behind them, the edit that set T, and what followed.

    Of a client, as USER CLIENT_ID or as USER/CLIENT_ID, it tells the newest throttle that holds it to its end, its own
    or its user's, and whether the client is held now. USER/* is a throttle of all client-ids of a user.
    """
    from pipeline.replay.story import tell_story
    from pipeline.tables.throttles import large_requests_of

    settings = source.settings()
    try:
        decision, of_client = _decision(settings.tables.root, first, client_id)
    except NotFound as exc:
        raise _held_without_decision(settings.tables.root, first, client_id) or exc from exc
    found = tell_story(settings, decision, wall_ms() if of_client else None, of_client)
    large = large_requests_of(settings.tables.root, *of_client) if of_client else []
    if is_table(output):
        facts = [f"  {name:<9} {text}" for name, text in found.facts]
        bars = _bars(found.story, settings.engine.sample_window_ms)
        lines = [found.title, *facts, "", found.samples, *bars, "", *found.published]
        lines += [] if found.now is None else [found.now]
        say(*lines, *large)
    else:
        print_rows([{**found.document, "large_requests": large} if of_client else found.document], output)


def _held_without_decision(root: str, first: str, client_id: str | None) -> NotFound | None:
    """The error for a client that kquota never decided about, and that its brokers hold; None for any other."""
    from pipeline.tables.rates import held_by_brokers
    from pipeline.tables.throttles import large_requests_of

    parts = first.split("/")
    splits = [("/".join(parts[:place]), "/".join(parts[place:])) for place in range(1, len(parts))]
    names = [(user, one) for user, name in splits for one in dict.fromkeys((name, name.rpartition("@")[0] or name))]
    for user, name in names if client_id is None else [(first, client_id)]:
        client = user, None if name == "*" else name
        by_brokers = held_by_brokers(root, *client, wall_ms())
        if by_brokers is not None:
            reasons = "; ".join([by_brokers, *large_requests_of(root, *client)])
            message = f"{user}/{name} is not held by kquota, which has no decision of it; {reasons}"
            return NotFound(message, f"see its use and its quota: {command_text('quotas', 'describe', '-o', 'wide')}")
    return None


_Found = tuple[dict[str, Any], tuple[str, str | None] | None]
"""The row of `decisions` that is meant, and the client if one was named."""


def _decision(root: str, first: str, client_id: str | None) -> _Found:
    from pipeline.tables.throttles import decision_with_id

    refuse_empty("USER", [first])
    if client_id is not None:
        return _newest(root, first, client_id)
    return (decision_with_id(root, first), None) if _ID.fullmatch(first) else _named_by(root, first)


def _newest(root: str, user: str, client_id: str) -> _Found:
    """The newest throttle of a client. `*` is all client-ids of a user, or the client-id if it was never held so."""
    from pipeline.tables.throttles import newest_throttle

    if client_id == "*":
        with suppress(NotFound):
            found = newest_throttle(root, user, None)
            return found, (found["user"], None)
    found = newest_throttle(root, user, client_id)
    return found, (found["user"], client_id)


def _named_by(root: str, text: str) -> _Found:
    """The row that a text as `alice/etl` or `alice/etl@1` names, as log lines have it. Names may have slashes."""
    from pipeline.tables.throttles import no_decision

    parts = text.split("/")
    if len(parts) == 1:
        listing = command_text("throttles", "list", "--user", text, "--all")
        message = f"name a client-id of {text}, or '*' for all of them"
        raise UsageError(message, f"see who was held: {listing}")
    for place in range(1, len(parts)):
        user, client_id = "/".join(parts[:place]), "/".join(parts[place:])
        for name in dict.fromkeys((client_id, client_id.rpartition("@")[0] or client_id)):
            with suppress(NotFound):
                return _newest(root, user, name)
    raise no_decision(root, f"of {text}")


_BAR_WIDTH: Final = 40


def _bars(story: "Story", sample_window_ms: int) -> list[str]:
    row = story.decision
    if not story.samples or row["bound"] is None:
        return []
    is_time = row["quota_type"] == "request_percentage"
    limit, of = row["bound"] * (1e7 if is_time else 1) * sample_window_ms / 1000, 1e6 if is_time else 1e3
    most = max(limit, *(amount for _, amount in story.samples))
    lines = []
    mark = min(round(limit / most * _BAR_WIDTH), _BAR_WIDTH - 1)
    for start_ms, amount in story.samples:
        filled = round(amount / most * _BAR_WIDTH)
        bar = "".join("│" if place == mark else "█" if place < filled else " " for place in range(_BAR_WIDTH))
        lines.append(f"  {clock_time(start_ms)}  {bar} {amount / of:.1f}")
    return lines


_FORGIVEN: Final = Layout(("sensor", "quota_types", "shared_with"), texts=("shared_with",))
_NAMED: Final = 5


def forgive(
    user: Annotated[str, typer.Argument(metavar="USER", help="The user.")],
    client_id: Annotated[
        str | None,
        typer.Argument(metavar="CLIENT_ID", help="The client-id; without it all sensors of the user are meant."),
    ] = None,
    *,
    reason: Annotated[str, typer.Option(help="Why; stored with the edit.")],
    yes: Annotated[
        bool, typer.Option("--yes", help="Do not ask where other clients share the sensor of the client.")
    ] = False,
    source: TablesSource,
    output: Output = "table",
) -> None:
    """Forget what a client owes: it is released at once, and begins again with empty windows and a full bucket.

    The debt is the sensor's, which others may share: then they are named, and --yes is asked for. It is an edit of the
    quota table, with who made it and why, and changes no bound. What brokers hold on their own is not forgiven.
    """
    from pipeline.tables.quotas.table import QuotaTable, local_audit

    refuse_empty("USER", [user])
    settings = source.settings()
    table = QuotaTable(settings.tables.root)
    sensors = _sensors_of(settings, table, user, client_id)
    others = sorted({name for one in sensors for name in one["shared_with"]})
    if others and not yes:
        more = f" and {len(others) - _NAMED} more" if len(others) > _NAMED else ""
        message = f"nothing was forgiven: {user}/{client_id} shares its sensor with {', '.join(others[:_NAMED])}{more}"
        names = [user, *([] if client_id is None else [client_id])]
        if any(name.startswith("-") for name in names):
            names.insert(0, "--")
        again = command_text("throttles", "forgive", "--reason", reason, "--yes", *names)
        raise Refused(message, f"forgive them all: {again}")
    entities = [one.pop("entity") for one in sensors]
    edit = table.commit(
        lambda rows: rows,
        local_audit(reason),
        forgives=entities if client_id is not None else [(user, ""), (user, DEFAULT)],
    )
    document = [{"quota_version": edit.version} | one for one in sensors]
    print_rows(sensors, output, _FORGIVEN, shown=_shown_forgiven, document=document)
    remark(f"quotas v{edit.version}: a release follows at once, and the next micro-batch forgets what was owed")


def _sensors_of(settings: "Settings", table: "QuotaTable", user: str, client_id: str | None) -> list[dict[str, Any]]:
    """The sensors of a client, or all of a user, that a bound is enforced on: each with its types and who else uses it.

    Clients are those that are held, and those of the last minutes.
    """
    import pyarrow as pa

    from pipeline.tables.port import table_uri
    from pipeline.tables.queries import live_clients
    from pipeline.tables.quotas.source import QuotaSource
    from pipeline.tables.throttles import Wanted, running_throttles
    from quota.effective import resolved

    root = settings.tables.root
    held = running_throttles(root, wall_ms(), Wanted(), settings.purgatory.min_hold_ms)
    live = live_clients(table_uri(root, "usage")).to_pylist()
    seen = {(row["user"], row["client_id"]) for row in (*held, *live) if row["client_id"] is not None}
    own = {one for one in seen if one[0] == user and client_id in {None, one[1]}}
    if any(row["user"] == user and row["client_id"] is None for row in held):
        own.add((user, client_id or ""))
    if not own:
        who = user if client_id is None else f"{user}/{client_id}"
        message = f"{who} is not held, and was not seen in the last minutes: there is nothing to forgive"
        raise NotFound(message, f"see who is held: {command_text('throttles', 'list')}")
    names = zip(*sorted(seen | own), strict=True)
    clients = pa.table(dict(zip(("user", "client_id"), map(list, names), strict=True)))
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for row in resolved(clients, QuotaSource(table).pin()):
        if row["mode"] != "enforce":
            continue
        entity, client = (row["sensor_user"], row["sensor_client_id"]), (row["user"], row["client_id"])
        name = f"{entity[0] or 'all users'}/{entity[1] or '*'}"
        sensor = {"sensor": name, "quota_types": set(), "shared_with": set(), "entity": entity}
        of_entity = found.setdefault(entity, sensor)
        if client in own:
            of_entity["quota_types"].add(row["quota_type"])
        else:
            of_entity["shared_with"].add(f"{client[0]}/{client[1]}")
    meant = [one for one in found.values() if one["quota_types"] and (client_id is not None or one["entity"][0])]
    if not meant:
        which = " but quotas of client-ids, which all users share" if found and client_id is None else ""
        who = user if client_id is None else f"{user}/{client_id}"
        message = f"{who} owes nothing of its own: no quota is enforced on it{which}"
        fix = command_text("quotas", "effective", user, client_id or min(own)[1])
        raise NotFound(message, f"see which quotas it has: {fix}")
    lists = ("quota_types", "shared_with")
    return [{**one, **{name: sorted(one[name]) for name in lists}} for one in meant]


def _shown_forgiven(row: "Row") -> "Row":
    return {name: value if isinstance(value, str) else ", ".join(value) for name, value in row.items()}


_MISMATCHES: Final = Layout(dropped_first=("query_id", "mode"), texts=("difference",))


def verify(
    *,
    since: Annotated[
        str | None,
        typer.Option(help="First instant: 2h (ago), ISO 8601 in UTC, or epoch ms. Default: all that is kept."),
    ] = None,
    until: Annotated[str, typer.Option(help="Last instant, in the same formats.")] = "0s",
    limit: Annotated[int, typer.Option(help="How many mismatches are shown.", min=0)] = 20,
    source: TablesSource,
    output: Output = "table",
) -> None:
    """Repeat all decisions of a range from the kept usage and compare them; exits with 1 if a stored one differs.

    Throttle records are compared, too: whom they hold, and for which quota type.
    """
    from pipeline.replay.verification import verify as verify_range
    from pipeline.tables.quotas.source import QuotaSource
    from pipeline.tables.quotas.table import QuotaTable

    settings = source.settings()
    now_ms = wall_ms()
    ends = parse_instant("--since", since, now_ms) if since else 0, parse_instant("--until", until, now_ms)
    quotas = QuotaSource(QuotaTable(settings.tables.root))
    with progress_bar("replaying usage") as progress:
        found = verify_range(settings.tables.root, settings.scope or quotas.scope, quotas.at, *ends, progress)
    rows = [{**one.key, "difference": _difference_text(one)} for one in found.mismatches[:limit]]
    print_rows(rows, output, _MISMATCHES)
    tell = say if is_table(output) else remark
    tell(
        f"{as_iso(found.since_ms)} to {as_iso(found.until_ms)} UTC, "
        f"{counted(found.batches, 'batch')} with usage"
        + (f" (and {found.uncomparable} that cannot be: what they depend on is not kept)" if found.uncomparable else "")
        + f", {counted(found.records, 'record')}: "
        f"{counted(found.decisions, 'decision')}, {counted(len(found.mismatches), 'mismatch')}"
    )
    if found.mismatches:
        raise typer.Exit(1)


def _difference_text(difference: "Difference") -> str:
    if not difference.is_recomputed:
        return "stored, but not recomputed from usage and quotas"
    if not difference.is_stored:
        return "recomputed from usage and quotas, but not stored"
    columns = difference.columns.items()
    return "; ".join(f"{name}: stored {stored}, recomputed {again}" for name, (stored, again) in columns)
