"""`kquota quotas effective`: which quotas apply to one client, and which clients share its sensors."""

import sys
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from pipeline.cli.options import ConfigFile, Output, TablesRoot, flags
from pipeline.cli.quotas.entity_flags import ClientNames, for_client
from pipeline.cli.quotas.errors import QuotaUsage
from pipeline.cli.table_layout import Layout
from pipeline.errors import printable
from quota.entity import QUOTA_TYPES

if TYPE_CHECKING:
    from pipeline.cli.output import Row
    from quota.effective import EffectiveQuota

_LEVELS: Final = Layout(dropped_first=("matches",), texts=("bounds", "matches"))
_BY_TYPE: Final = Layout(dropped_first=("mode",), texts=("shared_with",))


@for_client
def effective(
    user: Annotated[
        str | None, typer.Argument(metavar="USER", help="The user; or --user USER.", show_default=False)
    ] = None,
    client_id: Annotated[
        str | None,
        typer.Argument(metavar="CLIENT_ID", help="The client-id, if it has one; or --client-id.", show_default=False),
    ] = None,
    *,
    client: ClientNames,
    config: ConfigFile = None,
    tables: TablesRoot = None,
    output: Output = "table",
) -> None:
    """Print the eight levels for a client, the row that matches each type, and the clients that share its sensors.

    The clients are those of the last five minutes of recorded usage.
    """
    from pipeline.cli.output import is_table, print_rows
    from pipeline.settings.loading import load_settings
    from pipeline.story.on_brokers import on_brokers_line, on_brokers_row
    from pipeline.tables.address import table_uri
    from pipeline.tables.brokers.enforced import enforced_for
    from pipeline.tables.from_settings import open_quota_table
    from pipeline.tables.quotas.source import QuotaSource
    from pipeline.tables.throttles.live_clients import live_clients
    from quota.effective import effective as resolved

    user, client_id = client.or_arguments(user, client_id)
    if user is None:
        message = "'USER' must be given; got none"
        raise QuotaUsage(message, "write the user, and the client-id after it if it has one")
    client_id = client_id or ""
    settings = load_settings(config, flags(tables=tables))
    snapshot = QuotaSource(open_quota_table(settings.tables), settings.share).pin()
    clients = live_clients(table_uri(settings.tables.root, "usage"))
    found = resolved(snapshot, user, client_id, clients)
    levels, by_type = [row.document() for row in found.levels], [_quota_row(one) for one in found.by_type]
    if is_table(output):
        print_rows(levels, output, _LEVELS, shown=_readable)
        sys.stdout.write("\n")
    about = {"user": user, "client_id": client_id, "quota_version": snapshot.version}
    on_brokers = enforced_for(settings.tables.root, user, client_id, QUOTA_TYPES)
    rows = [on_brokers_row(one) for one in on_brokers]
    document = [{**about, "levels": levels, "effective": by_type, "on_brokers": rows}]
    print_rows(by_type, output, _BY_TYPE, shown=_readable, document=document)
    if is_table(output):
        for one in on_brokers:
            sys.stderr.write(f"{printable(f'{one.change.key.quota_type}: {on_brokers_line(one)}')}\n")
    sys.stderr.write(f"quotas v{snapshot.version}, recent clients: {clients.num_rows}\n")


def _quota_row(one: "EffectiveQuota") -> dict[str, Any]:
    return {
        "quota_type": one.quota_type,
        "level": one.level,
        "mode": one.mode,
        "bound": one.bound,
        "sensor_user": one.sensor_user,
        "sensor_client_id": one.sensor_client_id,
        "shared_with": [f"{user}/{client_id}" for user, client_id in one.shared_with],
    }


def _readable(row: "Row") -> "Row":
    """Convert bounds, lists and mappings to readable text, and None to a dash."""
    from quota.units import bound_text

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
