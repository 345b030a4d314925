"""The commands of `kquota quotas`."""

import typer

from pipeline.cli.quotas import alter, describe, effective, files, history, sql, sync

app = typer.Typer(help="See, edit, version and restore quotas.", no_args_is_help=True)
app.command("describe")(describe.describe)
app.command("alter")(alter.alter)
app.command("delete")(alter.delete)
app.command("export")(files.export)
app.command("apply")(files.apply)
app.command("import")(files.import_)
app.command("history")(history.history)
app.command("diff")(history.diff)
app.command("at", context_settings={"ignore_unknown_options": True})(history.at)  # -2h is no option
app.command("rollback")(history.rollback)
app.command("effective")(effective.effective)
app.command("sql")(sql.sql)
app.command("sync")(sync.sync)
