"""`kquota tables`: create the Delta tables, print SQL for views over them; `kquota mode`: enforce or shadow."""

from typing import Annotated

import typer

from pipeline.cli.options import Output, TablesSource
from pipeline.cli.output import Layout, is_table, print_rows, remark, say
from pipeline.command_line import command_text
from pipeline.errors import UsageError


def create(source: TablesSource, output: Output = "table") -> None:
    """Create the tables that are missing, and print the address of each. Can be repeated; existing tables stay.

    `kquota run` and `kquota demo` do the same when they start. No other command creates a table.
    """
    from pipeline.tables.address import full_address, table_uri
    from pipeline.tables.layout import TABLES, create_tables

    root = source.settings().tables.root
    created = create_tables(root)
    results = {name: "created" if name in created else "exists" for name in TABLES}
    rows = [
        {"table": name, "result": result, "address": full_address(table_uri(root, name))}
        for name, result in results.items()
    ]
    print_rows(rows, output, Layout(names=frozenset({"address"})))


def views(
    source: TablesSource,
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
    from pipeline.tables.layout import QUOTA_HISTORY, VIEWS, view_sql

    root = source.settings().tables.root
    say(*view_sql(QUOTA_HISTORY if quota_history else VIEWS, root, schema).splitlines())


# `kquota mode`.

_MODES = ("enforce", "shadow")


def mode(
    wanted: Annotated[str | None, typer.Argument(metavar="[enforce|shadow]", help="The new mode.")] = None,
    *,
    reason: Annotated[str, typer.Option("--reason", help="Why; kept with the change.")] = "",
    source: TablesSource,
    output: Output = "table",
) -> None:
    """Print the mode of all quotas and the table it is set in, or set it; a running job follows within one trigger.

    In shadow mode every throttle is released at once and no client is throttled; decisions are recorded.
    A quota whose own mode is shadow or exempt keeps it in both modes.
    """
    from pipeline.cli.quotas.show import read_in_force
    from pipeline.tables.address import full_address
    from pipeline.tables.quotas.table import local_audit

    if wanted not in {None, *_MODES}:
        msg = f"unknown mode {wanted}; use {', '.join(_MODES)}"
        raise UsageError(msg, f"see the mode: {command_text('mode')}; set it: {command_text('mode', 'shadow')}")
    table = source.quota_table()
    if wanted is not None:
        table.set_mode(wanted, local_audit(reason))
    state, address = read_in_force(table), full_address(table.uri)
    if is_table(output):
        say(state.mode)
        remark(f"quotas v{state.version} of {address}")
    else:
        document = {"mode": state.mode, "version": state.version, "table": address}
        print_rows([document], output, document=document)
