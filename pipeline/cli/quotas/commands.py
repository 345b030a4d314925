"""The commands of `kquota quotas`."""

from typing import Final

import typer

from pipeline.cli.on_demand import Place, group_of

_COMMANDS: Final = {
    "describe": Place("pipeline.cli.quotas.show", "describe"),
    "alter": Place("pipeline.cli.quotas.alter", "alter"),
    "delete": Place("pipeline.cli.quotas.alter", "delete"),
    "export": Place("pipeline.cli.quotas.files", "export"),
    "apply": Place("pipeline.cli.quotas.files", "apply"),
    "import": Place("pipeline.cli.quotas.files", "import_"),
    "history": Place("pipeline.cli.quotas.history", "history"),
    "diff": Place("pipeline.cli.quotas.history", "diff"),
    "at": Place("pipeline.cli.quotas.history", "at", {"ignore_unknown_options": True}),  # -2h is not an option
    "rollback": Place("pipeline.cli.quotas.history", "rollback"),
    "effective": Place("pipeline.cli.quotas.show", "effective"),
    "sql": Place("pipeline.cli.quotas.alter", "sql"),
    "sync": Place("pipeline.cli.quotas.sync", "sync"),
}

app = typer.Typer(cls=group_of(_COMMANDS), help="See, edit, version and restore quotas.", no_args_is_help=True)
