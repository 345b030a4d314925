"""The verbs of `kquota quotas`."""

import typer

from pipeline.cli.quotas import describe, edit, sql

app = typer.Typer(help="See, edit, version and restore quotas.", no_args_is_help=True)
app.command("describe")(describe.describe)
app.command("alter")(edit.alter)
app.command("delete")(edit.delete)
app.command("sql")(sql.sql)
