"""`kquota tables`: create the Delta tables."""

import typer

from pipeline.cli.options import ConfigFile, Output, TablesRoot, flags

app = typer.Typer(help="Create the Delta tables of the pipeline.", no_args_is_help=True)


@app.callback()
def _tables() -> None:
    """Keep `create` a command of its own: Typer would merge a single command into the group."""


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
