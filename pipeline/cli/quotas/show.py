"""`kquota quotas describe` and `effective`: the quotas, and those that apply to one client."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from pipeline.cli.options import Output, QuotasOutput, TablesSource, as_iso
from pipeline.cli.output import Layout, Row, is_table, print_rows, remark, say
from pipeline.cli.quotas.entity import Client, Entities, EntityFilter, described_line
from pipeline.clock import wall_ms
from pipeline.command_line import command_text
from pipeline.errors import NotFound, UsageError
from quota.entity import DEFAULT, QUOTA_TYPES, label, may_apply
from quota.units import age_text, bound_text, rate_text

if TYPE_CHECKING:
    from pipeline.tables.quotas.table import QuotaTable, QuotaTableState

_LAYOUT: Final = Layout(dropped_first=("note", "owner"), texts=("note",))
_SHOWN: Final = 10


def describe(entity: Entities, source: TablesSource, output: QuotasOutput = "kafka") -> None:
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
    rows = [row for row in state.rows if wanted.matches(row)]
    if output == "wide" and wide is not None and rows:
        wide(rows)
    elif output == "kafka":
        say(*map(described_line, rows))
    else:
        print_rows(rows, output, _LAYOUT, shown=_readable)
    remark(f"quotas v{state.version}, scope {state.scope}, mode {state.mode}")
    if not rows:
        _print_what_applies(state.rows, wanted)
        raise typer.Exit(NotFound.exit_code)


def read_in_force(table: "QuotaTable", version: int | None = None) -> "QuotaTableState":
    """The version in force when a version was the newest; None = now. Says on stderr if that one is refused."""
    from pipeline.tables.quotas.source import in_force

    state, refused = in_force(table, version)
    if refused is not None and state.version < refused.version:
        fix = f". Fix: {command_text('quotas', 'rollback', str(state.version))}" if version is None else ""
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


def _readable(row: Row) -> Row:
    from pipeline.tables.quotas.history import shown

    return {column: shown(column, value) for column, value in row.items()}


# `-o wide`: each bound with the current rate under it, nearest to its bound first.

_COLUMNS: Final = (
    *("user", "client_id", "quota_type", "bound", "rate", "used"),
    *("sensor_user", "sensor_client_id", "sensors", "mode"),
)


def _print_with_rates(root: str, rows: Sequence[Row]) -> None:
    """Print rows of the quota table with the rates of now, and on stderr how old they are.

    A row has a line for each bound, and one if it has none.
    """
    from pipeline.tables.rates import read_rates

    nearest, facts = read_rates(root, lambda rates: (rates.nearest_of_quotas(), rates.facts))
    lines = [line for row in rows for line in _lines(row, nearest)]
    lines.sort(key=lambda line: -line[0])  # stable: equal ones stay in the order of the table
    print_rows([line for _, line in lines], "wide", Layout(_COLUMNS))
    if not facts:
        remark("no rates: the job has stored none yet")
        return
    at_ms = int(facts["as_of_ms"])
    remark(f"rates at {as_iso(at_ms)} UTC, batch {facts['batch_id']}, {age_text(max(wall_ms() - at_ms, 0))} ago")


def _lines(row: Row, nearest: Mapping[tuple[str, str, str], Row]) -> list[tuple[float, dict[str, Any]]]:
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
        }
        found.append((used, about | line))
    rest = dict.fromkeys(name for name in (*_COLUMNS, "broker_id") if name not in row)
    return found or [(0.0, about | rest)]


# `kquota quotas effective`: which quotas apply to one client, and which clients share its sensors.

_LEVELS: Final = Layout(dropped_first=("matches",), texts=("bounds", "matches"))
_BY_TYPE: Final = Layout(dropped_first=("mode",), texts=("shared_with",))


def effective(
    user: Annotated[str | None, typer.Argument(metavar="USER", help="The user; or --user USER.")] = None,
    client_id: Annotated[
        str | None, typer.Argument(metavar="CLIENT_ID", help="The client-id, if it has one; or --client-id.")
    ] = None,
    *,
    client: Client,
    source: TablesSource,
    output: Output = "table",
) -> None:
    """Print the eight levels for a client, the row that matches each type, and the clients that share its sensors.

    The clients are those of the last five minutes of recorded usage.
    """
    from pipeline.replay.story import on_brokers_line, on_brokers_row
    from pipeline.tables.address import table_uri
    from pipeline.tables.enforced import enforced_for
    from pipeline.tables.quotas.source import QuotaSource
    from pipeline.tables.quotas.table import QuotaTable
    from pipeline.tables.reading import live_clients
    from quota.effective import effective as resolved

    user, client_id = client.or_arguments(user, client_id)
    if user is None:
        message = "name a user"
        raise UsageError(message, "write the user, and the client-id after it if it has one")
    client_id = client_id or ""
    settings = source.settings()
    snapshot = QuotaSource(QuotaTable(settings.tables.root)).pin()
    clients = live_clients(table_uri(settings.tables.root, "usage"))
    found = resolved(snapshot, user, client_id, clients)
    levels, by_type = [row.document() for row in found.levels], [_quota_row(one) for one in found.by_type]
    if is_table(output):
        print_rows(levels, output, _LEVELS, shown=_readable_of_effective)
        say("")
    on_brokers = enforced_for(settings.tables.root, user, client_id, QUOTA_TYPES)
    about = {"user": user, "client_id": client_id, "quota_version": snapshot.version}
    rows = {"levels": levels, "effective": by_type, "on_brokers": [on_brokers_row(one) for one in on_brokers]}
    print_rows(by_type, output, _BY_TYPE, shown=_readable_of_effective, document=[about | rows])
    if is_table(output):
        remark(*(f"{one.change.key.quota_type}: {on_brokers_line(one)}" for one in on_brokers))
    remark(f"quotas v{snapshot.version}, recent clients: {clients.num_rows}")


def _quota_row(one: Any) -> dict[str, Any]:
    columns = ("quota_type", "level", "mode", "bound", "sensor_user", "sensor_client_id")
    shared_with = [f"{user}/{client_id}" for user, client_id in one.shared_with]
    return {**{name: getattr(one, name) for name in columns}, "shared_with": shared_with}


def _readable_of_effective(row: Row) -> Row:
    shown = {}
    for name, value in row.items():
        if isinstance(value, dict):
            shown[name] = ", ".join(f"{key} {bound_text(key, bound)}" for key, bound in value.items()) or "none"
        elif isinstance(value, list):
            shown[name] = ", ".join(value)
        elif name == "bound" and value is not None:
            shown[name] = bound_text(row["quota_type"], value)
        else:
            shown[name] = "-" if value is None else value
    return shown
