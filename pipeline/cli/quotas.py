"""`kquota quotas`: see and edit the quota table."""

import sys
from typing import Annotated, Any

import typer

from pipeline.cli.options import ConfigFile, Output, TablesRoot, flags

app = typer.Typer(help="See and edit quotas.", no_args_is_help=True)

User = Annotated[str | None, typer.Option("--user", help="The user.", show_default=False)]
Client = Annotated[str | None, typer.Option("--client", help="The client-id.", show_default=False)]
UserDefaults = Annotated[bool, typer.Option("--user-defaults", help="The default user.")]
ClientDefaults = Annotated[bool, typer.Option("--client-defaults", help="The default client-id.")]
Reason = Annotated[str, typer.Option("--reason", help="Why; kept with the edit.")]


@app.command("describe")
def describe(
    user: User = None,
    client: Client = None,
    user_defaults: UserDefaults = False,
    client_defaults: ClientDefaults = False,
    config: ConfigFile = None,
    tables: TablesRoot = None,
    output: Output = "table",
) -> None:
    """Print the quotas, all of them or those of the entity given; exits with 3 if there are none."""
    from pipeline.cli.output import print_rows
    from pipeline.settings.loading import load_settings
    from pipeline.tables.open import open_quota_table

    state = open_quota_table(load_settings(config, flags(tables=tables)).tables).read()
    wanted = _entity(user, client, user_defaults, client_defaults)
    rows = [row for row in state.rows if all(part in {None, row[name]} for name, part in wanted.items())]
    print_rows(rows, output)
    sys.stderr.write(f"quotas v{state.version}, scope {state.scope}, mode {state.mode}\n")
    if not rows:
        raise typer.Exit(3)


@app.command("alter")
def alter(
    user: User = None,
    client: Client = None,
    user_defaults: UserDefaults = False,
    client_defaults: ClientDefaults = False,
    add_config: Annotated[
        str | None,
        typer.Option(
            "--add-config",
            help="k=v,k2=v2 of producer_byte_rate, consumer_byte_rate, request_percentage, mode, owner, note.",
            show_default=False,
        ),
    ] = None,
    delete_config: Annotated[
        str | None, typer.Option("--delete-config", help="k,k2: bounds to take away.", show_default=False)
    ] = None,
    reason: Reason = "",
    config: ConfigFile = None,
    tables: TablesRoot = None,
) -> None:
    """Change the quota of one entity; the next micro-batch of a running job decides by it.

    The edit is one commit under the table's lock, with who made it, where, when and why. A row that is left without
    any bound goes, unless its mode is exempt.
    """
    from pipeline.cli.quota_values import parse_added, parse_deleted
    from pipeline.settings.loading import load_settings
    from pipeline.tables.audit import local_audit
    from pipeline.tables.open import create_tables, open_quota_table
    from pipeline.tables.quota_edit import QuotaChange

    values = {**parse_added(add_config or ""), **parse_deleted(delete_config or "")}
    entity = {name: part or "" for name, part in _entity(user, client, user_defaults, client_defaults).items()}
    if not values or not any(entity.values()):
        message = "name an entity (--user, --client, --user-defaults, --client-defaults) and what to change"
        raise typer.BadParameter(message)
    settings = load_settings(config, flags(tables=tables))
    create_tables(settings.tables)
    table = open_quota_table(settings.tables)
    version = table.alter([QuotaChange(entity["user"], entity["client_id"], values)], local_audit(reason))
    sys.stdout.write(f"Updated config for entity: {_label(entity)}.\n")
    sys.stderr.write(f"quotas v{version}\n")


@app.command("sql")
def sql(
    statement: Annotated[str, typer.Argument(help="UPDATE, INSERT, DELETE or MERGE on the table `quotas`.")],
    reason: Reason = "",
    config: ConfigFile = None,
    tables: TablesRoot = None,
    output: Output = "table",
) -> None:
    """Run one Spark SQL statement on the quota table, under the same lock as every other edit.

    On a local disk no other SQL writer may touch the table at the same time: Spark and delta-rs do not see each
    other's commits in time there.
    """
    from pipeline.cli.output import print_rows
    from pipeline.settings.loading import load_settings
    from pipeline.tables.audit import local_audit
    from pipeline.tables.quota_sql import run_sql

    settings = load_settings(config, flags(tables=tables))
    rows = run_sql(settings, statement, local_audit(reason))
    print_rows(rows, output)


def _entity(user: str | None, client: str | None, user_defaults: bool, client_defaults: bool) -> dict[str, str | None]:
    from schemas.quota_row import DEFAULT_ENTITY

    for name, default, option in ((user, user_defaults, "user"), (client, client_defaults, "client")):
        if name is not None and default:
            message = f"give --{option} or --{option}-defaults, not both"
            raise typer.BadParameter(message)
    return {
        "user": DEFAULT_ENTITY if user_defaults else user,
        "client_id": DEFAULT_ENTITY if client_defaults else client,
    }


def _label(entity: dict[str, Any]) -> str:
    from schemas.quota_row import DEFAULT_ENTITY

    words = (("user", "user-principal"), ("client_id", "client-id"))
    parts = [
        f"the default {word}" if entity[name] == DEFAULT_ENTITY else f"{word} '{entity[name]}'"
        for name, word in words
        if entity[name]
    ]
    return ", ".join(parts)
