"""`kquota tables`: create the Delta tables, and print SQL for views over them."""

from typing import Annotated

import typer

from pipeline.cli.options import ConfigFile, Output, TablesRoot, flags

app = typer.Typer(help="Create the Delta tables of the pipeline; print SQL for views over them.", no_args_is_help=True)


@app.command("create")
def create(config: ConfigFile = None, tables: TablesRoot = None, output: Output = "table") -> None:
    """Create the tables that are missing, and print the address of each. Can be repeated; existing tables stay.

    `kquota run` and `kquota demo` do the same when they start. No other command creates a table.
    """
    from pipeline.cli.output import print_rows
    from pipeline.cli.table_layout import Layout
    from pipeline.settings.loading import load_settings
    from pipeline.tables.address import full_address, table_uri
    from pipeline.tables.from_settings import create_tables
    from pipeline.tables.layout import TABLES

    place = load_settings(config, flags(tables=tables)).tables
    created = create_tables(place)
    rows = [
        {
            "table": name,
            "result": "created" if name in created else "exists",
            "address": full_address(table_uri(place.root, name)),
        }
        for name in TABLES
    ]
    print_rows(rows, output, Layout(names=frozenset({"address"})))


@app.command("views")
def views(
    config: ConfigFile = None,
    tables: TablesRoot = None,
    schema: Annotated[
        str, typer.Option("--schema", help="Where to register tables and views: schema, or catalog.schema.")
    ] = "kquota",
    quota_history: Annotated[
        bool, typer.Option("--quota-history", help="The views of quota edits instead; not for Unity Catalog.")
    ] = False,
) -> None:
    """Print Spark SQL that makes views over the tables: who is throttled and why, usage, chargeback, health.

    Nothing is run. The text is for spark-sql -f, and for an editor or a warehouse of Databricks.
    """
    from pipeline.settings.loading import load_settings
    from pipeline.tables.sql_views import QUOTA_HISTORY, VIEWS, view_sql

    root = load_settings(config, flags(tables=tables)).tables.root
    typer.echo(view_sql(QUOTA_HISTORY if quota_history else VIEWS, root, schema), nl=False)
