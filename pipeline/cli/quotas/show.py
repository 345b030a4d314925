"""`kquota quotas describe` and `effective`: the quotas, and those that apply to one client."""

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from pipeline.cli.options import Output, QuotasOutput, TablesSource
from pipeline.cli.output import Layout, Row, is_table, print_rows
from pipeline.cli.quotas.entity import Client, Entities, EntityFilter, described_line
from pipeline.command_line import command_text
from pipeline.errors import NotFound, UsageError, printable
from quota.entity import DEFAULT, QUOTA_TYPES, label, may_apply
from quota.units import bound_text

if TYPE_CHECKING:
    from pipeline.tables.quotas.table import QuotaTableState

_LAYOUT: Final = Layout(dropped_first=("note", "owner"), texts=("note",))
_SHOWN: Final = 10


def describe(entity: Entities, source: TablesSource, output: QuotasOutput = "kafka") -> None:
    """Print the quotas, all of them or those of the entity given; exits with 3 if there are none.

    The filter is kafka-configs': --user alice is alice's own quota, not those of her clients; --entity-type users
    --entity-name alice --entity-type clients are all of these. -o wide shows the current rate with each bound, the
    nearest to its bound first: the rates at the newest micro-batch, from the stored usage.
    """
    from pipeline.tables.from_settings import open_quota_table

    settings = source.settings()
    table = open_quota_table(settings.tables)

    def with_rates(rows: Sequence[Row]) -> None:
        from pipeline.cli.quotas.rates import print_with_rates

        print_with_rates(settings, table, rows)

    print_quotas(table.read(), entity, output, wide=with_rates)


def print_quotas(
    state: "QuotaTableState", wanted: EntityFilter, output: str, wide: Callable[[Sequence[Row]], None] | None = None
) -> None:
    """Print the quotas of one version that are meant, and on stderr the version. Exits with 3, if there are none.

    Args:
        wide: Prints them for `-o wide`; None = as a table with all columns.
    """
    rows = [row for row in state.rows if wanted.matches(row)]
    if output == "wide" and wide is not None and rows:
        wide(rows)
    elif output == "kafka":
        sys.stdout.write("".join(f"{printable(described_line(row))}\n" for row in rows))
    else:
        print_rows(rows, output, _LAYOUT, shown=_readable)
    sys.stderr.write(f"quotas v{state.version}, scope {state.scope}, mode {state.mode}\n")
    if not rows:
        _print_what_applies(state.rows, wanted)
        raise typer.Exit(NotFound.exit_code)


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
    sys.stderr.write("".join(f"{printable(line)}\n" for line in lines))


def _readable(row: Row) -> Row:
    from pipeline.tables.quotas.history import shown

    return {column: shown(column, value) for column, value in row.items()}


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
    from pipeline.reports.story import on_brokers_line, on_brokers_row
    from pipeline.tables.address import table_uri
    from pipeline.tables.enforced import enforced_for
    from pipeline.tables.from_settings import open_quota_table
    from pipeline.tables.quotas.source import QuotaSource
    from pipeline.tables.reading import live_clients
    from quota.effective import effective as resolved

    user, client_id = client.or_arguments(user, client_id)
    if user is None:
        message = "name a user"
        raise UsageError(message, "write the user, and the client-id after it if it has one")
    client_id = client_id or ""
    settings = source.settings()
    snapshot = QuotaSource(open_quota_table(settings.tables), settings.share).pin()
    clients = live_clients(table_uri(settings.tables.root, "usage"))
    found = resolved(snapshot, user, client_id, clients)
    levels, by_type = [row.document() for row in found.levels], [_quota_row(one) for one in found.by_type]
    if is_table(output):
        print_rows(levels, output, _LEVELS, shown=_readable_of_effective)
        sys.stdout.write("\n")
    on_brokers = enforced_for(settings.tables.root, user, client_id, QUOTA_TYPES)
    about = {"user": user, "client_id": client_id, "quota_version": snapshot.version}
    rows = {"levels": levels, "effective": by_type, "on_brokers": [on_brokers_row(one) for one in on_brokers]}
    print_rows(by_type, output, _BY_TYPE, shown=_readable_of_effective, document=[about | rows])
    if is_table(output):
        for one in on_brokers:
            sys.stderr.write(f"{printable(f'{one.change.key.quota_type}: {on_brokers_line(one)}')}\n")
    sys.stderr.write(f"quotas v{snapshot.version}, recent clients: {clients.num_rows}\n")


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
