"""What the quota table holds and held: `kquota quotas describe`, `effective`, `export`, `history`, `diff` and `at`.

`sync` keeps the brokers' own quotas by it.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from pipeline.cli.entity import Entities, EntityFilter, described_line, refuse_empty
from pipeline.cli.options import (
    DescribeOutput,
    JobSource,
    MetricsPort,
    Output,
    TablesSource,
    as_iso,
    parse_instant,
    watched,
)
from pipeline.cli.output import Layout, Row, format_option, is_table, print_document, print_rows, remark, say
from pipeline.clock import SystemClock, wall_ms
from pipeline.command_line import command_text
from pipeline.errors import NotFound
from pipeline.log import set_up_logging
from pipeline.process import wait_until_stopped
from pipeline.settings.model import Settings
from pipeline.tables.port import table_uri
from pipeline.tables.quotas.files import to_documents
from quota.entity import DEFAULT, QUOTA_TYPES, label, may_apply
from quota.units import age_text, bound_text, rate_text

if TYPE_CHECKING:
    from pipeline.tables.quotas.history import QuotaVersion
    from pipeline.tables.quotas.table import EditedTable, QuotaTable, QuotaTableState, State
    from quota.broker_levels.writes import Change, Drift


_QUOTAS: Final = Layout(dropped_first=("note", "owner"), texts=("note",))
_SHOWN: Final = 10


@watched
def describe(entity: Entities, source: TablesSource, output: DescribeOutput = "kafka") -> None:
    """Print the quotas, all of them or those of the entity given; exits with 3 if there are none.

    The filter is kafka-configs': --user alice is alice's own quota, not those of her clients; --entity-type users
    --entity-name alice --entity-type clients are all of these. -o wide shows the current rate with each bound, the
    nearest to its bound first: as the job saw it when it last replaced the table rates.
    """
    from pipeline.tables.quotas.table import QuotaTable

    settings = source.settings()
    table = QuotaTable(settings.tables.root)

    print_quotas(table, None, entity, output, wide=partial(_print_with_rates, settings.tables.root))


def print_quotas(
    table: "QuotaTable",
    version: int | None,
    wanted: EntityFilter,
    output: str,
    wide: Callable[[Sequence[Row]], None] | None = None,
) -> None:
    """Print the quotas in force that are meant, and on stderr their version. Exits with 3, if there are none.

    Args:
        version: The newest version at that time; None = the newest of all.
        wide: Prints them for `-o wide`; None = as a table with all columns.
    """
    state = read_in_force(table, version)
    rows = [row for row in (state.stored_rows if wanted.with_forgiven else state.rows) if wanted.matches(row)]
    if output == "wide" and wide is not None and rows:
        wide(rows)
    elif output == "kafka":
        say(*map(described_line, rows))
    else:
        print_rows(rows, output, _QUOTAS, shown=_readable_quota, name=_name)
    remark(f"quotas v{state.version}, scope {state.scope}, mode {state.mode}")
    if not rows:
        _print_what_applies(state.rows, wanted)
        raise typer.Exit(NotFound.exit_code)


def read_in_force(table: "QuotaTable", version: int | None = None) -> "QuotaTableState":
    """The version in force when a version was the newest; None = now. Says on stderr if that one is refused."""
    from pipeline.tables.quotas.source import valid_snapshot

    return checked_in_force(table, version, valid_snapshot)


def checked_in_force(table: "EditedTable[State]", version: int | None, check: "Callable[[State], object]") -> "State":
    """The same of any table that operators edit; `check` raises `InvalidQuotas` for an invalid version."""
    from pipeline.tables.quotas.source import in_force

    state, refused = in_force(table, version, check)
    if refused is not None and state.version < refused.version:
        rollback = command_text(table.kind.table, "rollback", str(state.version))
        fix = f". Fix: {rollback}" if version is None else ""
        remark(f"{refused}; it is refused, and v{state.version} is in force{fix}")
    elif refused is not None:
        remark(f"{refused}; it is refused, and so is every older version. Fix: {command_text('doctor')}")
    return state


def _print_what_applies(rows: Sequence[Row], wanted: EntityFilter) -> None:
    who = label(wanted.user, wanted.client_id)
    if not who or DEFAULT in wanted.names.values():
        return
    found = may_apply(rows, wanted.user, wanted.client_id)
    instead = (
        "these apply in its place, the most specific first:" if found else "and no other quota applies in its place"
    )
    lines = [f"{who} has no quota of its own; {instead}", *(f"  {described_line(row)}" for row in found[:_SHOWN])]
    if len(found) > _SHOWN:
        lines.append(f"  and {len(found) - _SHOWN} more: {command_text('quotas', 'describe')}")
    remark(*lines)


def _name(row: Row) -> str:
    return "/".join((row["user"], row["client_id"])) if row["client_id"] else row["user"]


def _readable_quota(row: Row) -> Row:
    from pipeline.tables.quotas.edit import shown

    return {column: shown(column, value) for column, value in row.items()}


# `-o wide`: each bound with the current rate under it, nearest to its bound first.

_RATE_COLUMNS: Final = (
    *("user", "client_id", "quota_type", "bound", "rate", "used", "held_by_brokers"),
    *("sensor_user", "sensor_client_id", "sensors", "mode"),
)


def _print_with_rates(root: str, rows: Sequence[Row]) -> None:
    """Print rows of the quota table with the rates of now, and on stderr how old they are.

    A row has a line for each bound, and one if it has none.
    """
    from pipeline.tables.rates import read_rates

    nearest, facts = read_rates(root, lambda rates: (rates.nearest_of_quotas(), rates.facts))
    lines = [line for row in rows for line in _rate_lines(row, nearest)]
    lines.sort(key=lambda line: -line[0])  # stable: equal ones stay in the order of the table
    print_rows([line for _, line in lines], "wide", Layout(_RATE_COLUMNS))
    if not facts:
        remark("no rates: the job has stored none yet")
        return
    at_ms = int(facts["as_of_ms"])
    remark(f"rates at {as_iso(at_ms)} UTC, batch {facts['batch_id']}, {age_text(max(wall_ms() - at_ms, 0))} ago")


def _rate_lines(row: Row, nearest: Mapping[tuple[str, str, str], Row]) -> list[tuple[float, dict[str, Any]]]:
    """The used share of the bound, and the line; a line for each bound."""
    about = {name: row[name] for name in ("user", "client_id", "mode", "owner", "note")}
    found = []
    for quota_type in QUOTA_TYPES:
        if row[quota_type] is None:
            continue
        rate = nearest.get((row["user"], row["client_id"], quota_type), {})
        used = rate.get("observed", 0.0) / row[quota_type]
        line = {
            "quota_type": quota_type,
            "bound": bound_text(quota_type, row[quota_type]),
            "rate": rate_text(quota_type, rate.get("observed", 0.0)),
            "used": f"{math.floor(used * 1000) / 10:.1f} %",  # cut off, so that 100.0 % is not below the bound
            **{name: rate.get(name, "") for name in ("sensor_user", "sensor_client_id", "broker_id")},
            "sensors": rate.get("sensors", 0),
            "held_by_brokers": f"{share * 60:.0f} of 60 s" if (share := rate.get("broker_held_share")) else "",
        }
        found.append((used, about | line))
    rest = dict.fromkeys(name for name in (*_RATE_COLUMNS, "broker_id") if name not in row)
    return found or [(0.0, about | rest)]


# `kquota quotas effective`: which quotas apply to one client, and which clients share its sensors.

_LEVELS: Final = Layout(dropped_first=("matches",), texts=("bounds", "matches"))
_BY_TYPE: Final = Layout(
    ("quota_type", "level", "mode", "bound", "sensor_user", "sensor_client_id", "shared_with"),
    dropped_first=("mode",),
    texts=("shared_with",),
)


def effective(
    user: Annotated[str, typer.Argument(metavar="USER", help="The user.")],
    client_id: Annotated[str, typer.Argument(metavar="CLIENT_ID", help="The client-id, if it has one.")] = "",
    *,
    source: TablesSource,
    output: Output = "table",
) -> None:
    """Print the eight levels for a client, the row that matches each type, and the clients that share its sensors.

    The clients are those of the last five minutes of recorded usage. Of a member of a tenant it also says what the
    member may use now.
    """
    from pipeline.replay.story import on_brokers_line, on_brokers_row
    from pipeline.tables.broker_quotas import enforced_for
    from pipeline.tables.queries import live_clients
    from pipeline.tables.quotas.source import QuotaSource
    from pipeline.tables.quotas.table import QuotaTable
    from pipeline.tables.rates import tenant_levels
    from quota.effective import effective as resolved

    refuse_empty("USER", [user])
    settings = source.settings()
    snapshot = QuotaSource(QuotaTable(settings.tables.root)).pin()
    clients = live_clients(table_uri(settings.tables.root, "usage"))
    found = resolved(snapshot, user, client_id, clients, partial(tenant_levels, settings.tables.root))
    levels, by_type = [row.document() for row in found.levels], [_quota_row(one) for one in found.by_type]
    if is_table(output):
        print_rows(levels, output, _LEVELS, shown=_readable_of_effective)
        say("")
    on_brokers = enforced_for(settings.tables.root, user, client_id, QUOTA_TYPES)
    about = {"user": user, "client_id": client_id, "quota_version": snapshot.version}
    rows = {"levels": levels, "effective": by_type, "on_brokers": [on_brokers_row(one) for one in on_brokers]}
    print_rows(by_type, output, _BY_TYPE, shown=_readable_of_effective, document=[about | rows])
    if is_table(output):
        say(*(f"{one.quota_type}: {one.sharing}" for one in found.by_type if one.sharing is not None))
        remark(*(f"{one.change.key.quota_type}: {on_brokers_line(one)}" for one in on_brokers))
    of_tenants = f", tenants v{snapshot.tenants_version}" if snapshot.tenants else ""
    remark(f"quotas v{snapshot.version}{of_tenants}, recent clients: {clients.num_rows}")


def _quota_row(one: Any) -> dict[str, Any]:
    from quota.effective import OF_TENANT

    columns = ("quota_type", "level", "mode", "bound", "sensor_user", "sensor_client_id", *OF_TENANT, "sharing")
    shared_with = [f"{user}/{client_id}" for user, client_id in one.shared_with]
    return {**{name: getattr(one, name) for name in columns}, "shared_with": shared_with}


def _readable_of_effective(row: Row) -> Row:
    shown = {}
    for name, value in row.items():
        if isinstance(value, dict):
            shown[name] = ", ".join(f"{key} {bound_text(key, bound)}" for key, bound in value.items()) or "none"
        elif isinstance(value, list):
            shown[name] = ", ".join(value)
        elif name in {"bound", "own_bound"} and value is not None:
            shown[name] = bound_text(row["quota_type"], value)
        else:
            shown[name] = "-" if value is None else value
    return shown


_SHOWN_CHANGES: Final = 3
_VERSIONS: Final = Layout(dropped_first=("host",), texts=("reason", "changes"))


HowMany = Annotated[int, typer.Option("--limit", "-n", help="How many versions, newest first.", min=1)]
OldVersion = Annotated[int | None, typer.Argument(help="A version; by default the one before NEW.")]
NewVersion = Annotated[int | None, typer.Argument(help="A version; by default the newest.")]


def history(
    *,
    limit: HowMany = 20,
    source: TablesSource,
    output: Output = "table",
) -> None:
    """Print the versions of the quota table: when, who, from where, why, and old → new of every value.

    The table shows the first changes of a version; -o json and `quotas diff` show all.
    """
    print_history(source.quota_table(), limit, output)


def print_history(table: "EditedTable[Any]", limit: int, output: str) -> None:
    """Print the newest versions of a table that operators edit."""
    from pipeline.tables.quotas.history import versions

    found = versions(table, limit)
    print_rows(
        [_short(version) if is_table(output) else _full(version) for version in found],
        output,
        _VERSIONS,
    )


CHANGES: Final = Layout(("action", "entity", "value", "old", "new"), texts=("entity", "old", "new"))


def diff(
    old: OldVersion = None,
    new: NewVersion = None,
    *,
    source: TablesSource,
    output: Output = "table",
) -> None:
    """Print every value that differs between two versions of the quotas."""
    print_diff(source.quota_table(), old, new, output)


def print_diff(table: "EditedTable[Any]", old: int | None, new: int | None, output: str) -> None:
    """Print every value that differs between two versions of a table that operators edit."""
    from pipeline.tables.quotas.history import changes_between, modes

    after = table.read(new)
    before = table.read(old if old is not None else max(after.version - 1, 0))
    changes = changes_between(before, after)
    print_rows([change_line(one) if is_table(output) else one.as_row() for one in changes], output, CHANGES)
    was, now = modes(before, after) or ("", "")
    mode = f", mode {was} → {now}" if was != now else ""
    versions = f"{table.kind.table} v{before.version} → v{after.version}"
    remark(f"{versions}, values that differ: {len(changes)}{mode}")


def change_line(change: Any) -> dict[str, Any]:
    """A difference as a row of the printed table."""
    from pipeline.tables.quotas.edit import shown

    return {
        "action": change.action,
        "entity": change.label,
        "value": change.column,
        "old": shown(change.column, change.old),
        "new": shown(change.column, change.new),
    }


def export(
    *,
    source: TablesSource,
    version: Annotated[int | None, typer.Option("--version", help="As of this version.")] = None,
    output: Annotated[str, format_option("json or yaml.", ("json", "yaml"))] = "yaml",
) -> None:
    """Print all quotas as `rpk cluster quotas describe` does, and the tenants after them; `apply` reads it back.

    Of an earlier version it prints no tenants: they have versions of their own.
    """
    from pipeline.tables.quotas.table import TenantTable, TenantTableState
    from pipeline.tables.quotas.tenants import tenants_text

    table = source.quota_table()
    state = read_in_force(table) if version is None else table.read(version)
    of_tenants = TenantTable.found(table.root) if version is None else None
    tenants = None if of_tenants is None else checked_in_force(of_tenants, None, TenantTableState.tenants)
    for number, document in enumerate(to_documents(state.rows, tenants.rows if tenants else (), output)):
        if number:
            say("---")
        print_document(document, output)
    remark(f"quotas v{state.version}: {len(state.rows)} entities")
    if tenants is not None and tenants.rows:
        remark(f"tenants v{tenants.version}: {tenants_text(len(tenants.rows))}")


def at(
    time: Annotated[str, typer.Argument(help="ISO 8601, UTC if it has no offset, or an age: -15m, -2h, 3d.")],
    entity: Entities,
    source: TablesSource,
    output: DescribeOutput = "kafka",
) -> None:
    """Print the quotas as they were at a time, as `describe` does."""
    from pipeline.tables.quotas.history import version_at

    instant = datetime.fromtimestamp(parse_instant("TIME", time, wall_ms()) / 1000, UTC)
    table = source.quota_table()
    print_quotas(table, version_at(table, instant), entity, output)


def _full(version: "QuotaVersion") -> dict[str, Any]:
    audit = version.commit.audit
    return {
        "version": version.commit.version,
        "committed_at": version.commit.committed_at.isoformat(timespec="milliseconds"),
        "operation": version.commit.operation,
        **{name: getattr(audit, name, None) for name in ("actor", "host", "tool_version", "reason")},
        **({"mode": dict(zip(("old", "new"), version.mode, strict=True))} if version.mode else {}),
        "changes": [change.as_row() for change in version.changes],
    }


def _short(version: "QuotaVersion") -> dict[str, Any]:
    from pipeline.tables.quotas.history import row_texts

    full = _full(version)
    shown = row_texts(version.changes[:_SHOWN_CHANGES])
    if version.mode and version.mode[0] != version.mode[1]:
        shown.insert(0, f"mode of all {version.mode[0]} → {version.mode[1]}")
    more = len(version.changes) - _SHOWN_CHANGES
    changes = "; ".join([*shown, *([f"and {more} more"] if more > 0 else [])])
    made_by = full["operation"].lower() if version.commit.audit is None else ""
    return {
        "version": full["version"],
        "committed_at": f"{version.commit.committed_at:%Y-%m-%d %H:%M:%S}",
        **{name: full[name] for name in ("actor", "host", "reason")},
        "changes": changes or made_by,
    }


_PLAN: Final = Layout(("action", "entity", "value", "old", "new", "why"), texts=("entity", "old", "new", "why"))


def sync(
    *,
    source: JobSource,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what it would change, and what others changed; nothing is saved.")
    ] = False,
    adopt: Annotated[
        bool, typer.Option("--adopt", help="Take over values that others wrote; they are given back at the end.")
    ] = False,
    user: Annotated[
        list[str] | None,
        typer.Option(
            help="Put only the rows of this user, pairs with client-ids among them, on the brokers; repeatable.",
            show_default="all",
        ),
    ] = None,
    period_ms: Annotated[int | None, typer.Option("--period", metavar="MS", help="Time between two periods.")] = None,
    metrics_port: MetricsPort = None,
    output: Output = "table",
) -> None:
    """Keep the quotas that the brokers themselves enforce, so that clients need not follow kquota.

    In scope broker every broker gets the bound of the table. In scope cluster all brokers get one level per entity, so
    that together they give its bound; it follows the usage that the job records. Only what kquota wrote itself is
    changed, and every change is in the table broker_quotas.

    Runs until SIGTERM or Ctrl-C. Ends with 4 if another sync of the same tables runs.
    """
    own = {"period_ms": period_ms, "users": user or None}
    settings = source.settings(sync=own, metrics={"port": metrics_port})
    if dry_run:
        _print_sync_plan(settings, adopt, output)
        return
    from pipeline.brokers.running import SyncMetrics, run_sync
    from pipeline.web import metrics_endpoint, new_registry

    set_up_logging(settings.log_level)
    registry = new_registry("sync")
    metrics = SyncMetrics(registry, SystemClock())
    with wait_until_stopped() as wait, metrics_endpoint(settings.metrics, registry):
        run_sync(settings, wait, adopt=adopt, metrics=metrics)


def _print_sync_plan(settings: "Settings", adopt: bool, output: str) -> None:
    from pipeline.brokers.running import inspect

    plan = inspect(settings, adopt=adopt)
    rows = _plan_rows(plan.changes, plan.control.drifts)
    refused = [{**one.key._asdict(), "by": one.by, "reason": one.reason} for one in plan.control.refused]
    document = {"cluster": plan.cluster, "quota_version": plan.quota_version, "changes": rows, "refused": refused}
    print_rows(rows, output, _PLAN, shown=_readable_change, document=document)
    remark(
        f"quotas v{plan.quota_version}, dry run, nothing was written; changes: {len(plan.changes)}, values of others "
        f"that stay: {len(plan.control.drifts)}, values that are kquota's: {len(plan.control.owned)}"
    )


def print_changes(changes: "Iterable[Change]", output: str) -> None:
    """Print what would be written to brokers."""
    print_rows(_plan_rows(changes), output, _PLAN, shown=_readable_change)


def _plan_rows(changes: "Iterable[Change]", drifts: "Iterable[Drift]" = ()) -> list[dict[str, Any]]:
    names = ("old", "new", "bound", "cause", "demand")
    return [
        {
            "action": "add" if change.old is None else "remove" if change.new is None else "alter",
            **change.key._asdict(),
            **{name: getattr(change, name) for name in names},
        }
        for change in changes
    ] + [
        {
            "action": "leave",
            **drift.key._asdict(),
            **dict(zip(names, (drift.theirs, drift.wanted, None, drift.kind.value, {}), strict=True)),
        }
        for drift in drifts
    ]


def _readable_change(row: Any) -> dict[str, Any]:
    from quota.broker_levels.writes import WORDS

    old, new = (None if row[end] is None else bound_text(row["quota_type"], row[end]) for end in ("old", "new"))
    left = {"foreign": "others wrote it; --adopt takes it over", "changed": "others changed it; --adopt takes it over"}
    return {
        "action": row["action"],
        "entity": label(row["user"], row["client_id"]),
        "value": row["quota_type"],
        "old": old,
        "new": new,
        "why": left.get(row["cause"]) or WORDS[row["cause"]],
        "bound": row["bound"],
    }
