"""`kquota quotas sql`: Spark SQL on the quota table."""

from typing import Annotated

import typer

from pipeline.cli.options import ConfigFile, Output, TablesRoot, flags
from pipeline.cli.quotas.edit import Reason


def sql(
    statement: Annotated[str, typer.Argument(help="UPDATE, INSERT, DELETE or MERGE on the table `quotas`.")],
    reason: Reason = "",
    config: ConfigFile = None,
    tables: TablesRoot = None,
    output: Output = "table",
) -> None:
    """Run one Spark SQL statement on the quota table, under the same lock as every other edit.

    On a local disk no other SQL writer may touch the table at the same time: Spark and delta-rs do not see each
    other's commits in time there. In an object store the statement runs on a copy, and its outcome is one edit.
    """
    from pipeline.cli.output import print_rows
    from pipeline.settings.loading import load_settings
    from pipeline.stream.quota_sql import run_sql
    from pipeline.tables.audit import local_audit

    settings = load_settings(config, flags(tables=tables))
    print_rows(run_sql(settings, statement, local_audit(reason)), output)
